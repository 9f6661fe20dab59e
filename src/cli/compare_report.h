// What `compare` says: a table for people, one JSON object for programs.
#pragma once

#include <string>

#include "cli/compare.h"

namespace vericache::cli {

// One prompt as it is done: what became of its answer without verification, and with it.
std::string CompareLine(const CompareRow& row);

// A row for each prompt, at most 100 columns wide.
std::string CompareTable(const CompareReport& report);

// The two lines that count, the bytes, and, where VeriCache was slower than full KV, how often and
// why.
std::string CompareSummary(const CompareReport& report);

// One line: model, machine, draft.
std::string CompareSetup(const CompareReport& report);

// {"model", "draft", ..., "rows": [...], "summary": {...}} on one line, without a line break.
std::string CompareJson(const CompareReport& report);

}  // namespace vericache::cli
