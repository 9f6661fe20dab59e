// Aligned memory and recognisable bytes for the tests of spilled K/V.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "storage/spill_file.h"

namespace vericache {

struct FreeDeleter {
  void operator()(uint8_t* p) const { std::free(p); }
};
using AlignedBytes = std::unique_ptr<uint8_t[], FreeDeleter>;

inline AlignedBytes MakeAligned(size_t bytes, uint8_t fill = 0) {
  auto* p = static_cast<uint8_t*>(std::aligned_alloc(kSpillAlign, bytes));
  std::memset(p, fill, bytes);
  return AlignedBytes(p);
}

// Every 8-byte word differs from all others of the same seed, so that no wrong offset goes unseen.
inline void FillPattern(uint8_t* data, size_t bytes, uint64_t offset, uint64_t seed) {
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = (offset + i) * 0x9E3779B97F4A7C15u ^ seed * 0xD1B54A32D192ED03u;
    std::memcpy(data + i, &word, 8);
  }
}

inline bool HasPattern(const uint8_t* data, size_t bytes, uint64_t offset, uint64_t seed) {
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t got = 0;
    std::memcpy(&got, data + i, 8);
    if (got != ((offset + i) * 0x9E3779B97F4A7C15u ^ seed * 0xD1B54A32D192ED03u)) return false;
  }
  return true;
}

inline absl::Status WritePattern(SpillFile* file, uint64_t offset, size_t bytes, uint64_t seed) {
  const AlignedBytes data = MakeAligned(bytes);
  FillPattern(data.get(), bytes, offset, seed);
  return file->Write(offset, data.get(), bytes);
}

// An empty folder that goes at the end.
class TempFolder {
 public:
  TempFolder() : path_(testing::TempDir() + "/vericache_spill_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TempFolder() { (void)rmdir(path_.c_str()); }  // fails if a file has kept its name
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace vericache
