#include "sim/comparison.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "sim/simulation.h"

namespace vericache {
namespace {

constexpr int64_t kAnswerTokens = 400;

// Requests whose prompt is there already, so that decoding is all that is timed.
SimRequest DecodingRequest(RequestId id, const HardwareModel& hw, int64_t context) {
  SimRequest request;
  RequestInfo& info = request.info;
  info.id = id;
  info.prompt_tokens = context;
  info.cached_tokens = context - 1;
  info.max_tokens = kAnswerTokens;
  info.full_bytes_per_token = static_cast<int64_t>(hw.full_bytes_per_token);
  info.draft_bytes_per_token = info.full_bytes_per_token * 9 / 100;
  info.tail_bytes_per_token = info.full_bytes_per_token;
  info.min_staging_bytes = (context + kAnswerTokens) * info.full_bytes_per_token / 12;
  request.answer_tokens = kAnswerTokens;
  request.acceptance.agreement.fill(0.97);
  return request;
}

int64_t FullBytes(const Scenario& scenario) {
  const RequestInfo& info = scenario.requests[0].info;
  return RoundUp(info.prompt_tokens + info.max_tokens, kBlockTokens) * info.full_bytes_per_token;
}

SimStats MustRun(const Scenario& scenario) {
  const absl::StatusOr<SimStats> stats = RunScenario(scenario, {});
  if (!stats.ok()) std::fprintf(stderr, "%s\n", std::string(stats.status().message()).c_str());
  VC_CHECK(stats.ok());
  return *stats;
}

double TokensPerSecond(const SimStats& stats) {
  return static_cast<double>(stats.num_emitted) / stats.seconds;
}

// The budget holds every request's draft KV and the staging ring, and next to no hot blocks.
Scenario StaggerScenario(int num_requests, int draft_len, double staging_share) {
  Scenario scenario;
  scenario.seed = 7;
  scenario.hardware = NamedHardware("cpu-gqa");
  for (int i = 0; i < num_requests; ++i) {
    scenario.requests.push_back(DecodingRequest(i, scenario.hardware, 8192));
    scenario.requests.back().info.fixed_draft_len = draft_len;
  }
  const int64_t full = FullBytes(scenario);
  scenario.limits.staging_bytes = static_cast<int64_t>(staging_share * static_cast<double>(full));
  scenario.limits.kv_bytes = scenario.limits.staging_bytes + num_requests * full * 11 / 100;
  scenario.limits.spill_bytes = 2 * num_requests * full;
  scenario.limits.max_running = num_requests;
  return scenario;
}

double HiddenShare(const SimStats& stats) { return 1 - stats.stall_s / stats.link_busy_s; }

struct StaggerCase {
  int num_requests, draft_len;
  double staging_share, transfer_share;
};
constexpr StaggerCase kStaggerCases[] = {
    {4, 16, 0.10, 1.0},  {4, 16, 0.10, 1.25}, {4, 16, 0.10, 1.5},  {4, 16, 0.25, 1.0},
    {4, 16, 0.25, 1.25}, {4, 16, 0.25, 1.5},  {4, 16, 0.5, 1.0},   {4, 16, 0.5, 1.25},
    {4, 16, 0.5, 1.5},   {8, 16, 0.10, 1.0},  {8, 16, 0.10, 1.25}, {8, 16, 0.10, 1.5},
    {8, 16, 0.25, 1.0},  {8, 16, 0.25, 1.25}, {8, 16, 0.25, 1.5},  {8, 16, 0.5, 1.0},
    {8, 16, 0.5, 1.25},  {8, 16, 0.5, 1.5},
};

// The case with its link: transfer = share * compute, as lock-step measures them.
Scenario WithLink(const StaggerCase& c, StaggerPolicy policy) {
  Scenario scenario = StaggerScenario(c.num_requests, c.draft_len, c.staging_share);
  scenario.options.stagger = StaggerPolicy::kLockStep;
  scenario.hardware.link_bytes_per_s = 1e9;
  const SimStats probe = MustRun(scenario);
  scenario.hardware.link_bytes_per_s = 1e9 * probe.link_busy_s / probe.compute_s / c.transfer_share;
  scenario.options.stagger = policy;
  return scenario;
}

StaggerRow CompareStaggerAt(const StaggerCase& c) {
  const Scenario scenario = WithLink(c, StaggerPolicy::kLockStep);
  const SimStats lock_step = MustRun(scenario);
  const SimStats staggered = MustRun(WithLink(c, StaggerPolicy::kStaggered));
  StaggerRow row;
  row.num_requests = c.num_requests;
  row.draft_len = c.draft_len;
  row.staging_share = c.staging_share;
  row.budget_share = static_cast<double>(scenario.limits.kv_bytes) /
                     static_cast<double>(c.num_requests * FullBytes(scenario));
  row.transfer_share = lock_step.link_busy_s / lock_step.compute_s;
  row.ideal_gain = lock_step.seconds / std::max(lock_step.link_busy_s, lock_step.compute_s);
  row.lock_step_tokens_per_s = TokensPerSecond(lock_step);
  row.staggered_tokens_per_s = TokensPerSecond(staggered);
  row.lock_step_hidden = HiddenShare(lock_step);
  row.staggered_hidden = HiddenShare(staggered);
  return row;
}

struct CostCase {
  const char* name;
  const char* hardware;
  int64_t context;
  double link_bytes_per_s;  // 0: all in RAM
};
constexpr CostCase kCostCases[] = {
    {"RAM, 7 heads a KV head, 8K", "cpu-gqa", 8192, 0},
    {"RAM, 3 heads a KV head, 8K", "cpu-gqa3", 8192, 0},
    {"RAM, MHA, 16K", "cpu-mha", 16384, 0},
    {"GPU memory, 100K", "gpu", 100000, 0},
    {"disk 1 GB/s, 8K, an eighth", "cpu-gqa", 8192, 1e9},
    {"disk 1 GB/s, 32K, an eighth", "cpu-gqa", 32768, 1e9},
    {"disk 0.2 GB/s, 32K, an eighth", "cpu-gqa", 32768, 0.2e9},
};

struct AcceptanceCase {
  const char* name;
  double agreement, other;  // the other one in every second stretch of 60 tokens
};
constexpr AcceptanceCase kAcceptanceCases[] = {
    {"0", 0, 0},       {"0.3", 0.3, 0.3},         {"0.6", 0.6, 0.6},
    {"0.8", 0.8, 0.8}, {"0.9", 0.9, 0.9},         {"0.97", 0.97, 0.97},
    {"1", 1, 1},       {"0, then 0.98", 0, 0.98}, {"0.98, then 0", 0.98, 0},
};
constexpr int kFixedLengths[] = {1, 2, 4, 8, 16, 32, 64, 256};

Scenario ControllerScenario(const CostCase& costs, const AcceptanceCase& acceptance) {
  Scenario scenario;
  scenario.seed = 11;
  scenario.hardware = NamedHardware(costs.hardware);
  SimRequest request = DecodingRequest(0, scenario.hardware, costs.context);
  request.acceptance.agreement.fill(acceptance.agreement);
  request.acceptance.other_agreement.fill(acceptance.other);
  request.acceptance.stretch_tokens = acceptance.agreement == acceptance.other ? 0 : 60;
  scenario.requests.push_back(request);
  const int64_t full = FullBytes(scenario);
  if (costs.link_bytes_per_s > 0) {
    scenario.hardware.link_bytes_per_s = costs.link_bytes_per_s;
    scenario.limits.staging_bytes = request.info.min_staging_bytes + 4096;
    scenario.limits.kv_bytes = full / 8 + scenario.limits.staging_bytes;
    scenario.limits.spill_bytes = 2 * full;
  } else {
    scenario.limits.kv_bytes = 2 * full;
  }
  return scenario;
}

// Tokens after the first, over the time they took.
double DecodeRate(const SimStats& stats) {
  return static_cast<double>(stats.num_emitted - 1) / stats.decode_s;
}

RegretRow CompareControllerAt(const CostCase& costs, const AcceptanceCase& acceptance) {
  Scenario scenario = ControllerScenario(costs, acceptance);
  RequestInfo& info = scenario.requests[0].info;
  RegretRow row;
  row.costs = costs.name;
  row.acceptance = acceptance.name;
  const SimStats automatic = MustRun(scenario);
  row.auto_tokens_per_s = DecodeRate(automatic);
  row.model_error = automatic.predicted_error / static_cast<double>(automatic.num_steps);
  // Plain decoding in the same memory: with the draft KV beside it, though nobody reads it.
  info.fixed_draft_len = 0;
  row.plain_tokens_per_s = row.best_tokens_per_s = DecodeRate(MustRun(scenario));
  for (const int len : kFixedLengths) {
    info.fixed_draft_len = len;
    const double rate = DecodeRate(MustRun(scenario));
    if (rate <= row.best_tokens_per_s) continue;
    row.best_tokens_per_s = rate;
    row.best_draft_len = len;
  }
  return row;
}

}  // namespace

std::vector<StaggerRow> CompareStagger() {
  std::vector<StaggerRow> rows;
  for (const StaggerCase& c : kStaggerCases) rows.push_back(CompareStaggerAt(c));
  return rows;
}

void PrintStaggerRun(int row) {
  if (row < 0 || row >= static_cast<int>(std::size(kStaggerCases))) return;
  const StaggerCase& c = kStaggerCases[row];
  SimOptions options;
  options.verbose = true;
  VC_CHECK(RunScenario(WithLink(c, StaggerPolicy::kStaggered), options).ok());
}

std::string StaggerTable(const std::vector<StaggerRow>& rows) {
  std::string out =
      "| requests | drafted | budget | staging | transfer / compute | lock-step tok/s | staggered "
      "tok/s | gain | ideal | "
      "hidden, lock-step | hidden, staggered |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const StaggerRow& row : rows) {
    absl::StrAppendFormat(
        &out, "| %d | %d | %.2f | %.2f | %.2f | %.1f | %.1f | %.2fx | %.2fx | %.0f%% | %.0f%% |\n",
        row.num_requests, row.draft_len, row.budget_share, row.staging_share, row.transfer_share,
        row.lock_step_tokens_per_s, row.staggered_tokens_per_s, row.gain(), row.ideal_gain,
        100 * row.lock_step_hidden, 100 * row.staggered_hidden);
  }
  return out;
}

