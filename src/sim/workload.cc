#include "sim/workload.h"

#include <algorithm>

#include "sim/sim_random.h"

namespace vericache {
namespace {

AcceptanceModel DrawAcceptance(SimRandom* random) {
  AcceptanceModel model;
  for (int i = 1; i < kNumDraftModes; ++i) {
    model.agreement[i] = random->Chance(0.15) ? 0 : random->Between(0.2, 1.0);
    model.other_agreement[i] = random->Between(0, 1);
  }
  if (random->Chance(0.3)) model.stretch_tokens = random->Int(5, 60);
  if (random->Chance(0.1)) {
    for (int i = 0; i < 5; ++i) model.trace_runs.push_back(static_cast<int>(random->Int(0, 60)));
  }
  model.position_decay = random->Chance(0.5) ? 1 : random->Between(0.95, 1);
  model.confidence_skill = random->Uniform();
  model.proposal_chance = random->Uniform();
  return model;
}

SimRequest DrawRequest(RequestId id, const HardwareModel& hw, SimRandom* random) {
  SimRequest request;
  RequestInfo& info = request.info;
  info.id = id;
  info.priority = random->Chance(0.3) ? static_cast<int>(random->Int(-2, 2)) : 0;
  info.prompt_tokens = static_cast<int64_t>(random->LogBetween(1, 3000));
  info.cached_tokens = random->Chance(0.3) ? random->Int(0, info.prompt_tokens - 1) : 0;
  info.max_tokens = static_cast<int64_t>(random->LogBetween(1, 120));
  info.full_bytes_per_token = static_cast<int64_t>(hw.full_bytes_per_token);
  info.draft_bytes_per_token =
      static_cast<int64_t>(hw.full_bytes_per_token * random->Between(0.03, 0.4));
  info.tail_bytes_per_token = info.full_bytes_per_token;
  info.fixed_bytes = random->Int(0, 2) * kBlockTokens * info.full_bytes_per_token;
  info.min_staging_bytes =
      (info.prompt_tokens + info.max_tokens) * info.full_bytes_per_token / 12 + 4096;
  info.modes = static_cast<uint32_t>(random->Int(0, (1 << kNumDraftModes) - 1));
  if (random->Chance(0.2)) info.fixed_draft_len = static_cast<int>(random->Int(0, kMaxDraftLen));
  if (random->Chance(0.2)) info.max_burst_s = random->LogBetween(0.01, 10);
  request.answer_tokens = random->Int(1, 2 * info.max_tokens);
  request.draft_share = random->Between(0.5, 1);
  request.acceptance = DrawAcceptance(random);
  return request;
}

void MakeRemote(SimRequest* request, SimRandom random) {
  RequestInfo& info = request->info;
  info.remote = true;
  info.modes = ModeBit(DraftMode::kPlain);
  info.fixed_draft_len = kAutoDraftLen;
  info.max_burst_s = 0;
  const int64_t most = std::min(info.max_tokens, request->answer_tokens) - 1;
  if (random.Chance(0.2)) info.emitted_tokens = random.Int(0, most);
  request->think_s = random.LogBetween(0.001, 2);
  request->lull_chance = random.Chance(0.3) ? 0.1 : 0;
  request->most_drafted = static_cast<int>(random.Int(0, random.Chance(0.3) ? kMaxDraftLen : 24));
}

void DrawLimits(Scenario* scenario, SimRandom* random) {
  int64_t all_full = 0, max_staging = 0;
  for (const SimRequest& request : scenario->requests) {
    const RequestInfo& info = request.info;
    all_full +=
        RoundUp(info.prompt_tokens + info.max_tokens, kBlockTokens) * info.full_bytes_per_token;
    max_staging = std::max(max_staging, info.min_staging_bytes);
  }
  Limits& limits = scenario->limits;
  limits.kv_bytes =
      static_cast<int64_t>(static_cast<double>(all_full) * random->LogBetween(0.05, 2)) + 1;
  if (random->Chance(0.8)) {
    limits.staging_bytes =
        static_cast<int64_t>(static_cast<double>(max_staging) * random->LogBetween(0.5, 4));
    limits.staging_bytes = std::min(limits.staging_bytes, limits.kv_bytes);
  }
  if (random->Chance(0.75)) {
    limits.spill_bytes =
        static_cast<int64_t>(static_cast<double>(all_full) * random->LogBetween(0.2, 4));
  }
  limits.max_pass_rows = static_cast<int64_t>(random->LogBetween(1, 1024));
  const int64_t block = kBlockTokens * scenario->requests[0].info.full_bytes_per_token;
  limits.prefill_bytes =
      std::min(CeilDiv(limits.max_pass_rows, kBlockTokens) * block, limits.kv_bytes / 8);
  limits.max_running = static_cast<int>(random->Int(1, 8));
  limits.prefill_chunk_s = random->LogBetween(0.001, 1);
  limits.aging_s = random->LogBetween(0.1, 100);
  limits.link_bytes_per_s = random->LogBetween(1e7, 1e11);
  limits.pass = PassGuess::Of(random->LogBetween(1e-4, 1));
  scenario->prefix_cache_bytes = random->Chance(0.5) ? limits.kv_bytes : 0;
}

// Little prompt, much answer, hardly room for more than one: memory runs out while decoding.
void MakeTight(Scenario* scenario, SimRandom* random) {
  int64_t largest = 0;
  for (SimRequest& request : scenario->requests) {
    RequestInfo& info = request.info;
    info.prompt_tokens = random->Int(1, 100);
    info.cached_tokens = 0;
    info.max_tokens = random->Int(64, 400);
    info.min_staging_bytes =
        (info.prompt_tokens + info.max_tokens) * info.full_bytes_per_token / 12 + 4096;
    request.answer_tokens = random->Int(32, 500);
    request.arrival_s *= 0.1;
    const int64_t tokens = info.prompt_tokens + info.max_tokens;
    const int64_t full = RoundUp(tokens, kBlockTokens) * info.full_bytes_per_token;
    largest = std::max(largest, info.fixed_bytes + full + tokens * info.draft_bytes_per_token);
  }
  Limits& limits = scenario->limits;
  const bool spills = random->Chance(0.3);
  limits.spill_bytes = spills ? limits.spill_bytes : 0;
  limits.staging_bytes = spills ? limits.staging_bytes : 0;
  limits.kv_bytes = limits.staging_bytes +
                    static_cast<int64_t>(static_cast<double>(largest) * random->Between(0.9, 2));
  limits.max_pass_rows = std::max<int64_t>(limits.max_pass_rows, 8);
  limits.max_running = 8;
}

}  // namespace

Scenario MakeScenario(uint64_t seed) {
  SimRandom random(seed * 0x2545f4914f6cdd1dull + 1);
  Scenario scenario;
  scenario.seed = seed;
  const char* const kNames[] = {"cpu-gqa", "cpu-gqa3", "cpu-mha", "gpu"};
  scenario.hardware = NamedHardware(kNames[random.Int(0, 3)]);
  scenario.hardware.noise = random.Chance(0.5) ? 0 : random.Between(0, 0.4);
  scenario.hardware.link_bytes_per_s *= random.LogBetween(0.05, 5);
  const int64_t num_requests = random.Int(1, 7);
  double arrival_s = 0;
  for (RequestId id = 0; id < num_requests; ++id) {
    SimRandom own = random.Fork(static_cast<uint64_t>(id));
    SimRequest request = DrawRequest(id, scenario.hardware, &own);
    if (!own.Chance(0.4)) arrival_s += own.LogBetween(0.01, 3);
    request.arrival_s = arrival_s;
    if (own.Chance(0.2)) request.cancel_s = arrival_s + own.LogBetween(0.01, 5);
    scenario.requests.push_back(std::move(request));
  }
  // Streams of their own, so that scenarios without remote requests stay what they were.
  SimRandom remote = random.Fork(1000);
  const double remote_share = remote.Chance(0.4) ? remote.Between(0.3, 1.3) : 0;
  DrawLimits(&scenario, &random);
  if (random.Chance(0.25)) MakeTight(&scenario, &random);
  if (random.Chance(0.3)) scenario.options.stagger = StaggerPolicy::kLockStep;
  if (random.Chance(0.4)) {
    scenario.faults.retry_chance = random.Chance(0.5) ? random.Between(0, 0.5) : 0;
    scenario.faults.fail_chance = random.Chance(0.5) ? 0.02 : 0;
    scenario.faults.slow_chance = random.Chance(0.5) ? 0.2 : 0;
    scenario.faults.short_chance = random.Chance(0.5) ? 0.2 : 0;
    scenario.faults.gives_up_chance = random.Chance(0.3) ? 0.1 : 0;
  }
  for (SimRequest& request : scenario.requests)
    if (remote.Chance(remote_share))
      MakeRemote(&request, remote.Fork(static_cast<uint64_t>(request.info.id)));
  return scenario;
}

}  // namespace vericache
