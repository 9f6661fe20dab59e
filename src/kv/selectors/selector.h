// Chooses which positions the draft KV keeps. A pure function of its input, so runs can replay.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kv/draft_kv.h"
#include "kv/draft_spec.h"
#include "kv/full_kv.h"

namespace vericache {

// The last `num_rows` exact query rows, per layer (filled by engine's QueryWindow).
struct QueryRows {
  int64_t first_pos = 0;
  int64_t num_rows = 0;
  int num_heads = 0;
  std::vector<std::vector<float>> q;  // [num_layers][num_rows * num_heads * head_dim], after rope
};

struct SelectInput {
  const FullKv* full = nullptr;
  const QueryRows* queries = nullptr;  // needed by snapkv and verify
  const KernelTable* kernels = nullptr;
  ThreadPool* pool = nullptr;
};

// Newest query rows a spec wants to see when it chooses (0: none).
int QueryRowsWanted(const DraftSpec& spec);

// REQUIRES: full has at least one token; queries has QueryRowsWanted rows, or all there are.
KeptSet SelectPositions(const DraftSpec& spec, const SelectInput& input);

// Positions a fraction keeps, at least `floor` and at most all: int(fraction * num_tokens).
int64_t KeptCount(const DraftSpec& spec, int64_t num_tokens, int64_t floor);

KeptSet SelectSink(const DraftSpec& spec, const SelectInput& input);
KeptSet SelectSnapKv(const DraftSpec& spec, const SelectInput& input);

}  // namespace vericache
