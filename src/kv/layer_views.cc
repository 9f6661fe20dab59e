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
  for (int list = 0; list < full.shape().num_layers * full.shape().num_kv_heads; ++list) {
    LayerViews one;
    one.first = list / full.shape().num_kv_heads;
    one.only_head = list % full.shape().num_kv_heads;
    one.views.push_back(reader.Open(one.first, one.only_head));
    if (!reader.status().ok()) break;
    fn(one);
    reader.Close(one.first, one.only_head);
  }
  return reader.status();
}

}  // namespace vericache
