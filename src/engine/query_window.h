// Keeps the newest exact query rows of each layer: what snapkv and verify score with.
//
// It watches passes over the full KV. A verification's rejected rows come by too; the next pass
// begins before them and writes over them, and Take() is told how many rows hold.
// COST: num_rows query rows a layer in f16 (they rank keys and nothing else), and as many as the
// longest draft so far has had.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "kv/selectors/selector.h"
#include "model/config.h"

namespace vericache {

class QueryWindow : public ForwardObserver {
 public:
  QueryWindow(const ModelConfig& config, const KernelTable* kernels, int num_rows);
  // From now on a pass may bring up to `rows` rows that Take() then rejects.
  void MayReject(int64_t rows);
  void OnLayer(const LayerRows& rows) override;
  // The last rows before position `end`, oldest first: at most `max_rows` of them.
  // REQUIRES: no more rows were seen from `end` on than MayReject() was told of.
  QueryRows Take(int64_t end, int64_t max_rows) const;
  QueryRows Take(int64_t end) const { return Take(end, num_rows_); }
  QueryRows Take() const { return Take(end_pos_); }

 private:
  const KernelTable* kernels_;
  const int num_rows_;
  const int num_heads_;
  const int64_t row_floats_;
  int64_t num_slots_;
  // f16 [num_layers][slot][row_floats], slot = pos % num_slots
  std::vector<std::vector<uint16_t>> ring_;
  int64_t first_pos_ = 0, end_pos_ = 0;  // positions seen by the last layer
};

}  // namespace vericache
