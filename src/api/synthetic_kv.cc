// A block is filled as raw f16 values, whatever their place in its layout: they are all alike. Five
// values come out of one 64-bit draw by way of a table, so that 1 GB takes well below a second.
#include "api/synthetic_kv.h"

#include <array>

#include "base/float16.h"
#include "base/split_mix.h"
#include "base/status_macros.h"
#include "base/types.h"

namespace vericache {
namespace {

constexpr int kTableBits = 12;
constexpr size_t kTableSize = size_t{1} << kTableBits;
constexpr int kValuesPerDraw = 64 / kTableBits;

// f16 values about normal: the sum of 12 uniform numbers in [0, 1) less 6 has variance 1 and stays
// within +-6. Sums of multiples of 2^-16 are exact, so the table is the same everywhere.
std::array<uint16_t, kTableSize> NormalTable(uint64_t seed) {
  std::array<uint16_t, kTableSize> table;
  uint64_t state = seed;
  for (uint16_t& value : table) {
    uint64_t sum = 0;
    for (int i = 0; i < 3; ++i) {
      const uint64_t draw = NextSplitMix(&state);
      for (int part = 0; part < 4; ++part) sum += (draw >> (16 * part)) & 0xffff;
    }
    value = F32ToF16Saturated(static_cast<float>(sum) * 0x1p-16f - 6.0f);
  }
  return table;
}

}  // namespace

absl::Status FillSynthetic(int64_t num_tokens, uint64_t seed, ThreadPool* pool, FullKv* full) {
  VC_RETURN_IF_ERROR(full->ResizeForLoad(num_tokens));
  const std::array<uint16_t, kTableSize> table = NormalTable(seed);
  const size_t num_values = full->block_bytes() / sizeof(uint16_t);
  pool->ParallelFor(full->num_blocks(), [&](int64_t block, int) {
    uint64_t state = seed + 0x1000003 * static_cast<uint64_t>(block + 1);
    uint16_t* values = full->mutable_block(block);
    for (size_t i = 0; i < num_values;) {
      uint64_t draw = NextSplitMix(&state);
      for (int k = 0; k < kValuesPerDraw && i < num_values; ++k, draw >>= kTableBits)
        values[i++] = table[draw % kTableSize];
    }
  });
  return absl::OkStatus();
}

std::unique_ptr<Sequence> SequenceOverSynthetic(const EngineAccess::Impl& impl, const FullKv& full,
                                                int64_t depth, absl::Span<const TokenId> tokens) {
  auto s = std::make_unique<Sequence>(
      full.Fork(depth), Sampler({}, impl.model->config.vocab_size, impl.tokenizer->vocab_size(),
                                impl.model->kernels));
  s->tokens.assign(tokens.begin(), tokens.end());
  s->num_prompt = std::ssize(tokens);
  s->spec.enabled = false;
  s->ends_generation = [](TokenId) { return false; };
  return s;
}

}  // namespace vericache
