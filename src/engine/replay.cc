#include "engine/replay.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status_macros.h"

namespace vericache {
namespace {

// Rows checked at once: those behind the first mismatch are for nothing, so a round begins with
// few and doubles them.
constexpr int64_t kFirstRows = 4, kMostRows = 16;

// log of the sum of exp(x). exps: scratch.
double LogSumExp(const KernelTable& kernels, const float* x, int64_t n, std::vector<float>* exps) {
  exps->resize(n);
  const float max = *std::max_element(x, x + n);
  for (int64_t i = 0; i < n; ++i) (*exps)[i] = x[i] - max;
  kernels.exp(exps->data(), n, exps->data());
  double sum = 0;
  for (float e : *exps) sum += e;
  return std::log(sum) + max;
}

}  // namespace

absl::StatusOr<RecordedAnswer> DraftReplay::Record(const Sequence& sequence,
                                                   std::vector<TokenId> tokens, int window,
                                                   const PrefillOptions& options) {
  const int64_t num_prompt = sequence.num_prompt, vocab = model_->config.vocab_size;
  const int64_t num_answer = static_cast<int64_t>(tokens.size()) - num_prompt;
  const int64_t begin = std::max<int64_t>(0, num_prompt - window);
  Sequence pass(sequence.full.Fork(begin), sequence.sampler);
  pass.tokens.assign(tokens.begin(), tokens.end() - 1);  // the last has no K/V
  QueryWindow queries(model_->config, model_->kernels, static_cast<int>(num_answer + window));
  std::vector<float> logits;
  Prefill prefill(model_, forward_, pool_);
  VC_RETURN_IF_ERROR(prefill.Score(
      &pass, options, num_prompt,
      [&](int64_t pos, const float* row) {
        if (pos < num_prompt + kMaxLogits) logits.insert(logits.end(), row, row + vocab);
        return true;
      },
      &queries));
  RecordedAnswer record(std::move(pass.full), std::move(queries));
  record.tokens = std::move(tokens);
  record.num_prompt = num_prompt;
  record.max_tokens = sequence.max_tokens;
  record.logits = std::move(logits);
  return record;
}

double DraftReplay::KlOf(const float* full, const float* draft) {
  const int64_t n = model_->config.vocab_size;
  const double draft_lse = LogSumExp(*model_->kernels, draft, n, &exps_);
  const double full_lse = LogSumExp(*model_->kernels, full, n, &exps_);
  double kl = 0, sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    kl += exps_[i] * ((full[i] - full_lse) - (draft[i] - draft_lse));
    sum += exps_[i];
  }
  return std::max(0.0, kl / sum);
}

// Drafted tokens that hold, at most max_rows. tokens[pending] is the last emitted one.
int DraftReplay::DraftAlong(const RecordedAnswer& answer, int64_t pending, int64_t max_rows,
                            Sequence* s, ReplayedRounds* rounds) {
  const int64_t vocab = model_->config.vocab_size;
  s->draft_vocab.Update(absl::MakeConstSpan(answer.tokens).first(pending + 1), vocab,
                        s->ends_generation);
  int64_t accepted = 0;
  for (int64_t num_rows = kFirstRows; accepted < max_rows;
       num_rows = std::min(kMostRows, 2 * num_rows)) {
    RowGroup group;
    group.first_pos = pending + accepted;
    group.tokens = absl::MakeConstSpan(answer.tokens)
                       .subspan(group.first_pos, std::min(num_rows, max_rows - accepted));
    group.kv = &*s->draft;
    forward_->Run({&group, 1}, &hidden_);
    logits_.resize(kLogitsRows * vocab);
    for (int64_t row = 0; row < hidden_.num_rows; ++row) {
      if (row % kLogitsRows == 0)
        forward_->Logits(hidden_, row, std::min(kLogitsRows, hidden_.num_rows - row),
                         logits_.data());
      float* logits = logits_.data() + row % kLogitsRows * vocab;
      const int64_t pos = group.first_pos + row + 1;
      const auto history = absl::MakeConstSpan(answer.tokens).first(pos);
      const int64_t recorded = pos - 1 - answer.num_prompt;
      const bool has_kl = (recorded + 1) * vocab <= static_cast<int64_t>(answer.logits.size());
      const double kl = has_kl ? KlOf(answer.logits.data() + recorded * vocab, logits) : 0;
      HideOthers(s->draft_vocab.tiles(), vocab, logits);
      const RowChoice choice = s->sampler.Choose(logits, pos, history, answer.num_prompt);
      ++rounds->num_compared;
      if (!choice.bad && has_kl) {
        ++rounds->num_kl;
        rounds->kl_sum += kl;
      }
      if (choice.bad || choice.id != answer.tokens[pos]) return static_cast<int>(accepted);
      ++rounds->num_agreed;
      ++accepted;
    }
  }
  return static_cast<int>(accepted);
}

absl::Status DraftReplay::Commit(const RecordedAnswer& answer, int64_t begin, int64_t end,
                                 Sequence* s) {
  const FullKv so_far = answer.full.Fork(end);
  if (!s->spec.reselects()) return s->draft->CommitRows(so_far, begin, end, pool_);
  return Reselect(s, so_far, answer.queries.Take(end, QueryRowsOfRound(s->spec, end - begin)),
                  model_->kernels, pool_);
}

absl::StatusOr<ReplayedRounds> DraftReplay::Run(const RecordedAnswer& answer, int draft_len,
                                                Sequence* s,
                                                const std::function<bool()>& keep_going) {
  ReplayedRounds rounds;
  s->draft.emplace(NewDraftKv(model_->config.kv_shape(), s->spec, model_->kernels));
  const FullKv prompt = answer.full.Fork(answer.num_prompt);
  VC_RETURN_IF_ERROR(Reselect(s, prompt,
                              answer.queries.Take(answer.num_prompt, QueryRowsWanted(s->spec)),
                              model_->kernels, pool_));
  const int64_t last = static_cast<int64_t>(answer.tokens.size()) - 1;
  for (int64_t pending = answer.num_prompt; pending < last;) {
    if (keep_going && !keep_going()) return absl::CancelledError("stopped");
    const int64_t left = answer.max_tokens - (pending - answer.num_prompt + 1);
    const int64_t drafted = std::min<int64_t>(draft_len, std::max<int64_t>(0, left - 1));
    const double full_bytes =
        static_cast<double>(model_->config.kv_shape().bytes_per_token() * pending);
    rounds.kept_sum += static_cast<double>(s->draft->num_bytes()) / full_bytes;
    rounds.read_sum += static_cast<double>(s->draft->read_bytes_per_step()) / full_bytes;
    const int accepted = DraftAlong(answer, pending, std::min(drafted, last - pending), s, &rounds);
    const int64_t emitted = std::min<int64_t>(accepted + 1, last - pending);
    rounds.run_lengths.push_back(static_cast<int>(emitted));
    s->draft->Rollback();
    if (pending + emitted < last) VC_RETURN_IF_ERROR(Commit(answer, pending, pending + emitted, s));
    pending += emitted;
  }
  return rounds;
}

}  // namespace vericache
