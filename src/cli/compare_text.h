// How two answers are compared: token by token, by bag of tokens, and by what a program would read
// in them (JSON, Python). Pure but for ParsePython, which asks the system's interpreter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace vericache::cli {

// Index of the first token that differs; the shorter length if one is the start of the other; -1
// if they are equal.
int64_t FirstDivergence(absl::Span<const int32_t> a, absl::Span<const int32_t> b);

// F1 over the two bags of token ids, in [0, 1]; 1 if both are empty. Symmetric.
double TokenF1(absl::Span<const int32_t> a, absl::Span<const int32_t> b);

// How the answer that a text stands in came to its end.
enum class AnswerEnd { kOwn, kAtTokenLimit };

// What a parser says about the code in an answer.
enum class ParseState {
  kNone,         // the answer holds no such code
  kParses,       //
  kFails,        //
  kCut,          // fails, and the answer ended at its token limit inside the code
  kUnavailable,  // no interpreter, or it gave no verdict in time
};
// "-", "yes", "no", "cut", "n/a": for tables and JSON.
std::string_view ParseStateName(ParseState state);

// The code of an answer: its first fenced block in one of `languages` (lower case; "" stands for no
// language), a block that the answer ends in included.
struct CodeBlock {
  std::string_view code;  // a part of the text it was found in
  bool closed = true;     // false: the text ends before the closing fence
};
std::optional<CodeBlock> FindFencedBlock(std::string_view text,
                                         absl::Span<const std::string_view> languages);

// A JSON value in an answer, in a form that is equal for equal values (keys sorted).
struct JsonVerdict {
  ParseState state = ParseState::kNone;
  std::string canonical;  // set if state is kParses
};
// Looks into the fenced block; without one, at what lies between the first bracket and the last.
JsonVerdict ParseJsonAnswer(std::string_view text, AnswerEnd end);

// Whether the Python in an answer parses: its first fenced block that is marked as Python. Nothing
// of it is run.
// COST: starts one child process if there is such a block.
ParseState ParsePythonAnswer(std::string_view text, AnswerEnd end);

// ast.parse of `code` in an isolated child, killed after `timeout_ms`; `interpreter` is a path.
ParseState ParsePython(std::string_view code, const char* interpreter = "/usr/bin/python3",
                       int timeout_ms = 5000);

}  // namespace vericache::cli
