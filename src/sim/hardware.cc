#include "sim/hardware.h"

#include <algorithm>

namespace vericache {

double PassSeconds(const HardwareModel& hw, const SimPass& pass) {
  const double read_s = hw.weight_bytes / hw.memory_bytes_per_s;
  const double matmul_s =
      2 * (hw.weight_params * pass.rows + hw.output_params * pass.logit_rows) / hw.matmul_flops;
  const double kv_s = (pass.full_bytes + pass.draft_bytes) / hw.memory_bytes_per_s;
  const double attention_s = pass.pairs * hw.attention_flops_per_pair / hw.attention_flops;
  return hw.pass_overhead_s + std::max(read_s, matmul_s) + std::max(kv_s, attention_s);
}

HardwareModel NamedHardware(const std::string& name) {
  HardwareModel hw;
  hw.name = name;
  if (name == "cpu-gqa3") {
    hw.attention_flops_per_pair = 4 * 24 * 6 * 64;
  } else if (name == "cpu-mha") {
    // 16 KV heads of their own: 4 flops for 4 bytes of KV, bound by memory.
    hw.full_bytes_per_token = 24 * 16 * 64 * 4;
    hw.attention_flops_per_pair = 4 * 24 * 16 * 64;
  } else if (name == "gpu") {
    hw.memory_bytes_per_s = 2.5e12;
    hw.matmul_flops = 400e12;
    hw.attention_flops = 300e12;
    hw.pass_overhead_s = 0.001;
    hw.link_bytes_per_s = 50e9;
    hw.weight_bytes = 16e9;
    hw.weight_params = 7.5e9;
    hw.output_params = 0.5e9;
    hw.full_bytes_per_token = 131072;
    hw.attention_flops_per_pair = 4 * 32 * 32 * 128;
  }
  return hw;
}

}  // namespace vericache
