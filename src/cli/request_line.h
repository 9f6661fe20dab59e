// One request a line, as JSON: what `batch`, `compare` and `compressors` read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "vericache/options.h"

namespace vericache::cli {

// A member that a line does not have stays as it is here.
struct RequestLine {
  std::string id;        // "custom_id", or "id"
  std::string kind;      // names a group
  std::string prompt;    // raw text
  std::string question;  // one user turn
  std::string messages_json;
  std::string tools_json;  // array of tool schemas, or ""
  std::optional<int64_t> max_tokens;
  // Set over `sampling` as given to ParseRequestLine().
  SamplingOptions sampling;
  std::string draft;             // draft spec, not checked here
  std::optional<int> draft_len;  // 0: "auto"
  int priority = 0;
  std::string unused;  // the first member that nobody reads
};

// Members: "custom_id" or "id", "kind", "prompt", "question", "messages", "tools" (beside
// messages), "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty",
// "frequency_penalty", "repetition_penalty", "draft", "draft_len", "priority"; null is as good as
// none. Other members are somebody else's. How many of prompt, question and messages there must be
// is up to the caller, ranges are checked where the request is made. A line that fails may still
// have told its id in `*id` (may be null). ERRORS: kInvalidArgument, without a line number.
absl::StatusOr<RequestLine> ParseRequestLine(std::string_view line, const SamplingOptions& sampling,
                                             std::string* id = nullptr);

// Exactly one of prompt, question and messages, as a request. ERRORS: kInvalidArgument.
absl::Status SetPrompt(const RequestLine& line, Request* request);
// A chat of one user turn, behind a system message unless that is "".
std::string ChatOf(const std::string& system, const std::string& user);

// Calls `use` with the number (from 1) and text of each line that is not blank, until it fails.
absl::Status ForEachLine(std::string_view text,
                         const std::function<absl::Status(size_t number, std::string_view)>& use);

}  // namespace vericache::cli
