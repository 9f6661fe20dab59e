// Layers of a full KV for readers outside a pass: selectors, draft KVs, scorers.
#pragma once

#include <algorithm>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/kv_view.h"
#include "kv/full_kv.h"

namespace vericache {

// Those that are in memory now.
struct LayerViews {
  int first = 0;
  std::vector<FullKvView> views;  // of layers [first, end()), never empty
  int only_head = -1;             // of the one layer at hand only this KV head; -1: all heads

  int end() const { return first + static_cast<int>(views.size()); }
  const FullKvView& operator[](int layer) const { return views[layer - first]; }
  const KvShape& shape() const { return views[0].shape; }
  int64_t num_tokens() const { return views[0].num_tokens; }
  // What is at hand, as lists: layer * num_kv_heads + kv_head, in [first_list(), end_list()).
  int first_list() const { return first * shape().num_kv_heads + std::max(only_head, 0); }
  int end_list() const { return only_head < 0 ? end() * shape().num_kv_heads : first_list() + 1; }
};

// All layers. REQUIRES: full.num_cold_blocks() == 0, or no row of a spilled block will be read.
LayerViews AllLayers(const FullKv& full);

// Calls fn once with all layers where everything is in RAM, and otherwise once for each KV head of
// each layer, in order, as it comes in from the tier. COST: reads all spilled blocks once.
// ERRORS: those of reading; what fn saw then may be anything.
absl::Status ForEachLayers(const FullKv& full, absl::FunctionRef<void(const LayerViews&)> fn);

}  // namespace vericache
