// Any bytes as an .npz of positions: refused with one line, or sorted positions for every head.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "kv/selectors/selector.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int fd = memfd_create("kept.npz", 0);
  VC_CHECK(ftruncate(fd, 0) == 0);
  VC_CHECK(pwrite(fd, data, size, 0) == static_cast<ssize_t>(size));
  const auto kept = vericache::ReadKeptFile("/proc/self/fd/" + std::to_string(fd), 2, 2);
  if (!kept.ok()) {
    VC_CHECK(kept.status().message().find('\n') == absl::string_view::npos);
    VC_CHECK(kept.status().message().size() < 1000);
    return 0;
  }
  VC_CHECK(kept->positions.size() == 4);
  for (const std::vector<int32_t>& positions : kept->positions)
    for (size_t i = 0; i < positions.size(); ++i)
      VC_CHECK(positions[i] >= (i == 0 ? 0 : positions[i - 1] + 1));
  return 0;
}
