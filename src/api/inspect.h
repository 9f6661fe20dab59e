// What a model file says about itself, for people (internal to src/api).
#pragma once

#include "gguf/reader.h"
#include "model/config.h"
#include "vericache/stats.h"

namespace vericache {

ModelInfo DescribeModel(const GgufFile& file, const ModelConfig& config);

}  // namespace vericache
