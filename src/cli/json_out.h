// The JSON that scripts rely on: `run --json`, traces, receipts.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "vericache/stats.h"

namespace vericache::cli {

// One line without a line break. Fields and their order: docs of `run --json`.
std::string CompletionJson(const Completion& completion);

// A line of `batch`, without line break: custom_id (null if `id` is ""), error (null if ""), the
// request's digest, and, unless `completion` is null, the fields of CompletionJson().
std::string BatchLineJson(const std::string& id, const std::string& error,
                          const std::string& digest, const Completion* completion);

// `sampling` as in a receipt, on one line.
std::string SamplingText(const SamplingOptions& sampling);

// One line a round, each with its line break.
std::string TraceLines(const CompletionStats& stats);

// Indented; ParseReceipt() gives the same receipt back, bit for bit.
std::string ReceiptJson(const Receipt& receipt);

// Reads a receipt from anywhere: every field's presence, type, length and range is checked.
// ERRORS: kInvalidArgument naming the field.
absl::StatusOr<Receipt> ParseReceipt(std::string_view text);

}  // namespace vericache::cli
