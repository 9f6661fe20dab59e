#include "kv/draft_kv.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/float16.h"
#include "base/types.h"
#include "kv/codecs/int_codec.h"
#include "kv/codecs/rotation.h"
#include "kv/gather.h"

namespace vericache {
namespace {

// Fewer would leave out too much: the group of the sinks, the one of the question, and one more.
constexpr int64_t kMinSelectedGroups = 3;

// From [head_dim][32 keys] to [2][head_dim][16].
void StoreHalfKeys(const uint16_t* k, int head_dim, uint8_t* dst) {
  for (int half = 0; half < 2; ++half) {
    for (int c = 0; c < head_dim; ++c, dst += 32)
      std::memcpy(dst, k + c * kDraftGroup + half * kKvLanes, 32);
  }
}

// From [32 keys][padded] to [padded / 16][32][16].
void StoreHalfValues(const uint16_t* v, int padded, uint8_t* dst) {
  for (int c = 0; c < padded; c += 16) {
    for (int key = 0; key < kDraftGroup; ++key, dst += 32)
      std::memcpy(dst, v + key * padded + c, 32);
  }
}

// Bounds of one f16 group: per channel the least key, and how far the largest lies above it,
// rounded up, so that no key is outside.
void BoundKeys(const float* k, int head_dim, uint16_t* range, uint16_t* min) {
  for (int c = 0; c < head_dim; ++c, k += kDraftGroup) {
    const auto [low, high] = std::minmax_element(k, k + kDraftGroup);
    min[c] = F32ToF16Saturated(*low);
    range[c] = F32ToF16Saturated(*high - *low);
    if (F16ToF32(range[c]) < *high - *low && F16ToF32(range[c]) < kF16Max) ++range[c];
  }
}

}  // namespace

int64_t QueryTimeReads::NumSelected(int64_t num_groups) const {
  const double share = std::ceil(fraction * static_cast<double>(num_groups));
  return std::min(num_groups, std::max(kMinSelectedGroups, static_cast<int64_t>(share)));
}

DraftKv::DraftKv(const KvShape& shape, absl::Span<const DraftCodec> codec_of_layer,
                 const KernelTable* kernels)
    : shape_(shape),
      kernels_(kernels),
      codecs_(codec_of_layer.begin(), codec_of_layer.end()),
      heads_(static_cast<size_t>(shape.num_layers) * shape.num_kv_heads),
      views_(shape.num_kv_heads),
      provisional_(shape.num_layers, 0) {
  VC_CHECK(codecs_.size() == static_cast<size_t>(shape.num_layers));
  if (shape.head_dim % 32 == 0) return;
  for (DraftCodec& codec : codecs_) {
    falls_back_ = falls_back_ || codec.has_codes();
    codec = DraftCodec();
  }
}

DraftKv::DraftKv(const KvShape& shape, const DraftCodec& codec, const KernelTable* kernels)
    : DraftKv(shape, std::vector<DraftCodec>(shape.num_layers, codec), kernels) {}

void DraftKv::SetQueryTimeReads(double fraction, int whole_layers) {
  VC_CHECK(fraction > 0 && fraction <= 1);
  for (const Head& head : heads_) VC_CHECK(head.num_groups == 0 && head.num_tail == 0);
  reads_ = {fraction, whole_layers};
}

DraftKv::GroupSizes DraftKv::SizesOf(int layer) const {
  if (!HasGroups(layer)) return {};
  const DraftCodec& codec = codecs_[layer];
  const size_t d = shape_.head_dim, dv = shape_.padded_head_dim();
  const bool k_codes = codec.k != DraftFormat::kF16, v_codes = codec.v != DraftFormat::kF16;
  return {GroupCodeBytes(codec.k, d), GroupCodeBytes(codec.v, v_codes ? d : dv),
          k_codes || reads_.In(layer) ? d : 0, v_codes ? d : 0};
}

int64_t DraftKv::NumFreshGroups(const DraftCodec& codec, int64_t num_keys) {
  return std::max<int64_t>(0, num_keys - codec.tail_keys) / kDraftGroup;
}

// Once: rows that come and go allocate nothing.
void DraftKv::ReserveScratch(size_t num_threads) {
  const size_t size = static_cast<size_t>(kDraftGroup) * shape_.padded_head_dim();
  while (scratch_.size() < num_threads)
    scratch_.push_back({AlignedBuffer<uint16_t>(size), AlignedBuffer<uint16_t>(size),
                        AlignedBuffer<float>(size), AlignedBuffer<float>(size)});
}

// Room for 16 more keys, of which the caller writes num_keys: unused lanes must hold zeros.
void DraftKv::AddTailGroup(Head* head, int64_t num_keys) {
  const size_t k_size = shape_.head_dim * kKvLanes, v_size = shape_.padded_head_dim() * kKvLanes;
  const int64_t group = head->num_tail / kKvLanes;
  head->tail_k.ResizeKeep((group + 1) * k_size);
  head->tail_v.ResizeKeep((group + 1) * v_size);
  if (num_keys == kKvLanes) return;
  std::memset(head->tail_k.data() + group * k_size, 0, k_size * 2);
  std::memset(head->tail_v.data() + group * v_size, 0, v_size * 2);
}

// tail_k: [group of 16 keys][head_dim][16 keys];
// tail_v: [group of 16 keys][padded / 16][16 keys][16 channels].
void DraftKv::PushTail(Head* head, const uint16_t* k, const uint16_t* v) {
  const size_t d = shape_.head_dim, dv = shape_.padded_head_dim();
  const int64_t group = head->num_tail / kKvLanes, lane = head->num_tail % kKvLanes;
  if (lane == 0) AddTailGroup(head, 1);
  uint16_t* k_group = head->tail_k.data() + group * d * kKvLanes;
  uint16_t* v_group = head->tail_v.data() + group * dv * kKvLanes;
  for (size_t c = 0; c < d; ++c) {
    k_group[c * kKvLanes + lane] = k[c];
    v_group[((c / 16) * kKvLanes + lane) * 16 + c % 16] = v[c];
  }
  ++head->num_tail;
}

// The same for rows of a full KV, many at a time.
void DraftKv::PushTailRows(const FullKvView& view, int kv_head, absl::Span<const int32_t> positions,
                           Head* head) {
  const size_t d = shape_.head_dim, dv = shape_.padded_head_dim();
  while (!positions.empty()) {
    const int64_t group = head->num_tail / kKvLanes, lane = head->num_tail % kKvLanes;
    const size_t n = std::min<size_t>(positions.size(), kKvLanes - lane);
    if (lane == 0) AddTailGroup(head, static_cast<int64_t>(n));
    const absl::Span<const int32_t> part = positions.subspan(0, n);
    GatherKeys(view, kv_head, part, kKvLanes, head->tail_k.data() + group * d * kKvLanes + lane);
    GatherValues(view, kv_head, part, kKvLanes * 16, 16,
                 head->tail_v.data() + (group * dv + lane) * 16);
    head->num_tail += static_cast<int64_t>(n);
    positions.remove_prefix(n);
  }
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

void DraftKv::ResizeGroups(Head* head, int layer, int64_t num_groups) {
  const GroupSizes sizes = SizesOf(layer);
  head->num_groups = num_groups;
  head->k_data.ResizeKeep(num_groups * sizes.k_bytes);
  head->v_data.ResizeKeep(num_groups * sizes.v_bytes);
  head->k_scale.ResizeKeep(num_groups * sizes.k_scales);
  head->k_min.ResizeKeep(num_groups * sizes.k_scales);
  head->v_scale.ResizeKeep(num_groups * sizes.v_scales);
  head->v_min.ResizeKeep(num_groups * sizes.v_scales);
}

// Writes group `group` from the rows in scratch->k16 and v16.
void DraftKv::EncodeGroup(Head* head, int layer, int64_t group, Scratch* scratch) {
  const DraftCodec& codec = codecs_[layer];
  const GroupSizes sizes = SizesOf(layer);
  const int d = shape_.head_dim;
  uint8_t* k_data = head->k_data.data() + group * sizes.k_bytes;
  uint8_t* v_data = head->v_data.data() + group * sizes.v_bytes;
  uint16_t* k_scale = head->k_scale.data() + group * sizes.k_scales;
  uint16_t* k_min = head->k_min.data() + group * sizes.k_scales;
  if (sizes.k_scales > 0)
    kernels_->f16_to_f32(scratch->k16.data(), d * kDraftGroup, scratch->k.data());
  if (codec.k != DraftFormat::kF16) {
    if (codec.rotated) RotateKeys(d, scratch->k.data());
    EncodeKeyGroup(*kernels_, codec.k, scratch->k.data(), d, k_data, k_scale, k_min);
  } else {
    StoreHalfKeys(scratch->k16.data(), d, k_data);
    if (sizes.k_scales > 0) BoundKeys(scratch->k.data(), d, k_scale, k_min);
  }
  if (codec.v == DraftFormat::kF16)
    return StoreHalfValues(scratch->v16.data(), shape_.padded_head_dim(), v_data);
  kernels_->f16_to_f32(scratch->v16.data(), d * kDraftGroup, scratch->v.data());
  if (codec.rotated) RotateValues(d, scratch->v.data());
  EncodeValueGroup(*kernels_, codec.v, scratch->v.data(), d, v_data,
                   head->v_scale.data() + group * sizes.v_scales,
                   head->v_min.data() + group * sizes.v_scales);
}

// Makes groups of the oldest 32 tail keys while as many as the codec wants stay behind them.
void DraftKv::FoldTail(Head* head, int layer, Scratch* scratch) {
  if (!HasGroups(layer)) return;
  const size_t d = shape_.head_dim, dv = shape_.padded_head_dim();
  while (head->num_tail >= codecs_[layer].tail_keys + kDraftGroup) {
    for (size_t half = 0; half < 2; ++half) {
      const uint16_t* k = head->tail_k.data() + half * d * kKvLanes;
      const uint16_t* v = head->tail_v.data() + half * dv * kKvLanes;
      for (size_t c = 0; c < d; ++c)
        std::memcpy(scratch->k16.data() + c * kDraftGroup + half * kKvLanes, k + c * kKvLanes, 32);
      for (size_t c = 0; c < dv; c += 16) {
        for (size_t key = 0; key < kKvLanes; ++key, v += 16)
          std::memcpy(scratch->v16.data() + (half * kKvLanes + key) * dv + c, v, 32);
      }
    }
    ResizeGroups(head, layer, head->num_groups + 1);
    EncodeGroup(head, layer, head->num_groups - 1, scratch);
    DropTailFront(head, kDraftGroup);
  }
}

// Groups [begin, end) of a head, from its kept positions.
void DraftKv::EncodeKept(const FullKvView& view, int layer, int kv_head,
                         absl::Span<const int32_t> kept, int64_t begin, int64_t end,
                         Scratch* scratch) {
  for (int64_t group = begin; group < end; ++group) {
    const absl::Span<const int32_t> keys = kept.subspan(group * kDraftGroup, kDraftGroup);
    for (int half = 0; half < 2; ++half) {
      GatherKeys(view, kv_head, keys.subspan(half * kKvLanes, kKvLanes), kDraftGroup,
                 scratch->k16.data() + half * kKvLanes);
    }
    GatherValues(view, kv_head, keys, 16, shape_.padded_head_dim(), scratch->v16.data());
    EncodeGroup(&HeadAt(layer, kv_head), layer, group, scratch);
  }
}

// Pieces of a head, so that all threads have work where a single head is at hand.
void DraftKv::Rebuild(const LayerViews& layers, const KeptSet& kept, ThreadPool* pool) {
  constexpr int64_t kGroupsPerTask = 16;
  VC_CHECK(kept.positions.size() == heads_.size());
  num_tokens_ = layers.num_tokens();
  std::fill(provisional_.begin() + layers.first, provisional_.begin() + layers.end(), 0);
  ReserveScratch(pool->num_threads());
  const int64_t first = layers.first_list(), num_heads = shape_.num_kv_heads;
  int64_t num_tasks = 1;  // of a head: one for its tail
  for (int64_t list = first; list < layers.end_list(); ++list) {
    const int layer = static_cast<int>(list / num_heads);
    Head& head = heads_[list];
    head.Clear();
    if (!HasGroups(layer)) continue;
    ResizeGroups(&head, layer, NumFreshGroups(codecs_[layer], kept.positions[list].size()));
    num_tasks = std::max(num_tasks, 1 + CeilDiv(head.num_groups, kGroupsPerTask));
  }
  pool->ParallelFor((layers.end_list() - first) * num_tasks, [&](int64_t i, int thread) {
    const int64_t list = first + i / num_tasks, begin = (i % num_tasks - 1) * kGroupsPerTask;
    const int layer = static_cast<int>(list / num_heads), h = static_cast<int>(list % num_heads);
    const absl::Span<const int32_t> positions = kept.positions[list];
    Head& head = heads_[list];
    if (begin < 0) {
      PushTailRows(layers[layer], h, positions.subspan(head.num_groups * kDraftGroup), &head);
    } else {
      EncodeKept(layers[layer], layer, h, positions, begin,
                 std::min(head.num_groups, begin + kGroupsPerTask), &scratch_[thread]);
    }
  });
}

void DraftKv::CommitHead(const FullKvView& view, int layer, int kv_head, int64_t pos_begin,
                         int64_t pos_end, Scratch* scratch) {
  Head& head = HeadAt(layer, kv_head);
  for (int64_t pos = pos_begin; pos < pos_end; pos += kKvLanes) {
    int32_t positions[kKvLanes];
    const size_t n = std::min<int64_t>(kKvLanes, pos_end - pos);
    for (size_t i = 0; i < n; ++i) positions[i] = static_cast<int32_t>(pos + i);
    PushTailRows(view, kv_head, {positions, n}, &head);
  }
  FoldTail(&head, layer, scratch);
}

absl::Status DraftKv::CommitRows(const FullKv& full, int64_t pos_begin, int64_t pos_end,
                                 ThreadPool* pool) {
  if (!full.InRam(pos_begin, pos_end)) {
    Rollback();
    VC_CHECK(pos_begin == num_tokens_);
    num_tokens_ = pos_end;
    ReserveScratch(pool->num_threads());
    return ForEachLayers(full, [&](const LayerViews& layers) {
      for (int list = layers.first_list(); list < layers.end_list(); ++list) {
        const int layer = list / shape_.num_kv_heads;
        CommitHead(layers[layer], layer, list % shape_.num_kv_heads, pos_begin, pos_end,
                   &scratch_[0]);
      }
    });
  }
  // Nothing but these rows is read. Views are made one by one: a steady step allocates nothing.
  CommitRowsOf([&full](int layer) { return full.Committed(layer); }, pos_begin, pos_end, pool);
  return absl::OkStatus();
}

void DraftKv::CommitRowsOf(absl::FunctionRef<FullKvView(int layer)> view_of, int64_t pos_begin,
                           int64_t pos_end, ThreadPool* pool) {
  Rollback();
  VC_CHECK(pos_begin == num_tokens_);
  num_tokens_ = pos_end;
  ReserveScratch(pool->num_threads());
  pool->ParallelFor(shape_.num_layers, [&](int64_t task, int thread) {
    const int layer = static_cast<int>(task);
    const FullKvView view = view_of(layer);
    for (int head = 0; head < shape_.num_kv_heads; ++head)
      CommitHead(view, layer, head, pos_begin, pos_end, &scratch_[thread]);
  });
}

void DraftKv::Append(int layer, const float* k, const float* v, int64_t num_rows) {
  ReserveScratch(1);
  uint16_t *k16 = scratch_[0].k16.data(), *v16 = scratch_[0].v16.data();
  for (int64_t row = 0; row < num_rows; ++row) {
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      const size_t src = (row * shape_.num_kv_heads + h) * shape_.head_dim;
      kernels_->f32_to_f16(k + src, shape_.head_dim, k16);
      kernels_->f32_to_f16(v + src, shape_.head_dim, v16);
      PushTail(&HeadAt(layer, h), k16, v16);
    }
  }
  provisional_[layer] += num_rows;
}

// Removed lanes become zeros again: a bad drafted row must not linger in them.
void DraftKv::PopTail(Head* head, int64_t num_keys) {
  const size_t d = shape_.head_dim, dv = shape_.padded_head_dim();
  for (int64_t i = 0; i < num_keys; ++i) {
    --head->num_tail;
    const size_t group = head->num_tail / kKvLanes, lane = head->num_tail % kKvLanes;
    for (size_t c = 0; c < d; ++c) head->tail_k[(group * d + c) * kKvLanes + lane] = 0;
    for (size_t c = 0; c < dv; ++c)
      head->tail_v[((group * (dv / 16) + c / 16) * kKvLanes + lane) * 16 + c % 16] = 0;
  }
  const size_t groups = CeilDiv(head->num_tail, kKvLanes);
  head->tail_k.ResizeKeep(groups * d * kKvLanes);
  head->tail_v.ResizeKeep(groups * dv * kKvLanes);
}

void DraftKv::Rollback() {
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    for (int h = 0; h < shape_.num_kv_heads; ++h) PopTail(&HeadAt(layer, h), provisional_[layer]);
    provisional_[layer] = 0;
  }
}

