// Draft KVs on the user's own prompts: START HERE for `compressors`.
//
//   compressors         runs every prompt with every spec: plain data
//   compressors_report  what it says: table and JSON
//   compressors_plot    run length over kept_fraction, as SVG
//   compressors_command the command line
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/compare_input.h"
#include "cli/compare_text.h"
#include "vericache/compressors.h"

namespace vericache::cli {

// What programs read in an answer.
struct ParsedAnswer {
  JsonVerdict json;  // of a tool call where there is one
  ParseState python = ParseState::kNone;
};

struct StudiedPrompt {
  CompareQuestion question;
  Completion full;
  double full_decode_s = 0;
  ParsedAnswer parsed;
};

// An answer made with the spec, for the prompts that were chosen for it.
struct StudiedRun {
  Completion unverified, verified;
  double verified_decode_s = 0;
  bool identical = false;  // verified: tokens and hash
  int64_t first_divergence = -1;
  double token_f1 = 1;
  ParsedAnswer parsed;  // of the unverified answer
  // Both parse, to the same value; Python: to the same text.
  bool same_json = false, same_python = false;
};

// A draft spec, or what proposes without a draft KV: "ngram", "model NAME".
struct StudiedSpec {
  std::string spec;
  std::vector<DraftReplayReport> replays;       // one a prompt
  std::vector<std::optional<StudiedRun>> runs;  // one a prompt; empty: only replayed
};

struct CompressorsReport {
  ModelInfo model;
  int draft_len = 0;
  std::vector<StudiedPrompt> prompts;
  std::vector<StudiedSpec> specs;

  std::vector<std::string> Kinds() const;  // in order of appearance
  bool AllIdentical() const;
};

struct CompressorsOptions {
  std::vector<std::string> specs;  // canonical
  int draft_len = 64;
  int64_t max_tokens = 0;  // 0: the prompt's own, else the default
  int runs_per_kind = 2;   // prompts of each kind that are decoded with each spec
  Engine* draft_model =
      nullptr;  // a smaller model with the same tokens, for a row beside the specs
};

struct CompressorsCallbacks {
  std::function<bool()> cancelled;  // asked between passes; true ends with kCancelled
  // Before each spec of each prompt, and once at the end. `what` is its id and what is done.
  std::function<void(int64_t done, int64_t total, const std::string& what)> on_step;
  std::function<void(const StudiedPrompt& prompt, const StudiedSpec& spec)> on_studied;
};

// Consecutive prompts that share a beginning share its prefill and its scores.
// ERRORS: those of PromptStudy and Engine, with the prompt's id.
absl::StatusOr<CompressorsReport> StudyCompressors(Engine* engine,
                                                   const std::vector<CompareQuestion>& questions,
                                                   const CompressorsOptions& options,
                                                   const CompressorsCallbacks& callbacks);

}  // namespace vericache::cli
