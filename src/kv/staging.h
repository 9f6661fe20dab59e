// The memory through which spilled K/V passes on its way into a forward pass.
//
// One buffer, taken once, in slots of equal size. A stream reserves all the slots it will ever use
// before it starts, so that two streams can never wait for each other's slots.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vericache {

class StagingPool {
 public:
  // Slots that belong to one owner until it is destroyed. Must not outlive the pool.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&& other) noexcept;
    ~Reservation();

    size_t num_slots() const { return slots_.size(); }
    size_t slot_bytes() const { return pool_ != nullptr ? pool_->slot_bytes() : 0; }
    // [slot_bytes], on a 4 KiB boundary. Initialised; what an earlier owner left is in it.
    uint8_t* slot(size_t idx) const { return pool_->memory_.get() + slots_[idx] * slot_bytes(); }

   private:
    friend class StagingPool;
    Reservation(StagingPool* pool, std::vector<size_t> slots)
        : pool_(pool), slots_(std::move(slots)) {}
    StagingPool* pool_ = nullptr;
    std::vector<size_t> slots_;
  };

  // ERRORS: kInvalidArgument: slot_bytes is 0 or not a multiple of 4 KiB, or the product is too
  //         large; kResourceExhausted: no memory.
  static absl::StatusOr<std::unique_ptr<StagingPool>> Create(size_t num_slots, size_t slot_bytes);
  ~StagingPool();  // CHECKs that all slots are back
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // All `num_slots` or none.
  // ERRORS: kResourceExhausted, with the numbers wanted, free and in all.
  // THREADS: safe, and so is the end of a reservation.
  absl::StatusOr<Reservation> Reserve(size_t num_slots);

  size_t num_slots() const { return num_slots_; }
  size_t slot_bytes() const { return slot_bytes_; }
  size_t num_bytes() const { return num_slots_ * slot_bytes_; }
  size_t num_free() const;
  size_t num_used_max() const;  // the most slots that were ever reserved at once
  // For ReadQueueOptions::staging.
  std::shared_ptr<uint8_t[]> memory() const { return memory_; }

 private:
  StagingPool(std::shared_ptr<uint8_t[]> memory, size_t num_slots, size_t slot_bytes);
  void Return(std::vector<size_t> slots);

  const std::shared_ptr<uint8_t[]> memory_;
  const size_t num_slots_;
  const size_t slot_bytes_;
  mutable std::mutex mutex_;
  std::vector<size_t> free_;  // lowest on top
  size_t num_used_max_ = 0;
};

}  // namespace vericache
