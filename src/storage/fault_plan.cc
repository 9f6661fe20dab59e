#include "storage/fault_plan.h"

#include <cerrno>

#include "storage/spill_file.h"

namespace vericache {

bool FaultPlan::Hit(int per_1000) {
  return per_1000 > 0 && static_cast<int>(random_() % 1000) < per_1000;
}

size_t FaultPlan::ShortOf(size_t bytes) {
  const size_t pages = bytes / kSpillAlign;
  if (pages < 2) return bytes;
  return (1 + random_() % (pages - 1)) * kSpillAlign;
}

FaultPlan::Fault FaultPlan::NextRead(size_t bytes) {
  const std::lock_guard lock(mutex_);
  ++num_reads_;
  Fault fault;
  if (num_reads_ == options_.eio_at_read || Hit(options_.read_errors_per_1000)) fault.error = EIO;
  if (Hit(options_.short_reads_per_1000)) fault.bytes_max = ShortOf(bytes);
  if (options_.delay_us_max > 0 && Hit(options_.delays_per_1000)) {
    fault.delay_us = static_cast<int64_t>(random_() % options_.delay_us_max);
  }
  return fault;
}

FaultPlan::Fault FaultPlan::NextWrite(size_t bytes) {
  const std::lock_guard lock(mutex_);
  ++num_writes_;
  Fault fault;
  if (num_writes_ == options_.eio_at_write) fault.error = EIO;
  if (options_.enospc_from_write > 0 && num_writes_ >= options_.enospc_from_write) {
    fault.error = ENOSPC;
  }
  if (Hit(options_.short_writes_per_1000)) fault.bytes_max = ShortOf(bytes);
  return fault;
}

void FaultPlan::AllowWrites() {
  const std::lock_guard lock(mutex_);
  options_.enospc_from_write = 0;
}

int64_t FaultPlan::num_reads() const {
  const std::lock_guard lock(mutex_);
  return num_reads_;
}

int64_t FaultPlan::num_writes() const {
  const std::lock_guard lock(mutex_);
  return num_writes_;
}

}  // namespace vericache
