// Draft KVs that a serving node has fetched, kept for the next request that begins alike: what
// crosses the slow link crosses it once.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/types.h"
#include "kv/draft_kv.h"

namespace vericache {

// THREADS: none; one owner calls.
class DraftShelf {
 public:
  explicit DraftShelf(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // A copy of the longest draft KV over a beginning of `prompt`. One of less than half of it is not
  // given: the store may have a longer one.
  std::optional<DraftKv> Find(absl::Span<const TokenId> prompt, const std::string& salt,
                              const std::string& spec);
  // Least recently used ones go; one that is too large is not kept.
  void Put(absl::Span<const TokenId> prompt, const std::string& salt, const std::string& spec,
           const DraftKv& draft);
  // Gives up at least so many bytes, or all there are.
  void Free(uint64_t bytes);
  uint64_t num_bytes() const { return num_bytes_; }

 private:
  struct Entry {
    std::string salt, spec;
    std::vector<TokenId> tokens;  // [draft.num_tokens()]
    DraftKv draft;
    uint64_t bytes = 0;
  };
  std::list<Entry>::iterator Longest(absl::Span<const TokenId> prompt, const std::string& salt,
                                     const std::string& spec);

  const uint64_t max_bytes_;
  uint64_t num_bytes_ = 0;
  std::list<Entry> entries_;  // the most recently used one first
};

}  // namespace vericache
