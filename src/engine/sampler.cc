#include "engine/sampler.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/fp_env.h"
#include "base/text.h"
#include "engine/philox.h"

namespace vericache {
namespace {

// No noise is larger: u is at most 1 - 2^-25, so -log(-log(u)) < 17.3287. With slack for rounding.
constexpr double kMaxGumbel = 17.3288;

double GumbelFromBits(uint32_t bits) {
  const double u = (static_cast<double>(bits >> 8) + 0.5) * 0x1p-24;
  return -ContractLog(-ContractLog(u));
}

absl::Status Range(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError(StrCat(field, " is ", value, ", expected ", low, " to ", high));
}

}  // namespace

double GumbelNoise(uint64_t seed, uint32_t choice, int64_t pos, TokenId id) {
  const std::array<uint32_t, 4> bits =
      Philox4x32({static_cast<uint32_t>(id) >> 2, static_cast<uint32_t>(pos),
                  static_cast<uint32_t>(static_cast<uint64_t>(pos) >> 32), choice},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return GumbelFromBits(bits[id & 3]);
}

absl::Status CheckSampling(const SamplingParams& p, int64_t vocab_size) {
  absl::Status status = Range("temperature", p.temperature, 0, 100);
  if (status.ok()) status = Range("top_k", static_cast<double>(p.top_k), 0, 1e15);
  if (status.ok()) status = Range("top_p", p.top_p, 1e-9, 1);
  if (status.ok()) status = Range("min_p", p.min_p, 0, 1);
  if (status.ok()) status = Range("repetition_penalty", p.repetition_penalty, 1e-3, 1e3);
  if (status.ok()) status = Range("presence_penalty", p.presence_penalty, -100, 100);
  if (status.ok()) status = Range("frequency_penalty", p.frequency_penalty, -100, 100);
  for (const auto& [id, bias] : p.logit_bias) {
    if (!status.ok()) break;
    status = Range("logit_bias id", id, 0, static_cast<double>(vocab_size - 1));
    if (status.ok()) status = Range("logit_bias value", bias, -1e6, 1e6);
  }
  return status;
}

Sampler::Sampler(const SamplingParams& params, int64_t vocab_size, int64_t num_ids,
                 const KernelTable* kernels)
    : params_(params),
      vocab_size_(vocab_size),
      num_ids_(std::min(num_ids, vocab_size)),
      kernels_(kernels) {}

bool Sampler::HasPenalties() const {
  return !params_.logit_bias.empty() || params_.repetition_penalty != 1 ||
         params_.presence_penalty != 0 || params_.frequency_penalty != 0;
}

void Sampler::ApplyPenalties(absl::Span<const TokenId> history, int64_t num_prompt) {
  for (const auto& [id, bias] : params_.logit_bias)
    if (id >= 0 && id < num_ids_) z_[id] += bias;
  if (params_.repetition_penalty == 1 && params_.presence_penalty == 0 &&
      params_.frequency_penalty == 0)
    return;
  counts_.resize(num_ids_, 0);
  history_ids_.reserve(num_ids_);
  history_ids_.clear();
  for (int64_t i = 0; i < static_cast<int64_t>(history.size()); ++i) {
    const TokenId id = history[i];
    if (id < 0 || id >= num_ids_) continue;
    if (counts_[id] == 0) {
      history_ids_.push_back(id);
      counts_[id] = 1;
    }
    if (i >= num_prompt) ++counts_[id];
  }
  for (TokenId id : history_ids_) {
    const int count = counts_[id] - 1;
    counts_[id] = 0;
    float z = z_[id];
    z = z > 0 ? z / params_.repetition_penalty : z * params_.repetition_penalty;
    if (count > 0)
      z -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
    z_[id] = z;
  }
}

void Sampler::ApplyTopK(std::vector<TokenId>* ids) const {
  if (params_.top_k <= 0 || params_.top_k >= static_cast<int64_t>(ids->size())) return;
  std::nth_element(ids->begin(), ids->begin() + (params_.top_k - 1), ids->end(),
                   [&](TokenId a, TokenId b) { return z_[a] != z_[b] ? z_[a] > z_[b] : a < b; });
  ids->resize(params_.top_k);
  std::sort(ids->begin(), ids->end());
}

// exp_[i] = exp(z - max) for each surviving id, in order of id.
void Sampler::RelativeExp(const std::vector<TokenId>& ids) {
  float max = z_[ids[0]];
  for (TokenId id : ids) max = std::max(max, z_[id]);
  exp_.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) exp_[i] = z_[ids[i]] - max;
  kernels_->exp(exp_.data(), static_cast<int64_t>(exp_.size()), exp_.data());
}

// Keeps the fewest best tokens whose probability reaches top_p.
void Sampler::ApplyTopP(std::vector<TokenId>* ids) {
  if (params_.top_p >= 1) return;
  RelativeExp(*ids);
  float lanes[16] = {};
  for (size_t i = 0; i < ids->size(); ++i) lanes[(*ids)[i] % 16] += exp_[i];
  for (int s = 8; s > 0; s /= 2)
    for (int i = 0; i < s; ++i) lanes[i] += lanes[i + s];
  const double wanted = static_cast<double>(params_.top_p) * lanes[0];
  heap_.resize(ids->size());  // a heap, because few of them are needed
  std::iota(heap_.begin(), heap_.end(), 0);
  const auto worse = [&](int32_t a, int32_t b) {
    const float za = z_[(*ids)[a]], zb = z_[(*ids)[b]];
    return za != zb ? za < zb : a > b;
  };
  std::make_heap(heap_.begin(), heap_.end(), worse);
  kept_.clear();
  double sum = 0;
  while (!heap_.empty() && (kept_.empty() || sum < wanted)) {
    std::pop_heap(heap_.begin(), heap_.end(), worse);
    kept_.push_back((*ids)[heap_.back()]);
    sum += exp_[heap_.back()];
    heap_.pop_back();
  }
  std::sort(kept_.begin(), kept_.end());
  ids->assign(kept_.begin(), kept_.end());
}

void Sampler::ApplyMinP(std::vector<TokenId>* ids) {
  if (params_.min_p <= 0) return;
  RelativeExp(*ids);  // the best has exp 1, so this is probability over largest probability
  size_t kept = 0;
  for (size_t i = 0; i < ids->size(); ++i)
    if (exp_[i] >= params_.min_p) (*ids)[kept++] = (*ids)[i];
  ids->resize(kept);
}

// argmax of z + noise over `ids` (ascending). Ids that cannot win even with the largest noise get
// none drawn: the result is the same and most of the vocabulary is skipped.
TokenId Sampler::DrawWithNoise(int64_t pos, const std::vector<TokenId>& ids) const {
  TokenId likeliest = ids[0];
  for (TokenId id : ids)
    if (z_[id] > z_[likeliest]) likeliest = id;
  const double floor = static_cast<double>(z_[likeliest]) +
                       GumbelNoise(params_.seed, params_.choice, pos, likeliest);
  TokenId best = -1;
  double best_score = 0;
  for (TokenId id : ids) {
    const double z = z_[id];
    if (z + kMaxGumbel < floor) continue;
    const double score = z + GumbelNoise(params_.seed, params_.choice, pos, id);
    if (best < 0 || score > best_score) {
      best = id;
      best_score = score;
    }
  }
  return best;
}

// Bias, penalties and temperature. What overflows counts as the largest float: the filters compare
// and subtract, and would make NaNs of infinities.
void Sampler::Adjust(const float* logits, absl::Span<const TokenId> history, int64_t num_prompt) {
  constexpr float kMax = std::numeric_limits<float>::max();
  z_.assign(logits, logits + num_ids_);
  if (HasPenalties()) ApplyPenalties(history, num_prompt);
  const float divisor = params_.temperature < kGreedyTemperature ? 1.0f : params_.temperature;
  for (float& z : z_) z = std::clamp(z / divisor, -kMax, kMax);
}

RowChoice Sampler::Choose(const float* logits, int64_t pos, absl::Span<const TokenId> history,
                          int64_t num_prompt) {
  const ScopedFpEnv fp_env;
  const ArgmaxResult all = kernels_->argmax(logits, vocab_size_);
  if (!all.all_finite) return {-1, true};
  const bool greedy = params_.temperature < kGreedyTemperature;
  if (greedy && !HasPenalties()) {
    if (all.id < num_ids_) return {all.id, false};
    return {kernels_->argmax(logits, num_ids_).id, false};
  }
  Adjust(logits, history, num_prompt);
  if (greedy) return {kernels_->argmax(z_.data(), num_ids_).id, false};
  ids_.resize(num_ids_);
  std::iota(ids_.begin(), ids_.end(), 0);
  ApplyTopK(&ids_);
  ApplyTopP(&ids_);
  ApplyMinP(&ids_);
  return {DrawWithNoise(pos, ids_), false};
}

}  // namespace vericache
