#include "base/huge_memory.h"

#include <sys/mman.h>

#include "base/types.h"

namespace vericache {

std::shared_ptr<uint8_t[]> AllocateHuge(size_t bytes) {
  // mmap gives 4 KiB boundaries: one huge page more, and what sticks out on both sides goes back.
  const size_t size = RoundUp(bytes > 0 ? bytes : 1, kHugePage);
  void* mapping =
      mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* begin = static_cast<uint8_t*>(mapping);
  const size_t before =
      RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePage) - reinterpret_cast<uintptr_t>(begin);
  uint8_t* data = begin + before;
  if (before > 0) (void)munmap(begin, before);
  if (before < kHugePage) (void)munmap(data + size, kHugePage - before);
  (void)madvise(data, size, MADV_HUGEPAGE);
  return {data, [size](uint8_t* p) { (void)munmap(p, size); }};
}

}  // namespace vericache
