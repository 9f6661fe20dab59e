// The draft spec: which compressor makes the draft KV, written by users as text.
//
//   spec     = "off" | codec | selector [":" fraction] {"," key "=" value} ["+" codec]
// A codec alone keeps all tokens. The fraction is the share of tokens kept, sinks and recent window
// included. No codec means f16. Examples: "verify:0.25+int4", "int8", "sink:0.1,sinks=8",
// "kvzip:0.3+k4v2", "kept,file=mine.npz+int4".
//
// Selectors (recipes and sources: selectors/*.h; codecs: codecs/draft_codec.h):
//   all       every token                     sink     the first tokens and the newest
//   snapkv    what the last queries of the prompt attend to
//   verify    the same, chosen again by the last verified queries after every round
//   kvzip     what a repetition of the prompt attends to; unevenly many tokens a head
//   expected  what queries like those so far will attend to
//   h2o       what all queries so far attended to, and the newest
//   quest     all tokens, of which every step reads the groups that may matter
//   kept      positions from a file
// For experiments by layer, every selector takes keep=LAYERS (these keep all tokens) and f16=LAYERS
// (these are stored in f16); LAYERS is like 0-1/27.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kv/codecs/draft_codec.h"
#include "kv/draft_kv.h"

namespace vericache {

enum class SelectorKind { kAll, kSink, kSnapKv, kVerify, kKvzip, kExpected, kH2o, kQuest, kKept };
// How verify turns queries into scores.
enum class VerifyScore {
  kSnapKv,  // the last `window` queries, per KV head
  kVegas,   // the first and last query of the round, one choice for all heads of a layer
};
// Scores that a selector gets from outside (engine/scorers.h), over the prompt.
enum class ScoreKind { kNone, kKvzip, kExpected, kH2o };

// Layers by ranges, both ends included: {{0, 1}, {27, 27}} is "0-1/27".
struct LayerSet {
  std::vector<std::pair<int, int>> ranges;
  bool Has(int layer) const;
  std::string ToString() const;
};

struct DraftSpec {
  bool enabled = true;  // false: "off", plain full-KV decoding
  SelectorKind selector = SelectorKind::kAll;
  double fraction = 1.0;  // (0, 1]
  int sinks = 4;          // sink, kvzip, expected: first positions always kept
  int window = 32;        // snapkv, verify: last exact queries that score; kvzip, expected: newest
                          // positions always kept
  int pool = 7;           // snapkv, verify: width of the max-pool over scores, odd
  VerifyScore score = VerifyScore::kSnapKv;
  double floor = 0;      // verify: share of tokens that kvzip's scores keep, of `fraction`
  int chunk = 2048;      // kvzip: tokens of one repetition, a multiple of 16
  int future = 512;      // expected: positions ahead that queries are expected at
  int whole = 2;         // quest: first layers that are read whole
  std::string file;      // kept: an .npz file
  LayerSet keep_layers;  // these keep all tokens
  LayerSet f16_layers;   // these are stored in f16
  DraftCodec codec;

  // Chosen from query rows (snapkv's score).
  bool uses_queries() const {
    return enabled && (selector == SelectorKind::kSnapKv || selector == SelectorKind::kVerify);
  }
  // Chosen anew after every verification.
  bool reselects() const { return enabled && selector == SelectorKind::kVerify; }
  ScoreKind score_kind() const;
  // The draft KV holds what the full KV holds.
  bool lossless() const { return enabled && selector == SelectorKind::kAll && !codec.has_codes(); }
  // Specs with equal keys share their scores: "kvzip 2048".
  std::string score_key() const;
  // What layer `layer` is stored as.
  DraftCodec CodecOf(int layer) const { return f16_layers.Has(layer) ? DraftCodec() : codec; }
  std::vector<DraftCodec> CodecsOf(int num_layers) const;
  // Share of tokens that layer `layer` keeps.
  double FractionOf(int layer) const;
  QueryTimeReads reads() const {
    return selector == SelectorKind::kQuest ? QueryTimeReads{fraction, whole} : QueryTimeReads{};
  }

  std::string ToString() const;  // canonical; parses back to the same spec
};

// ERRORS: kInvalidArgument: one line that names the part and lists what is allowed.
absl::StatusOr<DraftSpec> ParseDraftSpec(std::string_view text);

}  // namespace vericache
