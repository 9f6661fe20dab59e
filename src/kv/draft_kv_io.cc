// Copies of a draft KV, its sizes, and its form in session files: per head two counts, then the raw
// buffers.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/types.h"
#include "kv/codecs/int_codec.h"
#include "kv/draft_kv.h"

namespace vericache {
namespace {

template <typename T>
void CopyBuffer(const AlignedBuffer<T>& from, AlignedBuffer<T>* to) {
  to->Resize(from.size());
  if (from.size() > 0) std::memcpy(to->data(), from.data(), from.size() * sizeof(T));
}

template <typename T>
void AppendBuffer(const AlignedBuffer<T>& buffer, std::string* out) {
  out->append(reinterpret_cast<const char*>(buffer.data()), buffer.size() * sizeof(T));
}

// Takes `count` values off the front; false if there are fewer.
template <typename T>
bool TakeBuffer(std::string_view* bytes, size_t count, AlignedBuffer<T>* buffer) {
  if (bytes->size() / sizeof(T) < count) return false;
  buffer->Resize(count);
  if (count > 0) std::memcpy(buffer->data(), bytes->data(), count * sizeof(T));
  bytes->remove_prefix(count * sizeof(T));
  return true;
}

bool TakeInt(std::string_view* bytes, int64_t max, int64_t* value) {
  if (bytes->size() < sizeof(*value)) return false;
  std::memcpy(value, bytes->data(), sizeof(*value));
  bytes->remove_prefix(sizeof(*value));
  return *value >= 0 && *value <= max;
}

void AppendInt(int64_t value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Bytes of one head, in parts that are read apart.
struct HeadBytes {
  size_t bounds = 0;  // scales and minima of the keys, of one group
  size_t group = 0;   // everything else of one group
  size_t tail_key = 0;
  int64_t num_groups = 0, num_tail = 0;

  size_t Total() const { return num_groups * (bounds + group) + num_tail * tail_key; }
};

HeadBytes BytesOf(const DraftCodec& codec, bool bounded, int head_dim, int64_t num_groups,
                  int64_t num_tail) {
  const size_t scales = 2 * sizeof(uint16_t) * head_dim;
  HeadBytes bytes;
  if (bounded || codec.k != DraftFormat::kF16) bytes.bounds = scales;
  bytes.group = GroupCodeBytes(codec.k, head_dim) + GroupCodeBytes(codec.v, head_dim) +
                (codec.v != DraftFormat::kF16 ? scales : 0);
  bytes.tail_key = 2 * sizeof(uint16_t) * head_dim;
  bytes.num_groups = num_groups;
  bytes.num_tail = num_tail;
  return bytes;
}

}  // namespace

size_t DraftKv::num_bytes() const {
  size_t bytes = 0;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const int layer = static_cast<int>(i) / shape_.num_kv_heads;
    bytes += BytesOf(codecs_[layer], reads_.In(layer), shape_.head_dim, heads_[i].num_groups,
                     heads_[i].num_tail)
                 .Total();
  }
  return bytes;
}

size_t DraftKv::read_bytes_per_step() const {
  size_t bytes = 0;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const int layer = static_cast<int>(i) / shape_.num_kv_heads;
    const HeadBytes head = BytesOf(codecs_[layer], reads_.In(layer), shape_.head_dim,
                                   heads_[i].num_groups, heads_[i].num_tail);
    bytes += head.Total();
    if (reads_.In(layer))
      bytes -= (head.num_groups - reads_.NumSelected(head.num_groups)) * head.group;
  }
  return bytes;
}

size_t DraftKv::LayoutBytes(const KvShape& shape, absl::Span<const DraftCodec> codec_of_layer,
                            int64_t num_kept, const QueryTimeReads& reads) {
  size_t bytes = 0;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const DraftCodec codec = shape.head_dim % 32 == 0 ? codec_of_layer[layer] : DraftCodec();
    const bool has_groups = codec.has_codes() || reads.In(layer);
    const int64_t num_groups = has_groups ? NumFreshGroups(codec, num_kept) : 0;
    bytes += shape.num_kv_heads * BytesOf(codec, reads.In(layer), shape.head_dim, num_groups,
                                          num_kept - num_groups * kDraftGroup)
                                      .Total();
  }
  return bytes;
}

