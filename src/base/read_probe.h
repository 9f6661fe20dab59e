// What a plain read of memory gives on this machine, now: the limit of a decode step, which does
// little more than read the weights and the K/V once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/thread_pool.h"

namespace vericache {

class ReadProbe {
 public:
  // Maps and writes a buffer that no cache holds. ok() is false if there is no memory for it.
  explicit ReadProbe(ThreadPool* pool);
  ReadProbe(const ReadProbe&) = delete;
  ReadProbe& operator=(const ReadProbe&) = delete;

  bool ok() const { return data_ != nullptr; }
  // Bytes a second (in 1e9) of the best of `num_tries` reads of the buffer by all threads of the
  // pool: the best, because neighbours on a shared machine only ever slow a read down.
  // REQUIRES: ok().
  double BestGbps(int num_tries);

 private:
  ThreadPool* const pool_;
  const std::shared_ptr<uint8_t[]> memory_;
  uint64_t* const data_;
};

}  // namespace vericache
