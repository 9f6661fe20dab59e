// Chooses which positions the draft KV keeps. A pure function of its input, so runs can replay.
//
// START HERE to add a selector (docs/adding_a_compressor.md): a file of its own with one function
// SelectX(spec, input), a line in SelectPositions() and one in draft_spec.cc's table.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kv/draft_kv.h"
#include "kv/draft_spec.h"
#include "kv/layer_views.h"

namespace vericache {

// The last `num_rows` exact query rows, per layer (filled by engine's QueryWindow).
struct QueryRows {
  int64_t first_pos = 0;
  int64_t num_rows = 0;
  int num_heads = 0;
  std::vector<std::vector<float>> q;  // [num_layers][num_rows * num_heads * head_dim], after rope
};

// How much every key matters, larger is more: [layer * num_kv_heads + kv_head][num_scored]. Made by
// engine/scorers.h over the first num_scored positions; those behind are kept whole.
struct KeyScores {
  int64_t num_scored = 0;
  std::vector<std::vector<float>> of_head;
};

struct SelectInput {
  // The K/V: of all layers, or of those to choose for. Only scores by queries read them.
  const LayerViews* layers = nullptr;
  const QueryRows* queries = nullptr;  // needed by snapkv and verify
  // Instead of `queries`, for the lists at hand: votes[list - first_list()], [num_tokens] each, as
  // VotesOf() counts them. Empty: not known yet.
  std::vector<absl::Span<const float>> votes;
  const KeyScores* scores = nullptr;  // needed where spec.score_kind() is not kNone
  const KeptSet* floor = nullptr;     // needed by verify with a floor: KvzipFloor()
  const KeptSet* file = nullptr;      // needed by kept
  const KernelTable* kernels = nullptr;
  ThreadPool* pool = nullptr;

  int64_t num_tokens() const { return layers->num_tokens(); }
  int num_layers() const { return layers->shape().num_layers; }
  int num_kv_heads() const { return layers->shape().num_kv_heads; }
  int num_lists() const { return num_layers() * num_kv_heads(); }
  // Lists of the layers at hand: [first_list(), end_list()).
  int first_list() const { return layers->first_list(); }
  int end_list() const { return layers->end_list(); }
};

// Newest query rows a spec wants to see when it chooses (0: none).
int QueryRowsWanted(const DraftSpec& spec);

// Newest rows that choose after a round of `num_emitted` tokens: vegas asks the round's own.
int64_t QueryRowsOfRound(const DraftSpec& spec, int64_t num_emitted);

// Lists of layers that are not at hand may be empty where the spec scores by queries.
// REQUIRES: there is at least one token; what the spec needs of `input` is there. Fewer queries
// than wanted are taken as they are.
KeptSet SelectPositions(const DraftSpec& spec, const SelectInput& input);

// The empty draft KV that a spec asks for.
DraftKv NewDraftKv(const KvShape& shape, const DraftSpec& spec, const KernelTable* kernels);

// Positions a fraction keeps, at least `floor` and at most all: int(fraction * num_tokens).
int64_t KeptCount(const DraftSpec& spec, int64_t num_tokens, int64_t floor);
// What KeptCount's floor is for `spec`: positions it keeps in any case.
int64_t AlwaysKept(const DraftSpec& spec);

KeptSet SelectSink(const DraftSpec& spec, const SelectInput& input);
KeptSet SelectSnapKv(const DraftSpec& spec, const SelectInput& input);
KeptSet SelectVegas(const DraftSpec& spec, const SelectInput& input);
KeptSet SelectKvzip(const DraftSpec& spec, const SelectInput& input);
KeptSet SelectExpected(const DraftSpec& spec, const SelectInput& input);
KeptSet SelectH2o(const DraftSpec& spec, const SelectInput& input);
KeptSet SelectKept(const SelectInput& input);
// What verify's floor keeps: the share spec.floor of all scored pairs. It does not change while an
// answer is made.
KeptSet KvzipFloor(const DraftSpec& spec, const KeyScores& scores);

// --- Pieces that selectors share -----------------------------------------------------------------
// The `count` positions of largest score, ascending; ties: the lower position. A NaN counts as 0.
std::vector<int32_t> TopPositions(absl::Span<const float> scores, int64_t count);
// The `count` pairs (list, position) of largest score within positions [begin, end), over all lists
// together (KVzip's budget): [list][positions], ascending. Ties: the lower list, then position.
std::vector<std::vector<int32_t>> TopOverHeads(const KeyScores& scores, int64_t begin, int64_t end,
                                               int64_t count);

// Reads positions per layer and head from an .npz file of integer arrays: "L3" for all heads of
// layer 3, "L3H1" for one head, "all" for every layer and head that has none of its own. An array
// has one dimension, in any order; positions are prompt positions from 0.
// ERRORS: kNotFound, kInvalidArgument, kDataLoss: one line that names file and array.
absl::StatusOr<KeptSet> ReadKeptFile(const std::string& path, int num_layers, int num_kv_heads);

}  // namespace vericache
