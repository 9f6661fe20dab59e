// Copies of a draft KV and its form in session files: per head two counts, then the raw buffers.
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

}  // namespace

DraftKv DraftKv::Copy() const {
  DraftKv copy(shape_, codec_, kernels_);
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
  for (Head& head : heads_) {
    if (!TakeInt(bytes, max, &head.num_groups) || !TakeInt(bytes, max, &head.num_tail))
      return damaged;
    if (codec_ == DraftFormat::kF16 && head.num_groups != 0) return damaged;
    const size_t groups = head.num_groups, codes = groups * GroupCodeBytes(codec_, d);
    const size_t tail = RoundUp(head.num_tail, kKvLanes);
    if (!TakeBuffer(bytes, codes, &head.k_data) || !TakeBuffer(bytes, codes, &head.v_data) ||
        !TakeBuffer(bytes, groups * d, &head.k_scale) ||
        !TakeBuffer(bytes, groups * d, &head.k_min) ||
        !TakeBuffer(bytes, groups * d, &head.v_scale) ||
        !TakeBuffer(bytes, groups * d, &head.v_min) || !TakeBuffer(bytes, tail * d, &head.tail_k) ||
        !TakeBuffer(bytes, tail * dv, &head.tail_v))
      return damaged;
  }
  return absl::OkStatus();
}

}  // namespace vericache
