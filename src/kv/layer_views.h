// Layers of a full KV for readers outside a pass: selectors, draft KVs, scorers.
#pragma once

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

  int end() const { return first + static_cast<int>(views.size()); }
  const FullKvView& operator[](int layer) const { return views[layer - first]; }
  const KvShape& shape() const { return views[0].shape; }
  int64_t num_tokens() const { return views[0].num_tokens; }
};

// All layers. REQUIRES: full.num_cold_blocks() == 0, or no row of a spilled block will be read.
LayerViews AllLayers(const FullKv& full);

// Calls fn once with all layers where everything is in RAM, and otherwise once for each layer, in
// order, as it comes in from the tier. COST: reads all spilled blocks once.
// ERRORS: those of reading; what fn saw of a layer then may be anything.
absl::Status ForEachLayers(const FullKv& full, absl::FunctionRef<void(const LayerViews&)> fn);

}  // namespace vericache