std::vector<RegretRow> CompareController(int stride) {
  std::vector<RegretRow> rows;
  int idx = 0;
  for (const CostCase& costs : kCostCases) {
    for (const AcceptanceCase& acceptance : kAcceptanceCases) {
      if (idx++ % stride == 0) rows.push_back(CompareControllerAt(costs, acceptance));
    }
  }
  return rows;
}

void PrintControllerRun(int row) {
  const int num_acceptances = std::size(kAcceptanceCases);
  const int cost_idx = row / num_acceptances;
  if (row < 0 || cost_idx >= static_cast<int>(std::size(kCostCases))) return;
  SimOptions options;
  options.verbose = true;
  const Scenario scenario =
      ControllerScenario(kCostCases[cost_idx], kAcceptanceCases[row % num_acceptances]);
  VC_CHECK(RunScenario(scenario, options).ok());
}

std::string RegretTable(const std::vector<RegretRow>& rows) {
  std::string out =
      "| costs | agreement | plain tok/s | best fixed tok/s | at x | controller tok/s | "
      "/ plain | / best | model error |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const RegretRow& row : rows) {
    absl::StrAppendFormat(&out, "| %s | %s | %.2f | %.2f | %d | %.2f | %.2fx | %.2fx | %.1f%% |\n",
                          row.costs, row.acceptance, row.plain_tokens_per_s, row.best_tokens_per_s,
                          row.best_draft_len, row.auto_tokens_per_s, row.against_plain(),
                          row.against_best(), 100 * row.model_error);
  }
  return out;
}

}  // namespace vericache
