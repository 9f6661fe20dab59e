#include "api/warm_up.h"

#include <algorithm>
#include <vector>

#include "api/synthetic_kv.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/verifier.h"

namespace vericache {
namespace {

constexpr double kLongestSeconds = 0.5;
constexpr int64_t kTokens = 2048;
constexpr uint64_t kSeed = 1;

struct Shape {
  bool deep;    // behind all of the K/V, or behind one block
  int drafted;  // rows but one
};

// The first one brings weights into caches and is not learned from. Most telling first: a slow
// machine does not come to the end.
constexpr Shape kShapes[] = {{true, 0},  {true, 0},  {true, 8}, {false, 0},
                             {true, 31}, {false, 8}, {true, 0}, {true, 8}};

int64_t DepthOf(const EngineAccess::Impl& impl) {
  int64_t most = std::min<int64_t>(kTokens, impl.info.context_length / 2);
  if (impl.options.kv_memory > 0)
    most = std::min<int64_t>(most, impl.options.kv_memory / 2 / impl.info.kv_bytes_per_token);
  return std::max<int64_t>(1, most / kBlockTokens) * kBlockTokens;
}

std::unique_ptr<Sequence> SequenceOn(const EngineAccess::Impl& impl, const FullKv& full,
                                     const Shape& shape) {
  const int64_t depth = shape.deep ? full.num_tokens() : kBlockTokens;
  const int64_t num_ids = impl.tokenizer->vocab_size();
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i <= depth; ++i) tokens.push_back(static_cast<TokenId>(i % num_ids));
  auto s = SequenceOverSynthetic(impl, full, depth, tokens);
  for (int i = 0; i < shape.drafted; ++i)
    s->drafted.push_back({static_cast<TokenId>((depth + i) % num_ids)});
  s->max_tokens = shape.drafted + 1;
  return s;
}

}  // namespace

absl::Status WarmUp(EngineAccess::Impl* impl) {
  FullKv full(impl->model->config.kv_shape(), impl->model->kernels);
  VC_RETURN_IF_ERROR(FillSynthetic(DepthOf(*impl), kSeed, impl->pool.get(), &full));
  Verifier verifier(impl->model.get(), impl->forward.get(), impl->pool.get());
  CostModel& costs = impl->Learned()->costs;
  const double start_s = NowSeconds();
  bool is_warm = false;
  for (const Shape& shape : kShapes) {
    if (costs.num_passes() > 0 && NowSeconds() - start_s > kLongestSeconds) break;
    const std::unique_ptr<Sequence> sequence = SequenceOn(*impl, full, shape);
    PassShape pass;
    pass.AddFull(shape.drafted + 1, std::ssize(sequence->tokens) + shape.drafted,
                 shape.drafted + 1);
    Sequence* s = sequence.get();
    const double begin_s = NowSeconds();
    verifier.Verify({&s, 1});
    const double pass_s = NowSeconds() - begin_s;
    if (s->finish == FinishReason::kError) break;  // weights that give no numbers
    if (is_warm) costs.ObservePass(pass, pass_s);
    is_warm = true;
  }
  return absl::OkStatus();
}

void WarmUpOnce(EngineAccess::Impl* impl) {
  if (impl->Learned()->costs.num_passes() > 0) return;
  if (const absl::Status status = WarmUp(impl); !status.ok())
    impl->Tell(StrCat("not warmed up: ", status.message()));
}

}  // namespace vericache
