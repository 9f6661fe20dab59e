#include "api/draft_sizes.h"

#include <algorithm>
#include <cmath>

#include "base/types.h"
#include "kv/draft_kv.h"
#include "kv/selectors/selector.h"

namespace vericache {
namespace {

// Smaller draft KVs are tried down to this share of the tokens.
constexpr double kLeastFraction = 0.05;
constexpr double kFractionStep = 0.85;

}  // namespace

size_t DraftBytes(const KvShape& shape, const DraftSpec& spec, int64_t num_tokens,
                  int64_t draft_rows) {
  if (!spec.enabled) return 0;
  size_t bytes = 0;
  KvShape one = shape;
  one.num_layers = 1;
  int64_t tail = 0;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    DraftSpec of_layer = spec;
    of_layer.fraction = spec.FractionOf(layer);
    const int64_t kept = KeptCount(of_layer, num_tokens, AlwaysKept(spec));
    const DraftCodec codec = spec.CodecOf(layer);
    bytes += DraftKv::LayoutBytes(one, codec, kept);
    tail = std::max<int64_t>(tail, codec.tail_keys - kept);
  }
  return bytes + bytes / 16 + shape.bytes_per_token() * (draft_rows + kDraftGroup + tail);
}

DraftSizes DraftSizesOf(const KvShape& shape, const DraftSpec& spec, uint32_t modes) {
  if (!spec.enabled) return {0, 0, modes};
  // A share of the tokens, or all, the same for each, beside what a draft of any length has: tails,
  // a window.
  constexpr int64_t kMany = 8192;
  const auto bytes_of = [&](int64_t num_tokens) {
    return static_cast<int64_t>(DraftBytes(shape, spec, num_tokens, 0));
  };
  const int64_t of_many = bytes_of(kMany);
  const int64_t per_token = CeilDiv(bytes_of(2 * kMany) - of_many, kMany);
  return {per_token, std::max(bytes_of(kBlockTokens), of_many - per_token * kMany), modes};
}

bool ShrinkDraft(DraftSpec* spec) {
  const bool shrinks = spec->fraction < 1.0 && spec->fraction * kFractionStep >= kLeastFraction &&
                       spec->floor == 0 && spec->selector != SelectorKind::kQuest;
  if (shrinks) spec->fraction = std::floor(spec->fraction * kFractionStep * 1000) / 1000;
  return shrinks;
}

}  // namespace vericache
