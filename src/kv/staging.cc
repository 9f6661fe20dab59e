#include "kv/staging.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/huge_memory.h"
#include "storage/spill_file.h"

namespace vericache {
namespace {

// Small pools (tests, tiny budgets) would waste most of a huge page.
std::shared_ptr<uint8_t[]> Allocate(size_t bytes) {
  if (bytes >= kHugePage) return AllocateHuge(bytes);
  auto* data = static_cast<uint8_t*>(std::aligned_alloc(kSpillAlign, bytes));
  if (data == nullptr) return nullptr;
  std::memset(data, 0, bytes);
  return {data, [](uint8_t* p) { std::free(p); }};
}

}  // namespace

StagingPool::Reservation::Reservation(Reservation&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), slots_(std::move(other.slots_)) {
  other.slots_.clear();
}

StagingPool::Reservation& StagingPool::Reservation::operator=(Reservation&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(slots_, other.slots_);
  return *this;
}

StagingPool::Reservation::~Reservation() {
  if (pool_ != nullptr) pool_->Return(std::move(slots_));
}

absl::StatusOr<std::unique_ptr<StagingPool>> StagingPool::Create(size_t num_slots,
                                                                 size_t slot_bytes) {
  if (slot_bytes == 0 || slot_bytes % kSpillAlign != 0 || num_slots == 0 ||
      num_slots > (size_t{1} << 46) / slot_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("staging memory of ", num_slots, " slots of ", slot_bytes,
                     " bytes is impossible; slots are whole pages of ", kSpillAlign, " bytes"));
  }
  std::shared_ptr<uint8_t[]> memory = Allocate(num_slots * slot_bytes);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", num_slots * slot_bytes,
                                                     " bytes of staging; lower the KV budget"));
  }
  return std::unique_ptr<StagingPool>(new StagingPool(std::move(memory), num_slots, slot_bytes));
}

StagingPool::StagingPool(std::shared_ptr<uint8_t[]> memory, size_t num_slots, size_t slot_bytes)
    : memory_(std::move(memory)), num_slots_(num_slots), slot_bytes_(slot_bytes) {
  free_.reserve(num_slots);
  for (size_t i = 0; i < num_slots; ++i) free_.push_back(num_slots - 1 - i);
}

StagingPool::~StagingPool() { VC_CHECK(free_.size() == num_slots_); }

absl::StatusOr<StagingPool::Reservation> StagingPool::Reserve(size_t num_slots) {
  const std::lock_guard lock(mutex_);
  if (num_slots > free_.size()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        num_slots, " staging slots of ", slot_bytes_, " bytes are wanted, ", free_.size(), " of ",
        num_slots_, " are free; wait for another request to end or raise the KV budget"));
  }
  std::vector<size_t> slots;
  slots.reserve(num_slots);
  for (size_t i = 0; i < num_slots; ++i) {
    slots.push_back(free_.back());
    free_.pop_back();
  }
  num_used_max_ = std::max(num_used_max_, num_slots_ - free_.size());
  return Reservation(this, std::move(slots));
}

void StagingPool::Return(std::vector<size_t> slots) {
  const std::lock_guard lock(mutex_);
  free_.insert(free_.end(), slots.begin(), slots.end());
  std::sort(free_.begin(), free_.end(), std::greater<>());
}

size_t StagingPool::num_free() const {
  const std::lock_guard lock(mutex_);
  return free_.size();
}

size_t StagingPool::num_used_max() const {
  const std::lock_guard lock(mutex_);
  return num_used_max_;
}

}  // namespace vericache
