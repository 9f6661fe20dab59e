// The JSON that scripts rely on: `run --json`, traces, receipts.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "vericache/stats.h"

namespace vericache::cli {

// One line without a line break. Fields and their order: docs of `run --json`.
std::string CompletionJson(const Completion& completion);

// One line a round, each with its line break.
std::string TraceLines(const CompletionStats& stats);

// Indented; ParseReceipt() gives the same receipt back, bit for bit.
std::string ReceiptJson(const Receipt& receipt);

// Reads a receipt from anywhere: every field's presence, type, length and range is checked.
// ERRORS: kInvalidArgument naming the field.
absl::StatusOr<Receipt> ParseReceipt(std::string_view text);

}  // namespace vericache::cli
