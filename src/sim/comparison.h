// Two questions the simulator answers with numbers: what staggering is worth against lock-step, and
// how far the controller is from the best fixed choice in hindsight.
#pragma once

#include <string>
#include <vector>

namespace vericache {

// The same requests, arriving together, under both policies.
struct StaggerRow {
  int num_requests = 0;
  int draft_len = 0;
  double budget_share = 0;    // of all full KV: draft KV and staging
  double staging_share = 0;   // of one full KV
  double transfer_share = 0;  // total transfer over total compute, both measured
  double lock_step_tokens_per_s = 0, staggered_tokens_per_s = 0;
  double lock_step_hidden = 0, staggered_hidden = 0;  // share of transfer time behind compute
  double ideal_gain = 0;  // were the longer of transfer and compute all that takes time
  double gain() const { return staggered_tokens_per_s / lock_step_tokens_per_s; }
};
std::vector<StaggerRow> CompareStagger();
// The staggered run of one row, each step printed.
void PrintStaggerRun(int row);
std::string StaggerTable(const std::vector<StaggerRow>& rows);

// One request: the controller against plain decoding and against each fixed draft length.
struct RegretRow {
  std::string costs;       // where the KV is and what it costs
  std::string acceptance;  // of the draft KV
  double plain_tokens_per_s = 0, auto_tokens_per_s = 0, best_tokens_per_s = 0;
  int best_draft_len = 0;  // 0: plain decoding is the best
  double model_error = 0;  // of the step predictions, mean
  double against_plain() const { return auto_tokens_per_s / plain_tokens_per_s; }
  double against_best() const { return auto_tokens_per_s / best_tokens_per_s; }
};
// Every `stride`-th row of the table: 1 is all.
std::vector<RegretRow> CompareController(int stride);
// One row of it, each step printed: `row` counts from 0.
void PrintControllerRun(int row);
std::string RegretTable(const std::vector<RegretRow>& rows);

}  // namespace vericache
