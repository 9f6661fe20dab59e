#include "engine/model_proposer.h"

#include <algorithm>
#include <limits>

#include "base/common_tokens.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/types.h"

namespace vericache {
namespace {

constexpr int64_t kChunkRows = 512;

}  // namespace

ModelProposer::ModelProposer(const Model* model, int64_t num_ids, ThreadPool* pool)
    : model_(model),
      num_ids_(num_ids),
      forward_(model, pool),
      prefill_(model, &forward_, pool),
      verifier_(model, &forward_, pool) {}

int64_t ModelProposer::BytesFor(int64_t num_tokens) const {
  return CeilDiv(num_tokens, kBlockTokens) * kBlockTokens *
         static_cast<int64_t>(model_->config.kv_shape().bytes_per_token());
}

absl::Status ModelProposer::GoTo(Sequence* target, absl::Span<const TokenId> tokens,
                                 int64_t num_left) {
  if (target->small == nullptr) {
    const ModelConfig& config = model_->config;
    target->small =
        std::make_unique<Sequence>(FullKv(config.kv_shape(), model_->kernels),
                                   Sampler(target->sampler.params(), config.vocab_size,
                                           std::min(num_ids_, config.vocab_size), model_->kernels));
    target->small->num_prompt = target->num_prompt;
    target->small->max_tokens = std::numeric_limits<int64_t>::max() / 2;
    target->small->spec.enabled = false;
    target->small->ends_generation = [](TokenId) { return false; };
  }
  Sequence& s = *target->small;
  const int64_t wanted = static_cast<int64_t>(tokens.size()) - num_left;
  const int64_t most = std::min({wanted, s.full.num_tokens(), std::ssize(s.tokens)});
  const int64_t common = CommonTokens(tokens.first(most), s.tokens);
  // A prompt of raw ids may hold some that this model has no row for.
  for (const TokenId token : tokens.subspan(common))
    if (token < 0 || token >= model_->config.vocab_size)
      return absl::OutOfRangeError(StrCat("the draft model has no token ", token));
  if (common < s.full.num_tokens()) s.full = s.full.Fork(common);
  s.finish = FinishReason::kNone;
  s.rounds.clear();
  s.tokens.assign(tokens.begin(), tokens.begin() + wanted);
  PrefillOptions options;
  options.chunk_rows = kChunkRows;
  return prefill_.Compute(&s, options);
}

absl::Status ModelProposer::CatchUp(Sequence* target, int64_t num_tokens) {
  return GoTo(target, absl::MakeConstSpan(target->tokens).first(num_tokens), 0);
}

// A step of plain decoding is a verification of nothing.
void ModelProposer::Propose(absl::Span<const ModelProposal> jobs) {
  std::vector<const ModelProposal*> active;
  std::vector<Sequence*> sequences;
  std::vector<TokenId> known;
  for (const ModelProposal& job : jobs) {
    job.proposal->clear();
    known.assign(job.target->tokens.begin(), job.target->tokens.end());
    for (const DraftToken token : job.target->drafted) known.push_back(token.id);
    if (std::ssize(known) + job.max_tokens > model_->config.context_length) continue;
    if (!GoTo(job.target, known, 1).ok()) {
      job.target->small.reset();
      continue;
    }
    job.target->small->tokens.push_back(known.back());
    active.push_back(&job);
  }
  for (;;) {
    std::erase_if(active, [](const ModelProposal* job) {
      return std::ssize(*job->proposal) >= job->max_tokens || job->target->small->done() ||
             (!job->proposal->empty() && job->target->ends_generation(job->proposal->back()));
    });
    if (active.empty()) return;
    sequences.clear();
    for (const ModelProposal* job : active) sequences.push_back(job->target->small.get());
    verifier_.Verify(sequences);
    for (const ModelProposal* job : active)
      if (!job->target->small->done()) job->proposal->push_back(job->target->small->tokens.back());
  }
}

}  // namespace vericache
