// Finds special tokens written out in text: at each place the longest one, from left to right.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "base/types.h"

namespace vericache {

class SpecialSplitter {
 public:
  // The longest text a special token may have: bounds the work at each position of the text.
  static constexpr size_t kMaxTokenBytes = 1024;

  // REQUIRES: 0 < token_text.size() <= kMaxTokenBytes.
  void Add(std::string_view token_text, TokenId id);

  // Calls `visit(part, id)` in order: id >= 0 is a special token, id -1 other text (not empty).
  // COST: linear in the text, times the length of the longest partial match.
  void Split(std::string_view text, absl::FunctionRef<void(std::string_view, TokenId)> visit) const;

 private:
  struct Node {
    TokenId id = -1;  // the token that ends here
    absl::flat_hash_map<char, int32_t> children;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);  // a trie; nodes_[0] is its root
};

}  // namespace vericache
