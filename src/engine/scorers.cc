#include "engine/scorers.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "kv/selectors/attention_sums.h"
#include "kv/selectors/query_moments.h"
#include "kv/selectors/repeat_scores.h"
#include "model/rope.h"

namespace vericache {

bool ObserverList::wants_raw_queries() const {
  return std::any_of(observers_.begin(), observers_.end(),
                     [](const ForwardObserver* o) { return o->wants_raw_queries(); });
}

void ObserverList::OnLayer(const LayerRows& rows) {
  for (ForwardObserver* observer : observers_) observer->OnLayer(rows);
}

const VoteWish* ObserverList::WantsVotes(int layer) {
  for (ForwardObserver* observer : observers_) {
    const VoteWish* wish = observer->WantsVotes(layer);
    if (wish == nullptr) continue;
    votes_for_ = observer;
    return wish;
  }
  return nullptr;
}

void ObserverList::OnKeys(const LayerRows& rows, const LayerKeys& keys) {
  for (ForwardObserver* observer : observers_) observer->OnKeys(rows, keys);
}

void ObserverList::OnVotes(int layer, const LayerKeys& keys) { votes_for_->OnVotes(layer, keys); }

PromptScorer::PromptScorer(const DraftSpec& spec, const Model* model, int64_t num_tokens,
                           ThreadPool* pool)
    : spec_(spec), model_(model), num_tokens_(num_tokens), pool_(pool) {
  const ModelConfig& config = model->config;
  if (spec.score_kind() == ScoreKind::kH2o)
    sums_ = std::make_unique<AttentionSums>(config.kv_shape(), config.num_heads, num_tokens,
                                            model->kernels, pool);
  if (spec.score_kind() == ScoreKind::kExpected)
    moments_ =
        std::make_unique<QueryMoments>(config.kv_shape(), config.num_heads, spec.sinks, pool);
}

PromptScorer::~PromptScorer() = default;

ForwardObserver* PromptScorer::observer() {
  if (sums_ != nullptr) return sums_.get();
  return moments_.get();
}

// Mean cosine and sine of the positions that follow the prompt (arXiv 2510.00636, equation 7).
MeanRotation PromptScorer::RotationAhead() const {
  const Rope rope(model_->config, model_->weights.rope_factors);
  MeanRotation mean;
  mean.adjacent = model_->config.rope_pairs == RopePairs::kAdjacent;
  mean.cos.assign(rope.half_dim(), 0.0);
  mean.sin.assign(rope.half_dim(), 0.0);
  std::vector<float> cos(rope.half_dim()), sin(rope.half_dim());
  for (int i = 0; i < spec_.future; ++i) {
    rope.AnglesOf(num_tokens_ + i, cos.data(), sin.data());
    for (int j = 0; j < rope.half_dim(); ++j) {
      mean.cos[j] += cos[j] / spec_.future;
      mean.sin[j] += sin[j] / spec_.future;
    }
  }
  return mean;
}

absl::StatusOr<std::shared_ptr<const KeyScores>> PromptScorer::Finish(const Sequence& sequence,
                                                                      const PrefillOptions& options,
                                                                      Prefill* prefill) {
  if (sums_ != nullptr) return std::make_shared<const KeyScores>(sums_->Take());
  if (moments_ != nullptr) {
    VC_ASSIGN_OR_RETURN(KeyScores scores, moments_->Scores(sequence.full.Fork(num_tokens_),
                                                           RotationAhead(), *model_->kernels));
    return std::make_shared<const KeyScores>(std::move(scores));
  }
  return Repeat(sequence, options, prefill);
}

// Chunk by chunk: the prompt's K/V, then "repeat this", then the chunk itself. The rows that this
// adds live in a fork and are thrown away.
absl::StatusOr<std::shared_ptr<const KeyScores>> PromptScorer::Repeat(const Sequence& sequence,
                                                                      const PrefillOptions& options,
                                                                      Prefill* prefill) {
  RepeatScores scores(model_->config.kv_shape(), model_->config.num_heads, num_tokens_,
                      model_->kernels, pool_);
  const auto prompt = absl::MakeConstSpan(sequence.tokens).first(num_tokens_);
  constexpr int64_t kTailShown = 8;  // tokens of the last chunk that lead into the next
  for (int64_t begin = 0; begin < num_tokens_; begin += spec_.chunk) {
    const int64_t end = std::min<int64_t>(num_tokens_, begin + spec_.chunk);
    Sequence repeat(sequence.full.Fork(num_tokens_), sequence.sampler);
    repeat.tokens.assign(prompt.begin(), prompt.end());
    const auto append = [&](absl::Span<const TokenId> tokens) {
      repeat.tokens.insert(repeat.tokens.end(), tokens.begin(), tokens.end());
    };
    append(begin == 0 ? sequence.repeat_prompt.first : sequence.repeat_prompt.next);
    if (begin > 0) append(prompt.subspan(begin - kTailShown, kTailShown));
    append(sequence.repeat_prompt.answer);
    append(prompt.subspan(begin, end - begin));
    scores.StartChunk(begin, end);
    PrefillOptions chunk = options;
    if (options.progress)
      chunk.progress = [&](int64_t, int64_t) { return options.progress(begin, num_tokens_); };
    VC_RETURN_IF_ERROR(prefill->Observe(&repeat, chunk, &scores));
  }
  return std::make_shared<const KeyScores>(scores.Take());
}

bool HasScores(const Sequence& s) {
  if (s.spec.score_kind() == ScoreKind::kNone) return true;
  return s.scores != nullptr && 2 * s.scores->num_scored >= s.num_prompt;
}

void SetScores(Sequence* s, std::shared_ptr<const KeyScores> scores) {
  s->scores = std::move(scores);
  if (s->spec.selector == SelectorKind::kVerify && s->spec.floor > 0)
    s->floor = std::make_shared<const KeptSet>(KvzipFloor(s->spec, *s->scores));
}

}  // namespace vericache
