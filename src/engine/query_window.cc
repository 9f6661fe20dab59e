#include "engine/query_window.h"

#include <algorithm>
#include <utility>

#include "base/types.h"

namespace vericache {

namespace {

constexpr int64_t kSlotStep = 16;  // a draft a token longer than the last makes no new ring

}  // namespace

QueryWindow::QueryWindow(const ModelConfig& config, const KernelTable* kernels, int num_rows)
    : kernels_(kernels),
      num_rows_(num_rows),
      num_heads_(config.num_heads),
      row_floats_(static_cast<int64_t>(config.num_heads) * config.head_dim),
      num_slots_(num_rows),
      ring_(config.num_layers, std::vector<uint16_t>(num_slots_ * row_floats_)) {}

void QueryWindow::MayReject(int64_t rows) {
  if (num_rows_ + rows <= num_slots_) return;
  const int64_t num_slots = num_rows_ + RoundUp(rows, kSlotStep);
  for (std::vector<uint16_t>& ring : ring_) {
    std::vector<uint16_t> larger(num_slots * row_floats_);
    for (int64_t pos = std::max(first_pos_, end_pos_ - num_slots_); pos < end_pos_; ++pos)
      std::copy_n(ring.data() + (pos % num_slots_) * row_floats_, row_floats_,
                  larger.data() + (pos % num_slots) * row_floats_);
    ring = std::move(larger);
  }
  num_slots_ = num_slots;
}

void QueryWindow::OnLayer(const LayerRows& rows) {
  const int64_t begin = std::max<int64_t>(0, rows.num_rows - num_slots_);
  for (int64_t row = begin; row < rows.num_rows; ++row)
    kernels_->f32_to_f16(
        rows.q + row * row_floats_, row_floats_,
        ring_[rows.layer].data() + ((rows.first_pos + row) % num_slots_) * row_floats_);
  if (rows.layer + 1 < static_cast<int>(ring_.size())) return;
  const bool joins =
      end_pos_ > first_pos_ && rows.first_pos >= first_pos_ && rows.first_pos <= end_pos_;
  if (!joins) first_pos_ = rows.first_pos;
  end_pos_ = rows.first_pos + rows.num_rows;
}

QueryRows QueryWindow::Take(int64_t end, int64_t max_rows) const {
  QueryRows out;
  out.num_heads = num_heads_;
  // Slots hold the positions from end_pos - num_slots on.
  end = std::clamp(end, first_pos_, end_pos_);
  out.first_pos = std::max({first_pos_, end_pos_ - num_slots_, end - max_rows});
  out.num_rows = std::max<int64_t>(0, end - out.first_pos);
  for (const std::vector<uint16_t>& ring : ring_) {
    std::vector<float> q(out.num_rows * row_floats_);
    for (int64_t i = 0; i < out.num_rows; ++i)
      kernels_->f16_to_f32(ring.data() + ((out.first_pos + i) % num_slots_) * row_floats_,
                           row_floats_, q.data() + i * row_floats_);
    out.q.push_back(std::move(q));
  }
  return out;
}

}  // namespace vericache
