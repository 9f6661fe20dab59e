// What `compressors` says: a table for people, one JSON object for programs.
#pragma once

#include <string>

#include "cli/compressors.h"

namespace vericache::cli {

// One spec over all prompts of a kind ("": of every kind).
struct SpecSummary {
  int num_prompts = 0;
  int64_t num_rounds = 0;
  double kept_fraction = 1, read_fraction = 1;  // mean over prompts
  // Of rounds, those of all prompts together; the last of an answer is cut by its end.
  double mean_run = 0, median_run = 0, p10_run = 0;
  double agreement = 1;  // of compared tokens
  double mean_kl = 0;    // NaN: what proposes has no distribution
  // Of the prompts that were decoded with the spec.
  int num_decoded = 0, num_identical = 0;
  double first_divergence = 0;  // median; an identical answer counts with its length
  double token_f1 = 0;
  int num_parsed = 0;         // answers of full KV that hold JSON or Python that parses
  int num_still_parsing = 0;  // of these, unverified answers that parse as well,
  int num_same = 0;           // and to the same value
  double verified_tok_s = 0, full_tok_s = 0;
};
SpecSummary Summarize(const CompressorsReport& report, const StudiedSpec& spec,
                      const std::string& kind);

// A table for each kind, at most 100 columns wide, and what its columns mean.
std::string CompressorsTable(const CompressorsReport& report);

// {"model", "draft_len", "specs": [...]} on one line, without a line break.
std::string CompressorsJson(const CompressorsReport& report);

// A line a prompt and spec that was decoded: the three answers. Each with its line break.
std::string AnswerLine(const StudiedPrompt& prompt, const std::string& spec, const StudiedRun& run);

}  // namespace vericache::cli
