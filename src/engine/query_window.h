// Keeps the newest query rows of each layer while a prompt is prefilled: what SnapKV scores with.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kv_view.h"
#include "kv/selectors/selector.h"
#include "model/config.h"

namespace vericache {

class QueryWindow : public ForwardObserver {
 public:
  QueryWindow(const ModelConfig& config, int num_rows);
  void OnLayer(const LayerRows& rows) override;
  // The rows seen last, oldest first: at most num_rows of them.
  QueryRows Take() const;

 private:
  const int num_rows_;
  const int num_heads_;
  const int64_t row_floats_;
  std::vector<std::vector<float>> ring_;  // [num_layers][num_rows][row_floats], slot = pos % rows
  int64_t first_pos_ = 0, end_pos_ = 0;   // positions seen by the last layer
};

}  // namespace vericache
