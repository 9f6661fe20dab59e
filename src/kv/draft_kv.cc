#include "kv/draft_kv.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/float16.h"
#include "base/types.h"
#include "kv/codecs/int_codec.h"

namespace vericache {
namespace {

// One row of one KV head out of a full block: k, v [head_dim] f16.
void ReadFullRow(const FullKvView& view, int kv_head, int64_t pos, uint16_t* k, uint16_t* v) {
  const uint16_t* base = view.Head(pos / kBlockTokens, kv_head);
  const int64_t slot = pos % kBlockTokens;
  const int d = view.shape.head_dim;
  const uint16_t* k_group = base + (slot / kKvLanes) * d * kKvLanes + slot % kKvLanes;
  const uint16_t* v_base = base + view.shape.k_block_values();
  for (int c = 0; c < d; ++c) {
    k[c] = k_group[c * kKvLanes];
    v[c] = v_base[((c / 16) * kBlockTokens + slot) * 16 + c % 16];
  }
}

}  // namespace

DraftKv::DraftKv(const KvShape& shape, DraftFormat codec, const KernelTable* kernels)
    : shape_(shape),
      kernels_(kernels),
      codec_(shape.head_dim % 32 == 0 ? codec : DraftFormat::kF16),
      heads_(static_cast<size_t>(shape.num_layers) * shape.num_kv_heads),
      views_(shape.num_kv_heads),
      provisional_(shape.num_layers, 0) {}

// Once: rows that come and go allocate nothing.
void DraftKv::ReserveScratch(size_t num_threads) {
  const size_t d = shape_.head_dim;
  while (scratch_.size() < num_threads)
    scratch_.push_back({std::vector<uint16_t>(d), std::vector<uint16_t>(d),
                        std::vector<float>(kDraftGroup * d), std::vector<float>(kDraftGroup * d)});
}

// tail_k: [group of 16 keys][head_dim][16 keys];
// tail_v: [group of 16 keys][padded / 16][16 keys][16 channels].
void DraftKv::PushTail(Head* head, const uint16_t* k, const uint16_t* v) {
  const size_t d = shape_.head_dim, dv = shape_.padded_head_dim();
  const int64_t group = head->num_tail / kKvLanes, lane = head->num_tail % kKvLanes;
  if (lane == 0) {
    head->tail_k.ResizeKeep((group + 1) * d * kKvLanes);
    head->tail_v.ResizeKeep((group + 1) * dv * kKvLanes);
    std::memset(head->tail_k.data() + group * d * kKvLanes, 0, d * kKvLanes * 2);
    std::memset(head->tail_v.data() + group * dv * kKvLanes, 0, dv * kKvLanes * 2);
  }
  uint16_t* k_group = head->tail_k.data() + group * d * kKvLanes;
  uint16_t* v_group = head->tail_v.data() + group * dv * kKvLanes;
  for (size_t c = 0; c < d; ++c) {
    k_group[c * kKvLanes + lane] = k[c];
    v_group[((c / 16) * kKvLanes + lane) * 16 + c % 16] = v[c];
  }
  ++head->num_tail;
}

// REQUIRES: count is a multiple of 16.
void DraftKv::DropTailFront(Head* head, int64_t count) {
  const size_t k_size = count * shape_.head_dim, v_size = count * shape_.padded_head_dim();
  head->num_tail -= count;
  const size_t rest = RoundUp(head->num_tail, kKvLanes);
  std::memmove(head->tail_k.data(), head->tail_k.data() + k_size, rest * shape_.head_dim * 2);
  std::memmove(head->tail_v.data(), head->tail_v.data() + v_size,
               rest * shape_.padded_head_dim() * 2);
  head->tail_k.ResizeKeep(rest * shape_.head_dim);
  head->tail_v.ResizeKeep(rest * shape_.padded_head_dim());
}

// k, v: [32 keys][head_dim] fp32.
void DraftKv::EncodeGroup(Head* head, const float* k, const float* v) {
  const int d = shape_.head_dim;
  const int64_t group = head->num_groups++;
  const size_t code_bytes = GroupCodeBytes(codec_, d);
  head->k_data.ResizeKeep((group + 1) * code_bytes);
  head->v_data.ResizeKeep((group + 1) * code_bytes);
  head->k_scale.ResizeKeep((group + 1) * d);
  head->k_min.ResizeKeep((group + 1) * d);
  head->v_scale.ResizeKeep((group + 1) * d);  // 32 keys x head_dim / 32 channel groups
  head->v_min.ResizeKeep((group + 1) * d);
  EncodeKeyGroup(codec_, k, d, head->k_data.data() + group * code_bytes,
                 head->k_scale.data() + group * d, head->k_min.data() + group * d);
  EncodeValueGroup(codec_, v, d, head->v_data.data() + group * code_bytes,
                   head->v_scale.data() + group * d, head->v_min.data() + group * d);
}

// Quantises the oldest 32 tail keys while more than kTailKeys would stay behind them.
void DraftKv::FoldTail(Head* head, Scratch* scratch) {
  if (codec_ == DraftFormat::kF16) return;
  const int d = shape_.head_dim;
  std::vector<float>&k = scratch->k, &v = scratch->v;
  while (head->num_tail >= kTailKeys + kDraftGroup) {
    for (int key = 0; key < kDraftGroup; ++key) {
      const size_t group = key / kKvLanes, lane = key % kKvLanes;
      for (int c = 0; c < d; ++c) {
        k[key * d + c] = F16ToF32(head->tail_k[(group * d + c) * kKvLanes + lane]);
        v[key * d + c] = F16ToF32(
            head->tail_v[((group * (shape_.padded_head_dim() / 16) + c / 16) * kKvLanes + lane) *
                             16 +
                         c % 16]);
      }
    }
    EncodeGroup(head, k.data(), v.data());
    DropTailFront(head, kDraftGroup);
  }
}

void DraftKv::RebuildHead(const FullKv& full, int layer, int kv_head,
                          absl::Span<const int32_t> kept, Scratch* scratch) {
  const int d = shape_.head_dim;
  Head& head = HeadAt(layer, kv_head);
  head.Clear();
  const FullKvView view = full.Committed(layer);
  const int64_t n = kept.size();
  const int64_t num_groups =
      codec_ == DraftFormat::kF16 ? 0 : std::max<int64_t>(0, n - kTailKeys) / kDraftGroup;
  std::vector<uint16_t>&k16 = scratch->k16, &v16 = scratch->v16;
  std::vector<float>&k = scratch->k, &v = scratch->v;
  for (int64_t i = 0; i < n; ++i) {
    ReadFullRow(view, kv_head, kept[i], k16.data(), v16.data());
    if (i >= num_groups * kDraftGroup) {
      PushTail(&head, k16.data(), v16.data());
      continue;
    }
    kernels_->f16_to_f32(k16.data(), d, k.data() + (i % kDraftGroup) * d);
    kernels_->f16_to_f32(v16.data(), d, v.data() + (i % kDraftGroup) * d);
    if (i % kDraftGroup == kDraftGroup - 1) EncodeGroup(&head, k.data(), v.data());
  }
}

void DraftKv::Rebuild(const FullKv& full, const KeptSet& kept, ThreadPool* pool) {
  VC_CHECK(kept.positions.size() == heads_.size());
  num_tokens_ = full.num_tokens();
  std::fill(provisional_.begin(), provisional_.end(), 0);
  ReserveScratch(pool->num_threads());
  pool->ParallelFor(heads_.size(), [&](int64_t task, int thread) {
    RebuildHead(full, static_cast<int>(task / shape_.num_kv_heads),
                static_cast<int>(task % shape_.num_kv_heads), kept.positions[task],
                &scratch_[thread]);
  });
}

void DraftKv::CommitRows(const FullKv& full, int64_t pos_begin, int64_t pos_end, ThreadPool* pool) {
  Rollback();
  VC_CHECK(pos_begin == num_tokens_);
  num_tokens_ = pos_end;
  ReserveScratch(pool->num_threads());
  pool->ParallelFor(shape_.num_layers, [&](int64_t layer, int thread) {
    const FullKvView view = full.Committed(static_cast<int>(layer));
    Scratch& scratch = scratch_[thread];
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      Head& head = HeadAt(static_cast<int>(layer), h);
      for (int64_t pos = pos_begin; pos < pos_end; ++pos) {
        ReadFullRow(view, h, pos, scratch.k16.data(), scratch.v16.data());
        PushTail(&head, scratch.k16.data(), scratch.v16.data());
      }
      FoldTail(&head, &scratch);
    }
  });
}

