// Finds the first of some stop strings in text that comes in pieces, and holds back what may still
// become one (case 37).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace vericache {

// The match that ends first wins; of those that end together, the longest. So how the text is cut
// into pieces does not show. Copies are independent.
class StopMatcher {
 public:
  StopMatcher() = default;  // nothing stops
  // REQUIRES: no empty string.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // The text that may be shown now: no stop string can begin in it any more. Nothing comes after a
  // match. COST: linear in the text, whatever the strings.
  std::string Push(std::string_view text);
  // The text is over: what was held back.
  std::string Flush();

  bool matched() const { return matched_; }
  const std::string& stop() const { return stop_; }  // that matched, or ""

 private:
  // Knuth-Morris-Pratt, one for each string.
  struct Stop {
    std::string text;
    std::vector<size_t> failure;  // [i]: longest proper border of text's first i + 1 bytes
    size_t state = 0;             // bytes of `text` that the end of what came in equals
  };
  static void Advance(char byte, Stop* stop);

  std::vector<Stop> stops_;
  std::string held_;  // not shown yet; what every state refers to lies in it
  bool matched_ = false;
  std::string stop_;
};

}  // namespace vericache
