// What a draft KV takes of a budget, and the next smaller one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_view.h"
#include "kv/draft_spec.h"

namespace vericache {

// What the scheduler must know of a sequence's drafts.
struct DraftSizes {
  int64_t bytes_per_token = 0;  // of its draft KV at its largest, tails apart; 0: no draft KV
  int64_t fixed_bytes = 0;      // whatever its length: window, tails
  // Modes it may draft in, by ModeBit(); 0: plain, and the draft KV if its spec has one. Those that
  // need what it lacks (a draft KV, Sequence::small_bytes) are left out.
  uint32_t modes = 0;
};

DraftSizes DraftSizesOf(const KvShape& shape, const DraftSpec& spec, uint32_t modes);

// Bytes of the draft KV of `num_tokens` at its largest: the layout's, room for growth and for
// `draft_rows` drafted ones, and what its f16 tail grows by before keys are folded into a group.
size_t DraftBytes(const KvShape& shape, const DraftSpec& spec, int64_t num_tokens,
                  int64_t draft_rows);

// A share of the tokens about a seventh smaller. False: there is none, or the spec's size does not
// hang on it; nothing is changed.
bool ShrinkDraft(DraftSpec* spec);

}  // namespace vericache