void DraftKv::Append(int layer, const float* k, const float* v, int64_t num_rows) {
  ReserveScratch(1);
  std::vector<uint16_t>&k16 = scratch_[0].k16, &v16 = scratch_[0].v16;
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      const size_t src = (row * shape_.num_kv_heads + h) * shape_.head_dim;
      kernels_->f32_to_f16(k + src, shape_.head_dim, k16.data());
      kernels_->f32_to_f16(v + src, shape_.head_dim, v16.data());
      PushTail(&HeadAt(layer, h), k16.data(), v16.data());
    }
  }
  provisional_[layer] += num_rows;
}

void DraftKv::Rollback() {
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      Head& head = HeadAt(layer, h);
      // Removed lanes become zeros again: a bad drafted row must not linger in them.
      for (int64_t i = 0; i < provisional_[layer]; ++i) {
        --head.num_tail;
        const size_t d = shape_.head_dim, dv = shape_.padded_head_dim();
        const size_t group = head.num_tail / kKvLanes, lane = head.num_tail % kKvLanes;
        for (size_t c = 0; c < d; ++c) head.tail_k[(group * d + c) * kKvLanes + lane] = 0;
        for (size_t c = 0; c < dv; ++c)
          head.tail_v[((group * (dv / 16) + c / 16) * kKvLanes + lane) * 16 + c % 16] = 0;
      }
      const size_t groups = CeilDiv(head.num_tail, kKvLanes);
      head.tail_k.ResizeKeep(groups * shape_.head_dim * kKvLanes);
      head.tail_v.ResizeKeep(groups * shape_.padded_head_dim() * kKvLanes);
    }
    provisional_[layer] = 0;
  }
}

