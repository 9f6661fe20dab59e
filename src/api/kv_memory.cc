// The KV budget of an engine: makes the tier, fits requests into it.
#include <algorithm>
#include <limits>

#include "absl/strings/str_format.h"
#include "api/draft_sizes.h"
#include "api/engine_impl.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "base/types.h"
#include "kv/memory_plan.h"

namespace vericache {
namespace {

// A folder that outlives reboots is meant for large files; /tmp is often memory.
constexpr char kDefaultSpillFolder[] = "/var/tmp";
// Of a batch's budget, what the open blocks of a pass's prompts may take; rows of its passes at
// least.
constexpr int64_t kOpenShare = 16;
constexpr int64_t kLeastPassRows = 128;

// KV heads of a layer of the longest request that staging holds at once, for all requests.
constexpr size_t kStagingHeads = 6;

}  // namespace

absl::Status Engine::Impl::OpenTier() {
  const EngineOptions& o = options;
  if (o.kv_memory == 0) return absl::OkStatus();
  KvTierOptions tier_options;
  tier_options.folder = o.kv_dir.empty() ? kDefaultSpillFolder : o.kv_dir;
  tier_options.max_tokens = info.context_length + kMaxDraftLen;
  tier_options.staging_bytes = o.kv_memory;  // taken as it is used: plans bound it
  tier_options.bytes_per_second = static_cast<int64_t>(o.kv_read_limit);
  const KvShape& shape = model->config.kv_shape();
  const size_t block = shape.layer_block_values() * shape.num_layers * sizeof(uint16_t);
  if (o.kv_memory < 2 * block + KvSlotBytes(shape))
    return absl::InvalidArgumentError(
        StrCat("a KV budget of ", BytesText(o.kv_memory), " holds not even two blocks of ",
               BytesText(block), " and one slot of staging: give --kv-memory ",
               BytesText(4 * block + KvSlotBytes(shape)), " or more"));
  VC_ASSIGN_OR_RETURN(tier, KvTier::Create(shape, tier_options));
  return absl::OkStatus();
}

absl::StatusOr<MemoryPlan> Engine::Impl::FitMemory(size_t budget, int64_t num_tokens,
                                                   int64_t draft_rows, DraftSpec* spec) const {
  MemoryNeeds needs;
  needs.shape = model->config.kv_shape();
  needs.num_tokens = num_tokens;
  needs.prefill_rows = std::clamp<int64_t>(options.prefill_chunk, 1, kMaxPassRows);
  needs.draft_rows = draft_rows;
  for (;;) {
    needs.draft_bytes = DraftBytes(needs.shape, *spec, num_tokens, draft_rows);
    absl::StatusOr<MemoryPlan> plan = PlanMemory(budget, needs);
    if (plan.ok() || !spec->enabled) return plan;
    if (!ShrinkDraft(spec)) spec->enabled = false;  // plain decoding over what is spilled
  }
}

absl::Status Engine::Impl::PlanSequence(Sequence* s) {
  if (tier == nullptr) return absl::OkStatus();
  const std::string asked = s->spec.ToString();
  if (s->small_bytes > static_cast<int64_t>(options.kv_memory / 2)) {
    Tell(StrCat("the draft model proposes nothing: its K/V of ", BytesText(s->small_bytes),
                " would take more than half of --kv-memory ", BytesText(options.kv_memory)));
    s->small_bytes = 0;
  }
  // The longest a pass over it can be: prompt, answer, and a draft that goes beyond both.
  VC_ASSIGN_OR_RETURN(s->memory, FitMemory(options.kv_memory - s->small_bytes,
                                           s->num_prompt + s->max_tokens + s->draft_length.max(),
                                           s->draft_length.max(), &s->spec));
  const std::string fitted = s->spec.ToString();
  if (fitted != asked)
    Tell(s->spec.enabled
             ? StrCat("draft ", fitted, " instead of ", asked, ": a larger one does not fit into ",
                      BytesText(options.kv_memory), " beside the staging of the full KV")
             : StrCat("no draft KV: ", asked, " does not fit into ", BytesText(options.kv_memory),
                      "; every token reads the full KV"));
  return ApplyPlan(s);
}

absl::Status Engine::Impl::ApplyPlan(Sequence* s) const {
  if (tier == nullptr || !s->memory.has_value()) return absl::OkStatus();
  s->full.set_hot_blocks(s->memory->hot_blocks);
  s->full.set_fetch_slots(s->memory->staging_bytes / tier->staging().slot_bytes());
  VC_RETURN_IF_ERROR(s->full.Spill());
  return s->full.Warm();
}

uint64_t Engine::Impl::RoomBeside(const Sequence& s) const {
  if (!s.memory.has_value()) return std::numeric_limits<uint64_t>::max();
  const MemoryPlan& plan = *s.memory;
  const int64_t prefill = CeilDiv(plan.prefill_rows + kBlockTokens - 1, kBlockTokens);
  const size_t most =
      std::max(plan.decode_bytes(),
               plan.staging_bytes + plan.block_bytes * (plan.hot_blocks + prefill)) +
      s.small_bytes;
  return options.kv_memory - std::min<uint64_t>(most, options.kv_memory);
}

DraftSizes Engine::Impl::FitDraft(const Request& request, const RequestLoop& loop, int together,
                                  Sequence* s) {
  const uint32_t modes = DraftModesOf(request, s->spec.enabled).value_or(0);
  const std::string asked = s->spec.ToString();
  const DraftSizes sizes = loop.FitDraft(modes, together, s);
  if (const std::string fitted = s->spec.ToString(); fitted != asked)
    Tell(StrCat("draft ", fitted, " instead of ", asked, ": ",
                together > 1 ? "larger ones of all requests at once do" : "a larger one does",
                " not fit into ", BytesText(options.kv_memory),
                " beside the staging of the full KV"));
  return sizes;
}

LoopOptions Engine::Impl::MakeLoopOptions(int64_t longest) const {
  LoopOptions loop;
  loop.max_pass_rows = std::clamp<int64_t>(options.prefill_chunk, 1, kMaxPassRows);
  if (tier == nullptr) return loop;
  const size_t kv_memory = options.kv_memory - LoadBytes();
  loop.kv_memory = kv_memory;
  if (options.kv_read_limit > 0) loop.link_bytes_per_s = static_cast<double>(options.kv_read_limit);
  // Room for a pass's open blocks is kept while prompts are computed: a small budget takes small
  // chunks.
  const int64_t block_bytes = static_cast<int64_t>(tier->pool().block_bytes());
  const int64_t blocks = static_cast<int64_t>(kv_memory) / kOpenShare / block_bytes;
  loop.max_pass_rows =
      std::min(loop.max_pass_rows, std::max(kLeastPassRows, blocks * kBlockTokens));
  // Staging for a few KV heads of the longest, or a third of the budget where that is less.
  const size_t slot = tier->staging().slot_bytes();
  const size_t head = HeadSlots(longest);
  loop.rebuild_bytes = std::min<size_t>(kv_memory / 4, head * slot);
  const size_t slots = std::max(head, std::min(kStagingHeads * head, kv_memory / 3 / slot));
  loop.staging_bytes = std::min<size_t>(kv_memory - loop.rebuild_bytes, slots * slot);
  return loop;
}

LoopOptions Engine::Impl::MakeBatchLoopOptions(
    const std::vector<absl::StatusOr<std::unique_ptr<Sequence>>>& sequences) const {
  int64_t longest = 0;
  for (const auto& s : sequences) {
    if (!s.ok() || tier == nullptr) continue;
    const int64_t tokens = (*s)->num_prompt + (*s)->max_tokens + (*s)->draft_length.max();
    // One that cannot be served must not take the others' memory; the scheduler refuses it.
    if (HeadSlots(tokens) * tier->staging().slot_bytes() > options.kv_memory / 2) continue;
    longest = std::max(longest, tokens);
  }
  return MakeLoopOptions(longest);
}

LoopOptions Engine::Impl::MakeServiceLoopOptions() const {
  const int64_t longest = info.context_length + kMaxDraftLen;
  if (tier == nullptr) return MakeLoopOptions(longest);
  // Whatever may come: a KV head of the longest, or of what a quarter of the budget stages.
  const int64_t slots = static_cast<int64_t>(options.kv_memory / 4 / tier->staging().slot_bytes());
  return MakeLoopOptions(
      std::min(longest, std::max<int64_t>(1, slots) * KvSlotBlocks(tier->shape()) * kBlockTokens));
}

size_t Engine::Impl::HeadSlots(int64_t num_tokens) const {
  return CeilDiv(CeilDiv(num_tokens, kBlockTokens), KvSlotBlocks(tier->shape()));
}

absl::Status Engine::Impl::ShrinkSession(const Sequence& s, Session* session) {
  if (tier == nullptr || session == nullptr || !s.memory.has_value()) return absl::OkStatus();
  // Two drafts of one conversation would not fit; the answer brings a new one.
  session->state_->draft.reset();
  session->state_->full.set_hot_blocks(s.memory->hot_blocks);
  return session->state_->full.Spill();
}

}  // namespace vericache
