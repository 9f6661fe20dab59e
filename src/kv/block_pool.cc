#include "kv/block_pool.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
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
  std::mutex mutex;
  size_t stride = 0;
  int64_t slab_blocks = 1;
  int64_t max_blocks = 0;
  int64_t num_used = 0, num_used_peak = 0;
  std::vector<std::shared_ptr<uint8_t[]>> slabs;  // of more than one block
  std::vector<uint8_t*> fresh;                    // zeros
  std::vector<uint8_t*> returned;                 // with whatever was in them
};

BlockPool::BlockPool(size_t block_bytes, int64_t max_blocks)
    : block_bytes_(block_bytes), core_(std::make_shared<Core>()) {
  core_->stride = RoundUp(block_bytes, 64);
  core_->slab_blocks = BlocksPerSlab(core_->stride);
  core_->max_blocks = max_blocks;
}

std::shared_ptr<uint16_t[]> BlockPool::Allocate() {
  Core& core = *core_;
  uint8_t* data = nullptr;
  bool stale = false;
  {
    const std::lock_guard<std::mutex> lock(core.mutex);
    if (core.max_blocks > 0 && core.num_used >= core.max_blocks) return nullptr;
    if (!core.returned.empty()) {
      data = core.returned.back();
      core.returned.pop_back();
      stale = true;
    } else if (core.slab_blocks > 1) {
      if (core.fresh.empty()) {
        std::shared_ptr<uint8_t[]> slab = AllocateHuge(core.slab_blocks * core.stride);
        if (slab == nullptr) return nullptr;
        for (int64_t i = core.slab_blocks - 1; i >= 0; --i)
          core.fresh.push_back(slab.get() + i * core.stride);
        core.slabs.push_back(std::move(slab));
      }
      data = core.fresh.back();
      core.fresh.pop_back();
    }
    ++core.num_used;
    core.num_used_peak = std::max(core.num_used_peak, core.num_used);
  }
  const auto give_up = [&core] {
    const std::lock_guard<std::mutex> lock(core.mutex);
    --core.num_used;
  };
  if (data == nullptr) {  // small blocks are the allocator's business, one by one
    const std::shared_ptr<uint8_t[]> memory = AllocateOrdinary(core.stride);
    if (memory == nullptr) {
      give_up();
      return nullptr;
    }
    return {reinterpret_cast<uint16_t*>(memory.get()), [memory, core = core_](uint16_t*) {
              const std::lock_guard<std::mutex> lock(core->mutex);
              --core->num_used;
            }};
  }
  // What another sequence left must not end up in a session file.
  if (stale) std::memset(data, 0, core.stride);
  return {reinterpret_cast<uint16_t*>(data), [core = core_](uint16_t* p) {
            const std::lock_guard<std::mutex> lock(core->mutex);
            core->returned.push_back(reinterpret_cast<uint8_t*>(p));
            --core->num_used;
          }};
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
