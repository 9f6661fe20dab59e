#include "tests/support/engine_harness.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/check.h"
#include "base/types.h"
#include "kv/draft_spec.h"
#include "tests/support/tiny_model.h"

namespace vericache {

Harness::Harness(std::shared_ptr<const GgufFile> file, const std::string& isa, int num_threads)
    : pool_(num_threads) {
  const auto kernels = SelectKernels(isa);
  VC_CHECK(kernels.ok());
  auto model = Model::Load(std::move(file), *kernels, &pool_);
  VC_CHECK(model.ok());
  model_ = std::move(*model);
  forward_ = std::make_unique<Forward>(model_.get(), &pool_);
}

std::unique_ptr<Sequence> Harness::MakeSequence(const RunTask& task, const RunKnobs& knobs) {
  const ModelConfig& config = model_->config;
  auto s = std::make_unique<Sequence>(
      FullKv(config.kv_shape(), model_->kernels, knobs.tier),
      Sampler(task.sampling, config.vocab_size, config.vocab_size, model_->kernels));
  s->full.set_hot_blocks(knobs.hot_blocks);
  s->tokens = task.prompt;
  s->num_prompt = static_cast<int64_t>(task.prompt.size());
  s->max_tokens = task.max_tokens;
  const auto spec = ParseDraftSpec(knobs.draft);
  VC_CHECK(spec.ok());
  s->spec = *spec;
  s->repeat_prompt = {{1, 2}, {1, 3}, {4}};  // any tokens will do
  if (knobs.draft_len > 0) s->draft_length = DraftLength::Fixed(knobs.draft_len);
  s->adversary = knobs.adversary;
  s->ends_generation = [eos = task.eos](TokenId id) { return id == eos; };
  return s;
}

std::vector<RunResult> Harness::RunBatch(const std::vector<RunTask>& tasks,
                                         const std::vector<RunKnobs>& knobs) {
  std::vector<std::unique_ptr<Sequence>> sequences;
  std::vector<Sequence*> running;
  Prefill prefill(model_.get(), forward_.get(), &pool_);
  for (size_t i = 0; i < tasks.size(); ++i) {
    sequences.push_back(MakeSequence(tasks[i], knobs[i]));
    PrefillOptions options;
    options.chunk_rows = knobs[i].chunk;
    const absl::Status status = prefill.Run(sequences.back().get(), options);
    VC_CHECK(status.ok() || knobs[i].tier != nullptr);
    if (!status.ok()) sequences.back()->Fail(status);
    running.push_back(sequences.back().get());
  }
  RoundRunner runner(model_.get(), forward_.get(), &pool_);
  for (;;) {
    std::erase_if(running, [](Sequence* s) { return s->done(); });
    if (running.empty()) break;
    runner.Run(running);
  }
  std::vector<RunResult> results;
  for (const auto& s : sequences) {
    RunResult r;
    r.tokens.assign(s->tokens.begin() + s->num_prompt, s->tokens.end());
    r.hash = s->chain.Hex();
    r.finish = s->finish;
    r.error = s->error;
    r.bytes_read = s->full.stream_totals().bytes;
    r.rounds = static_cast<int64_t>(s->rounds.size());
    for (const RoundStats& round : s->rounds) {
      r.drafted += round.drafted;
      r.accepted += round.accepted;
    }
    results.push_back(std::move(r));
  }
  return results;
}

std::shared_ptr<KvTier> Harness::MakeTier(int64_t max_tokens, double staging_layers,
                                          ReadBackend backend,
                                          std::shared_ptr<FaultPlan> faults) const {
  const KvShape& shape = model_->config.kv_shape();
  KvTierOptions options;
  options.folder = std::filesystem::temp_directory_path();
  options.max_tokens = max_tokens;
  const int64_t slots = CeilDiv(CeilDiv(max_tokens, kBlockTokens), KvSlotBlocks(shape));
  options.staging_bytes =
      static_cast<size_t>(std::ceil(slots * staging_layers)) * KvSlotBytes(shape);
  options.backend = backend;
  options.faults = std::move(faults);
  absl::StatusOr<std::shared_ptr<KvTier>> tier = KvTier::Create(shape, options);
  VC_CHECK(tier.ok());
  return *std::move(tier);
}

RunResult Harness::Run(const RunTask& task, const RunKnobs& knobs) {
  return RunBatch({task}, {knobs})[0];
}

std::vector<float> Harness::AllLogits(const std::vector<TokenId>& tokens, int64_t chunk) {
  RunTask task;
  task.prompt = tokens;
  const std::unique_ptr<Sequence> s = MakeSequence(task, {});
  Prefill prefill(model_.get(), forward_.get(), &pool_);
  std::vector<float> all;
  PrefillOptions options;
  options.chunk_rows = chunk;
  VC_CHECK(prefill
               .Score(s.get(), options, 0,
                      [&](int64_t, const float* logits) {
                        all.insert(all.end(), logits, logits + model_->config.vocab_size);
                        return true;
                      })
               .ok());
  return all;
}

std::vector<TokenId> RandomPrompt(int64_t n, int64_t vocab_size, uint64_t seed) {
  std::vector<TokenId> tokens(n);
  uint64_t state = seed * 7919 + 17;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t r = NextRandom(&state);
    const TokenId fresh = static_cast<TokenId>((r >> 8) % vocab_size);
    tokens[i] = i >= 24 && r % 3 != 0 ? tokens[i - 24] : fresh;
  }
  return tokens;
}

}  // namespace vericache
