// A machine in a few numbers: what a pass takes, from first principles rather than from the
// scheduler's own cost model, so that the model is judged by something it cannot copy.
#pragma once

#include <cstdint>
#include <string>

namespace vericache {

struct HardwareModel {
  std::string name = "cpu";
  double memory_bytes_per_s = 20e9;
  double matmul_flops = 200e9;     // weights x rows
  double attention_flops = 100e9;  // QK and PV
  double pass_overhead_s = 0.0005;
  double link_bytes_per_s = 1e9;
  double link_latency_s = 0.0002;
  double noise = 0;  // spread of a pass's and a transfer's time
  // The model it runs.
  double weight_bytes = 392e6;
  double weight_params = 360e6;  // 2 flops each and row
  double output_params = 136e6;  // the output matrix: rows with logits only
  double full_bytes_per_token = 12288;
  double attention_flops_per_pair = 4 * 24 * 14 * 64;  // a row, a token: all layers and heads
};

struct SimPass {
  double rows = 0, logit_rows = 0;
  double full_bytes = 0;   // full KV read, once for each row group
  double draft_bytes = 0;  // draft KV read
  double pairs = 0;        // row x token, full KV and draft KV alike
};

// Weights once or the rows' arithmetic, whichever takes longer; the same for KV and attention.
double PassSeconds(const HardwareModel& hardware, const SimPass& pass);

// Named shapes: "cpu-gqa" (0.5b, 7 heads a KV head), "cpu-gqa3", "cpu-mha", "gpu" (H100-class).
HardwareModel NamedHardware(const std::string& name);

}  // namespace vericache
