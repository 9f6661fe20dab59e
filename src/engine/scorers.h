// Scores that need more than the newest queries: kvzip runs the model again, expected and h2o watch
// the prefill. Their selectors (kv/selectors/scored.cc) rank keys by what is made here.
//
// To add one: an observer in kv/selectors that ends in KeyScores, a ScoreKind, a case here.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/prefill.h"
#include "engine/sequence.h"
#include "kv/selectors/attention_sums.h"
#include "kv/selectors/query_moments.h"
#include "model/forward.h"

namespace vericache {

// Hands what it sees to several observers.
class ObserverList : public ForwardObserver {
 public:
  void Add(ForwardObserver* observer) { observers_.push_back(observer); }
  bool empty() const { return observers_.empty(); }
  bool wants_raw_queries() const override;
  void OnLayer(const LayerRows& rows) override;
  // REQUIRES: at most one of them wants votes.
  const VoteWish* WantsVotes(int layer) override;
  void OnKeys(const LayerRows& rows, const LayerKeys& keys) override;
  void OnVotes(int layer, const LayerKeys& keys) override;

 private:
  std::vector<ForwardObserver*> observers_;
  ForwardObserver* votes_for_ = nullptr;  // whose wish WantsVotes() returned last
};

// Makes the scores of one spec over the first `num_tokens` tokens of a sequence.
//
//   PromptScorer scorer(...);
//   ... pass scorer.observer() to the prefill from position 0, if it is not null ...
//   scorer.Finish(...)
class PromptScorer {
 public:
  PromptScorer(const DraftSpec& spec, const Model* model, int64_t num_tokens, ThreadPool* pool);
  ~PromptScorer();

  // What must see the prefill of all tokens from position 0; null if nothing must.
  ForwardObserver* observer();
  // REQUIRES: the tokens' K/V are in `sequence.full`, and the observer saw all their rows.
  // COST: kvzip: one to two prefills over num_tokens; others: less than one.
  // ERRORS: kCancelled (options.progress said so), kResourceExhausted.
  absl::StatusOr<std::shared_ptr<const KeyScores>> Finish(const Sequence& sequence,
                                                          const PrefillOptions& options,
                                                          Prefill* prefill);

 private:
  absl::StatusOr<std::shared_ptr<const KeyScores>> Repeat(const Sequence& sequence,
                                                          const PrefillOptions& options,
                                                          Prefill* prefill);
  MeanRotation RotationAhead() const;

  const DraftSpec spec_;
  const Model* model_;
  const int64_t num_tokens_;
  ThreadPool* pool_;
  std::unique_ptr<AttentionSums> sums_;
  std::unique_ptr<QueryMoments> moments_;
};

// True if `sequence` has the scores its spec needs, or needs none. Scores of a short beginning do
// not count: what they leave out is kept whole.
bool HasScores(const Sequence& sequence);
// Gives a sequence its scores, and the floor that follows from them.
void SetScores(Sequence* sequence, std::shared_ptr<const KeyScores> scores);

}  // namespace vericache