KvView DraftKv::Layer(int layer) {
  for (int h = 0; h < shape_.num_kv_heads; ++h) {
    const Head& head = HeadAt(layer, h);
    DraftHeadView& view = views_[h];
    view.k_format = view.v_format = codec_;
    view.head_dim = shape_.head_dim;
    view.num_groups = head.num_groups;
    view.k_data = head.k_data.data();
    view.k_scale = head.k_scale.data();
    view.k_min = head.k_min.data();
    view.v_data = head.v_data.data();
    view.v_scale = head.v_scale.data();
    view.v_min = head.v_min.data();
    view.num_tail = head.num_tail;
    view.tail_k = head.tail_k.data();
    view.tail_v = head.tail_v.data();
  }
  KvView view;
  view.kind = KvView::Kind::kDraft;
  view.draft = views_;
  return view;
}

// Codes of K and V, their scales and minima (f16), and the tail rows of one head.
static size_t HeadBytes(DraftFormat codec, int head_dim, int64_t num_groups, int64_t num_tail) {
  return num_groups * 2 * (GroupCodeBytes(codec, head_dim) + 2 * sizeof(uint16_t) * head_dim) +
         num_tail * 2 * head_dim * sizeof(uint16_t);
}

size_t DraftKv::num_bytes() const {
  size_t bytes = 0;
  for (const Head& head : heads_)
    bytes += HeadBytes(codec_, shape_.head_dim, head.num_groups, head.num_tail);
  return bytes;
}

size_t DraftKv::LayoutBytes(const KvShape& shape, DraftFormat codec, int64_t num_kept) {
  if (shape.head_dim % 32 != 0) codec = DraftFormat::kF16;
  const int64_t num_groups =
      codec == DraftFormat::kF16 ? 0 : std::max<int64_t>(0, num_kept - kTailKeys) / kDraftGroup;
  return HeadBytes(codec, shape.head_dim, num_groups, num_kept - num_groups * kDraftGroup) *
         shape.num_layers * shape.num_kv_heads;
}

}  // namespace vericache