void DraftKv::ReserveRows(int64_t num_rows) {
  for (Head& head : heads_) {
    const size_t groups = CeilDiv(head.num_tail + num_rows, kKvLanes);
    head.tail_k.Reserve(groups * shape_.head_dim * kKvLanes);
    head.tail_v.Reserve(groups * shape_.padded_head_dim() * kKvLanes);
  }
}

void DraftKv::Rollback(int64_t num_rows) {
  if (num_rows == 0) return;
  for (int layer = 0; layer < shape_.num_layers; ++layer) {
    VC_CHECK(num_rows >= 0 && num_rows <= provisional_[layer]);
    for (int h = 0; h < shape_.num_kv_heads; ++h) PopTail(&HeadAt(layer, h), num_rows);
    provisional_[layer] -= num_rows;
  }
}

KvView DraftKv::Layer(int layer) {
  for (int h = 0; h < shape_.num_kv_heads; ++h) {
    const Head& head = HeadAt(layer, h);
    DraftHeadView& view = views_[h];
    view.k_format = codecs_[layer].k;
    view.v_format = codecs_[layer].v;
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
    view.rotated = codecs_[layer].rotated;
    const int64_t selected =
        reads_.In(layer) ? reads_.NumSelected(head.num_groups) : head.num_groups;
    view.num_selected = selected < head.num_groups ? selected : 0;
  }
  KvView view;
  view.kind = KvView::Kind::kDraft;
  view.draft = views_;
  return view;
}

}  // namespace vericache
