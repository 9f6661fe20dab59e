// Recent sequences kept in RAM: prefixes that the next prompt may begin with.
//
// Entries share blocks with running sequences and with each other (FullKv::Fork, copy on write), so
// a prefix costs its bytes once. The match is by token, not by block: token ids are compared, so
// nothing can collide. Least recently used entries go when the budget is exceeded.
// THREADS: one call at a time, on the thread that runs the engine.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "kv/draft_kv.h"
#include "kv/full_kv.h"
#include "kv/selectors/score_io.h"

namespace vericache {

// Entries at most, whatever they weigh: a look-up compares the prompt with each of them.
inline constexpr size_t kMaxMemoryPrefixes = 256;

struct MemoryPrefix {
  struct Draft {
    std::string spec;
    int64_t num_tokens = 0;  // that it stands for, from position 0
    DraftKv kv;
  };
  std::string salt;
  std::vector<TokenId> tokens;  // [full.num_tokens()]
  FullKv full;
  std::vector<Draft> drafts;
  ScoreSets scores;
};

class MemoryPrefixes {
 public:
  explicit MemoryPrefixes(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  struct Match {
    std::shared_ptr<const MemoryPrefix> prefix;  // null: none. Holds though it may be evicted
    int64_t num_tokens = 0;                      // that the prompt begins with
  };
  // The entry of this salt that shares most tokens with `tokens`; it counts as used.
  Match Find(std::string_view salt, absl::Span<const TokenId> tokens);
  // Takes the place of an entry that it continues; joins one that continues it.
  void Add(MemoryPrefix prefix);

  // Evicts what is too much at once.
  void set_max_bytes(uint64_t max_bytes);
  uint64_t num_bytes() const { return num_bytes_; }
  int64_t evicted() const { return evicted_; }

 private:
  static void Merge(MemoryPrefix* from, MemoryPrefix* to);
  uint64_t CountBytes() const;
  void MakeRoom();

  uint64_t max_bytes_;
  std::list<std::shared_ptr<MemoryPrefix>> entries_;  // most recently used first
  uint64_t num_bytes_ = 0;
  int64_t evicted_ = 0;
};

}  // namespace vericache
