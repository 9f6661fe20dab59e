#include "engine/pass_reselect.h"

#include <algorithm>

#include "engine/prefill.h"
#include "kv/selectors/selector.h"

namespace vericache {
namespace {

constexpr int kRecentRounds = 4;

double MeanRun(const Sequence& s, double otherwise) {
  const int64_t n = std::min<int64_t>(kRecentRounds, s.rounds.size());
  if (n == 0) return otherwise;
  double emitted = 0;
  for (int64_t i = 0; i < n; ++i) emitted += s.rounds[s.rounds.size() - 1 - i].emitted;
  return emitted / static_cast<double>(n);
}

}  // namespace

PassReselector::Voters PassReselector::VotersOf(int64_t num_rows, double mean_run, int64_t window) {
  const int64_t likely = std::max(static_cast<int64_t>(mean_run + 0.5), kVoters);
  const int64_t end = std::min(likely, num_rows);
  return {std::max<int64_t>(0, end - std::min(window, kVoters)), end};
}

PassReselector::PassReselector(Sequence* sequence, int64_t first_pos, int64_t num_rows,
                               const KernelTable* kernels, ThreadPool* pool)
    : sequence_(sequence), kernels_(kernels), pool_(pool) {
  const Voters voters = VotersOf(num_rows, MeanRun(*sequence, static_cast<double>(num_rows)),
                                 QueryRowsOfRound(sequence->spec, num_rows));
  wish_.row_begin = voters.begin;
  wish_.row_end = voters.end;
  wish_.num_keys = first_pos;
}

const VoteWish* PassReselector::WantsVotes(int layer) {
  (void)layer;
  votes_.Resize(sequence_->full.shape().num_kv_heads * wish_.votes_ld());
  wish_.votes = votes_.data();
  return &wish_;
}

void PassReselector::OnVotes(int layer, const LayerKeys& keys) {
  const FullKvView& full = keys.kv.full;
  LayerViews layers;
  layers.first = layer;
  layers.views.push_back(full);
  layers.views[0].num_tokens = wish_.num_keys;  // committed
  if (keys.head_end - keys.head_begin < full.shape.num_kv_heads) layers.only_head = keys.head_begin;
  SelectInput input = MakeSelectInput(*sequence_, nullptr, kernels_, pool_);
  input.layers = &layers;
  for (int head = keys.head_begin; head < keys.head_end; ++head)
    input.votes.emplace_back(votes_.data() + head * wish_.votes_ld(), wish_.num_keys);
  sequence_->draft->Rebuild(layers, SelectPositions(sequence_->spec, input), pool_);
}

}  // namespace vericache
