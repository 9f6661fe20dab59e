#include "kv/layer_views.h"

namespace vericache {

LayerViews AllLayers(const FullKv& full) {
  LayerViews layers;
  for (int layer = 0; layer < full.shape().num_layers; ++layer)
    layers.views.push_back(full.Committed(layer));
  return layers;
}

absl::Status ForEachLayers(const FullKv& full, absl::FunctionRef<void(const LayerViews&)> fn) {
  if (full.num_cold_blocks() == 0) {
    fn(AllLayers(full));
    return absl::OkStatus();
  }
  FullKvReader reader(full);
  for (int layer = 0; layer < full.shape().num_layers; ++layer) {
    LayerViews one;
    one.first = layer;
    one.views.push_back(reader.Open(layer));
    if (!reader.status().ok()) break;
    fn(one);
    reader.Close(layer);
  }
  return reader.status();
}

}  // namespace vericache
