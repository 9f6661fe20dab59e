// The draft spec: which compressor makes the draft KV, written by users as text.
//
//   spec     = "off" | codec | selector [":" fraction] {"," key "=" value} ["+" codec]
//   selector = "sink" | "snapkv" | "verify"            codec = "f16" | "int8" | "int4"
// A codec alone keeps all tokens. The fraction is the share of tokens kept, sinks and recent window
// included. No codec means f16. Examples: "verify:0.25+int4", "int8", "sink:0.1,sinks=8".
// "verify" is snapkv's score over the last verified queries, chosen again after every round.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/kv_view.h"

namespace vericache {

enum class SelectorKind { kAll, kSink, kSnapKv, kVerify };

struct DraftSpec {
  bool enabled = true;  // false: "off", plain full-KV decoding
  SelectorKind selector = SelectorKind::kAll;
  double fraction = 1.0;  // (0, 1]
  int sinks = 4;          // sink: first positions always kept (arXiv 2309.17453)
  int window = 32;        // snapkv, verify: last exact queries that score the keys
  int pool = 7;           // snapkv, verify: width of the max-pool over scores, odd
  DraftFormat codec = DraftFormat::kF16;

  // Chosen from query rows (snapkv's score).
  bool uses_queries() const {
    return enabled && (selector == SelectorKind::kSnapKv || selector == SelectorKind::kVerify);
  }
  // Chosen anew after every verification.
  bool reselects() const { return enabled && selector == SelectorKind::kVerify; }

  std::string ToString() const;  // canonical; parses back to the same spec
};

// ERRORS: kInvalidArgument: one line that names the part and lists what is allowed.
absl::StatusOr<DraftSpec> ParseDraftSpec(std::string_view text);

}  // namespace vericache
