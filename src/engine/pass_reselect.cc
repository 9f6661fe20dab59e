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
  const int64_t end = std::clamp<int64_t>(static_cast<int64_t>(mean_run + 0.5), 1, num_rows);
  return {std::max<int64_t>(0, end - window), end};
}

PassReselector::PassReselector(Sequence* sequence, int64_t num_rows, int num_heads,
                               const KernelTable* kernels, ThreadPool* pool)
    : sequence_(sequence),
      num_heads_(num_heads),
      kernels_(kernels),
      pool_(pool),
      voters_(VotersOf(num_rows, MeanRun(*sequence, static_cast<double>(num_rows)),
                       QueryRowsOfRound(sequence->spec, num_rows))) {}

void PassReselector::OnLayer(const LayerRows& rows) {
  const FullKvView& kv = rows.kv.full;
  const int64_t row_floats = static_cast<int64_t>(num_heads_) * kv.shape.head_dim;
  queries_.first_pos = rows.first_pos + voters_.begin;
  queries_.num_rows = voters_.end - voters_.begin;
  queries_.num_heads = num_heads_;
  queries_.q.resize(kv.shape.num_layers);
  queries_.q[rows.layer].assign(rows.q + voters_.begin * row_floats,
                                rows.q + voters_.end * row_floats);
  LayerViews layers;
  layers.first = rows.layer;
  layers.views.push_back(kv);
  layers.views[0].num_tokens = rows.first_pos;  // committed
  SelectInput input = MakeSelectInput(*sequence_, queries_, kernels_, pool_);
  input.layers = &layers;
  sequence_->draft->Rebuild(layers, SelectPositions(sequence_->spec, input), pool_);
  queries_.q[rows.layer] = {};
}

}  // namespace vericache
