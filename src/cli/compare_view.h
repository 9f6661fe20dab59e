// The first rounds of an answer in a form that needs no terminal, a line each:
// [draft: a| b| c][kept 2 of 3, corrected: x]. On a terminal LiveView (rounds_view.h) serves.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vericache/stats.h"

namespace vericache::cli {

class StaticRounds {
 public:
  // `token_text` gives the text of one token. Rounds after `num_rounds_max` are only counted.
  StaticRounds(std::FILE* out, std::function<std::string(int32_t id)> token_text,
               int num_rounds_max)
      : out_(out), token_text_(std::move(token_text)), num_rounds_max_(num_rounds_max) {}

  // Text before the first round is shown: the token that the prefill gave. The rest is not.
  void OnText(std::string_view text);
  void OnRound(const RoundView& view);
  // After the last round: how many were not shown.
  void Finish();

 private:
  std::FILE* out_;
  std::function<std::string(int32_t id)> token_text_;
  const int num_rounds_max_;
  int num_rounds_ = 0;
  bool in_rounds_ = false;
  std::vector<int32_t> drafted_;  // of the round that is running
};

// One round as a line, without the line break. `drafted` is what was proposed; `view` has ended.
std::string RoundLine(const std::vector<int32_t>& drafted, const RoundView& view,
                      const std::function<std::string(int32_t id)>& token_text);

}  // namespace vericache::cli
