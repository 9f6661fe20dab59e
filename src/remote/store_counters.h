// What a store far away has seen, counted by calls on many threads.
#pragma once

#include <atomic>
#include <cstdint>

#include "storage/blob_store.h"

namespace vericache {

struct StoreCounters {
  std::atomic<int64_t> damaged{0}, failed_puts{0};
  std::atomic<uint64_t> read_bytes{0}, written_bytes{0};

  BlobStoreStats Stats() const {
    BlobStoreStats stats;
    stats.damaged = damaged;
    stats.failed_puts = failed_puts;
    stats.read_bytes = read_bytes;
    stats.written_bytes = written_bytes;
    return stats;
  }
};

}  // namespace vericache
