// Full KV, unverified draft KV and VeriCache on the same prompts: START HERE for `compare`.
//
//   compare_input   prompts, or a document with questions, from files
//   compare         runs each prompt three ways from the same prefill: plain data
//   compare_text    what is compared
//   compare_report  the table, the summary and the JSON
//   compare_view    a round as a person can follow it
//   compare_command the command line
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/compare_input.h"
#include "cli/compare_text.h"
#include "vericache/engine.h"

namespace vericache::cli {

// One answer and how long its decoding took: wall time of the call less its prefill.
struct TimedAnswer {
  Completion completion;
  double decode_s = 0;
  int64_t NumDecoded() const;      // tokens but the first, which comes out of the prefill
  double TokensPerSecond() const;  // of the decoded ones; 0 if there are none
};

// One prompt, three ways.
struct CompareRow {
  CompareQuestion question;
  Request request;  // as VeriCache got it; the other two differ in the drafting only
  TimedAnswer full, unverified, verified;

  // Unverified draft KV against full KV.
  int64_t first_divergence = -1;  // -1: the token ids are equal
  double token_f1 = 1;
  std::string full_quote, unverified_quote;  // their text from there on; empty if they are equal
  // Of an answer whose kind is "json" (else kNone).
  ParseState full_json = ParseState::kNone, unverified_json = ParseState::kNone;
  bool same_json = false;  // both parse, to equal values
  ParseState full_python = ParseState::kNone, unverified_python = ParseState::kNone;

  // VeriCache against full KV.
  bool same_tokens = false;
  bool same_hash = false;

  bool UnverifiedIdentical() const { return first_divergence < 0; }
  bool VerifiedIdentical() const { return same_tokens && same_hash; }
  double SpeedRatio() const;  // VeriCache / full KV, of tok/s; 0 if there is none
};

struct CompareReport {
  ModelInfo model;
  std::string draft;  // canonical spec
  int draft_len = 0;  // 0: auto
  std::string document_path;
  int64_t document_tokens = 0;  // 0: no document
  double document_prefill_s = 0;
  std::vector<CompareRow> rows;

  int NumUnverifiedIdentical() const;
  int NumVerifiedIdentical() const;
  bool AllVerifiedIdentical() const;  // what the exit status is made of
};

struct CompareOptions {
  std::string draft = Request().draft;
  int draft_len = 0;
  int64_t max_tokens = 0;  // 0: the question's own, else the default
};

struct CompareCallbacks {
  std::function<bool()> cancelled;  // asked at every token; true ends with kCancelled
  std::function<bool(int64_t done, int64_t total)> on_document;  // its prefill; false cancels
  // Before a prompt is run; `num_done` of `num_all` are finished.
  std::function<void(const CompareQuestion& question, int num_done, int num_all)> on_question;
  // on_text and on_round of VeriCache's answer to the first prompt. The time they take is kept out
  // of the measurement.
  Callbacks live;
  std::function<void(const CompareRow& row)> on_row;  // compared, never before
};

// Runs every prompt three ways, VeriCache first, each from its own fork of the same prefill: no way
// sees what another one left behind. Comparing starts when all three have ended.
// ERRORS: those of Engine::Prefill and Generate, with the prompt's id.
absl::StatusOr<CompareReport> Compare(Engine* engine, const CompareInput& input,
                                      const CompareOptions& options,
                                      const CompareCallbacks& callbacks);

// How a completion came to its end.
AnswerEnd EndOf(const Completion& completion);

// Fills in everything of `row` that follows from the three answers.
void Judge(CompareRow* row);

}  // namespace vericache::cli