size_t DraftKv::LayoutBytes(const KvShape& shape, const DraftCodec& codec, int64_t num_kept,
                            const QueryTimeReads& reads) {
  return LayoutBytes(shape, std::vector<DraftCodec>(shape.num_layers, codec), num_kept, reads);
}

DraftKv DraftKv::Copy() const {
  DraftKv copy(shape_, codecs_, kernels_);
  copy.falls_back_ = falls_back_;
  copy.reads_ = reads_;
  copy.num_tokens_ = num_tokens_;
  copy.provisional_ = provisional_;
  for (size_t i = 0; i < heads_.size(); ++i) {
    const Head& from = heads_[i];
    Head& to = copy.heads_[i];
    to.num_groups = from.num_groups;
    to.num_tail = from.num_tail;
    CopyBuffer(from.k_data, &to.k_data);
    CopyBuffer(from.v_data, &to.v_data);
    CopyBuffer(from.k_scale, &to.k_scale);
    CopyBuffer(from.k_min, &to.k_min);
    CopyBuffer(from.v_scale, &to.v_scale);
    CopyBuffer(from.v_min, &to.v_min);
    CopyBuffer(from.tail_k, &to.tail_k);
    CopyBuffer(from.tail_v, &to.tail_v);
  }
  return copy;
}

void DraftKv::AppendTo(std::string* out) const {
  for (int64_t rows : provisional_) VC_CHECK(rows == 0);
  AppendInt(num_tokens_, out);
  for (const Head& head : heads_) {
    AppendInt(head.num_groups, out);
    AppendInt(head.num_tail, out);
    AppendBuffer(head.k_data, out);
    AppendBuffer(head.v_data, out);
    AppendBuffer(head.k_scale, out);
    AppendBuffer(head.k_min, out);
    AppendBuffer(head.v_scale, out);
    AppendBuffer(head.v_min, out);
    AppendBuffer(head.tail_k, out);
    AppendBuffer(head.tail_v, out);
  }
}

absl::Status DraftKv::ReadFrom(std::string_view* bytes) {
  const absl::Status damaged = absl::DataLossError("the draft KV does not fit its own sizes");
  const size_t d = shape_.head_dim, dv = shape_.padded_head_dim();
  const int64_t max = static_cast<int64_t>(bytes->size());  // a group or row takes over a byte
  std::fill(provisional_.begin(), provisional_.end(), 0);
  if (!TakeInt(bytes, int64_t{1} << 40, &num_tokens_)) return damaged;
  for (size_t i = 0; i < heads_.size(); ++i) {
    Head& head = heads_[i];
    if (!TakeInt(bytes, max, &head.num_groups) || !TakeInt(bytes, max, &head.num_tail))
      return damaged;
    const int layer = static_cast<int>(i) / shape_.num_kv_heads;
    if (!HasGroups(layer) && head.num_groups != 0) return damaged;
    const GroupSizes sizes = SizesOf(layer);
    const size_t groups = head.num_groups, tail = RoundUp(head.num_tail, kKvLanes);
    if (!TakeBuffer(bytes, groups * sizes.k_bytes, &head.k_data) ||
        !TakeBuffer(bytes, groups * sizes.v_bytes, &head.v_data) ||
        !TakeBuffer(bytes, groups * sizes.k_scales, &head.k_scale) ||
        !TakeBuffer(bytes, groups * sizes.k_scales, &head.k_min) ||
        !TakeBuffer(bytes, groups * sizes.v_scales, &head.v_scale) ||
        !TakeBuffer(bytes, groups * sizes.v_scales, &head.v_min) ||
        !TakeBuffer(bytes, tail * d, &head.tail_k) || !TakeBuffer(bytes, tail * dv, &head.tail_v))
      return damaged;
  }
  return absl::OkStatus();
}

}  // namespace vericache
