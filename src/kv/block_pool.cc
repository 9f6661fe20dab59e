#include "kv/block_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/huge_memory.h"
#include "base/types.h"

namespace vericache {
namespace {

// Below this, blocks lie in ordinary memory: models so small do not care about page sizes.
constexpr size_t kHugeBlockBytes = size_t{256} << 10;

// Blocks allocated together, so that they fill huge pages with as little waste as possible.
int64_t BlocksPerSlab(size_t stride) {
#if defined(__SANITIZE_ADDRESS__)
  return 1;  // a red zone around every block finds more
#endif
  if (stride < kHugeBlockBytes) return 1;
  int64_t best = 1;
  double least = 2.0;
  for (int64_t n = 1; n <= 8; ++n) {
    const size_t bytes = n * stride;
    const double ratio = static_cast<double>(RoundUp(bytes, kHugePage)) / bytes;
    if (ratio < least) {
      least = ratio;
      best = n;
    }
  }
  return best;
}

std::shared_ptr<uint8_t[]> AllocateOrdinary(size_t bytes) {
  auto* data = static_cast<uint8_t*>(std::aligned_alloc(64, bytes));
  if (data == nullptr) return nullptr;
  std::memset(data, 0, bytes);
  return {data, [](uint8_t* p) { std::free(p); }};
}

}  // namespace

struct BlockPool::Core {
  enum class State : uint8_t { kZero, kUsed, kStale };  // kZero: holds no memory
  struct Slab {
    std::shared_ptr<uint8_t[]> memory;
    std::vector<State> blocks;
    int64_t num_used = 0;
  };

  std::mutex mutex;
  size_t stride = 0;
  int64_t slab_blocks = 1;
  int64_t max_blocks = 0;
  int64_t num_used = 0, num_used_peak = 0;
  int64_t num_stale = 0;                     // returned, with whatever was in them
  std::vector<std::unique_ptr<Slab>> slabs;  // of more than one block

  Slab* FullestWithRoom();
  uint8_t* Take(Slab* slab, State* was);
  void Return(Slab* slab, uint8_t* data);
  void ZeroBlock(uint8_t* data) const;
};

BlockPool::BlockPool(size_t block_bytes, int64_t max_blocks)
    : block_bytes_(block_bytes), core_(std::make_shared<Core>()) {
  core_->stride = RoundUp(block_bytes, 64);
  core_->slab_blocks = BlocksPerSlab(core_->stride);
  core_->max_blocks = max_blocks;
}

// A new one if all are full; null if there is no memory.
BlockPool::Core::Slab* BlockPool::Core::FullestWithRoom() {
  Slab* best = nullptr;
  for (const auto& slab : slabs) {
    if (slab->num_used == slab_blocks) continue;
    if (best == nullptr || slab->num_used > best->num_used) best = slab.get();
  }
  if (best != nullptr) return best;
  auto slab = std::make_unique<Slab>();
  slab->memory = AllocateHuge(slab_blocks * stride);
  if (slab->memory == nullptr) return nullptr;
  slab->blocks.resize(slab_blocks, State::kZero);
  slabs.push_back(std::move(slab));
  return slabs.back().get();
}

// REQUIRES: it has room.
uint8_t* BlockPool::Core::Take(Slab* slab, State* was) {
  auto at = std::find(slab->blocks.begin(), slab->blocks.end(), State::kStale);
  if (at == slab->blocks.end())
    at = std::find(slab->blocks.begin(), slab->blocks.end(), State::kZero);
  *was = std::exchange(*at, State::kUsed);
  num_stale -= *was == State::kStale ? 1 : 0;
  ++slab->num_used;
  return slab->memory.get() + (at - slab->blocks.begin()) * stride;
}

// `slab` may be gone afterwards.
void BlockPool::Core::Return(Slab* slab, uint8_t* data) {
  State* block = &slab->blocks[(data - slab->memory.get()) / stride];
  *block = State::kStale;
  ++num_stale;
  --slab->num_used;
  if (num_stale <= slab_blocks) return;
  if (slab->num_used > 0) {
    ZeroBlock(data);
    *block = State::kZero;
    --num_stale;
    return;
  }
  num_stale -= std::count(slab->blocks.begin(), slab->blocks.end(), State::kStale);
  slabs.erase(std::find_if(slabs.begin(), slabs.end(),
                           [slab](const auto& other) { return other.get() == slab; }));
}

// Its whole pages go back to the system, which gives zeros the next time.
void BlockPool::Core::ZeroBlock(uint8_t* data) const {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(data), end = begin + stride;
  const uintptr_t first = RoundUp(begin, page), last = end / page * page;
  if (first >= last || madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) != 0) {
    std::memset(data, 0, stride);
    return;
  }
  std::memset(data, 0, first - begin);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
}

std::shared_ptr<uint16_t[]> BlockPool::Allocate() {
  Core& core = *core_;
  Core::Slab* slab = nullptr;
  uint8_t* data = nullptr;
  Core::State was = Core::State::kZero;
  {
    const std::lock_guard<std::mutex> lock(core.mutex);
    if (core.max_blocks > 0 && core.num_used >= core.max_blocks) return nullptr;
    if (core.slab_blocks > 1) {
      slab = core.FullestWithRoom();
      if (slab == nullptr) return nullptr;
      data = core.Take(slab, &was);
    }
    ++core.num_used;
    core.num_used_peak = std::max(core.num_used_peak, core.num_used);
  }
  if (data == nullptr) {  // small blocks are the allocator's business, one by one
    const std::shared_ptr<uint8_t[]> memory = AllocateOrdinary(core.stride);
    if (memory == nullptr) {
      const std::lock_guard<std::mutex> lock(core.mutex);
      --core.num_used;
      return nullptr;
    }
    return {reinterpret_cast<uint16_t*>(memory.get()), [memory, core = core_](uint16_t*) {
              const std::lock_guard<std::mutex> lock(core->mutex);
              --core->num_used;
            }};
  }
  // What another sequence left must not end up in a session file.
  if (was == Core::State::kStale) std::memset(data, 0, core.stride);
  return {reinterpret_cast<uint16_t*>(data), [core = core_, slab](uint16_t* p) {
            const std::lock_guard<std::mutex> lock(core->mutex);
            --core->num_used;
            core->Return(slab, reinterpret_cast<uint8_t*>(p));
          }};
}

size_t BlockPool::resident_bytes() const {
  const std::lock_guard<std::mutex> lock(core_->mutex);
  int64_t blocks = 0;
  for (const auto& slab : core_->slabs)
    blocks += slab->blocks.size() -
              std::count(slab->blocks.begin(), slab->blocks.end(), Core::State::kZero);
  return blocks * core_->stride;
}

void BlockPool::set_max_blocks(int64_t max_blocks) {
  const std::lock_guard<std::mutex> lock(core_->mutex);
  core_->max_blocks = max_blocks;
}

int64_t BlockPool::max_blocks() const {
  const std::lock_guard<std::mutex> lock(core_->mutex);
  return core_->max_blocks;
}

int64_t BlockPool::num_used() const {
  const std::lock_guard<std::mutex> lock(core_->mutex);
  return core_->num_used;
}

int64_t BlockPool::num_used_peak() const {
  const std::lock_guard<std::mutex> lock(core_->mutex);
  return core_->num_used_peak;
}

}  // namespace vericache
