#include "scheduler/request_entry.h"

#include <algorithm>

namespace vericache {
namespace {

constexpr uint32_t kDraftKvModes = ModeBit(DraftMode::kDraftKv) |
                                   ModeBit(DraftMode::kNgramDraftKv) |
                                   ModeBit(DraftMode::kModelDraftKv);

int64_t FullBytes(const RequestInfo& info, int64_t tokens) {
  return RoundUp(tokens, kBlockTokens) * info.full_bytes_per_token;
}

}  // namespace

uint32_t RequestEntry::allowed_modes() const {
  const uint32_t modes = info.modes | ModeBit(DraftMode::kPlain);
  return draft_kv_fits ? modes : modes & ~kDraftKvModes;
}

int64_t RequestEntry::MaxFullBytes() const {
  return FullBytes(info, info.prompt_tokens + info.max_tokens);
}

int64_t RequestEntry::ClosedBytes() const {
  return computed_rows / kBlockTokens * kBlockTokens * info.full_bytes_per_token;
}

int64_t RequestEntry::StreamedBytes() const {
  if (!spillable) return 0;
  return std::max<int64_t>(0, ClosedBytes() - hot_bytes);
}

int64_t RequestEntry::ChargedBytes(int draft_len) const {
  int64_t bytes = info.fixed_bytes;
  if (draft_kv_fits) {
    bytes += std::max(draft_bytes, num_tokens() * info.draft_bytes_per_token);
    bytes += (draft_len + 1) * info.tail_bytes_per_token;
  }
  return bytes + (spillable
                      ? OpenBytes(draft_len)
                      : std::min(MaxFullBytes(), FullBytes(info, num_tokens() + draft_len + 1)));
}

int64_t RequestEntry::OpenBytes(int draft_len) const {
  if (phase == Phase::kPrefill) return block_bytes();
  const int64_t first = num_tokens() - 1;  // the last token has no K/V yet
  return ((first + draft_len) / kBlockTokens - first / kBlockTokens + 1) * block_bytes();
}

int64_t RequestEntry::MinBytesAtLongest(bool with_draft_kv, int64_t prefill_bytes) const {
  int64_t bytes = info.fixed_bytes;
  const int64_t tokens = info.prompt_tokens + info.max_tokens;
  if (with_draft_kv) {
    bytes += tokens * info.draft_bytes_per_token + 2 * info.tail_bytes_per_token;
  }
  if (!spillable) return bytes + FullBytes(info, tokens);
  // A prompt's chunk, or a round that begins another block.
  return bytes + block_bytes() + std::max(prefill_bytes, with_draft_kv ? block_bytes() : 0);
}

int64_t RequestEntry::BytesBesideOthers(int draft_len) const {
  const int64_t tokens = info.prompt_tokens + info.max_tokens;
  const int64_t bytes = info.fixed_bytes + tokens * info.draft_bytes_per_token +
                        (draft_len + 1) * info.tail_bytes_per_token;
  if (!spillable) return bytes + FullBytes(info, tokens);
  return bytes + block_bytes() + (draft_len > 0 ? block_bytes() : 0);
}

}  // namespace vericache
