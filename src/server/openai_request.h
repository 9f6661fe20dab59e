// From the JSON of /v1/chat/completions and /v1/completions to requests of the engine.
//
// Every field that means something here is checked, and an error names it; fields that nobody reads
// are ignored, null is the default. What would change the answer and is not there (response_format,
// a forced tool_choice, images) is refused, never dropped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "vericache/serving.h"

namespace vericache::server {

enum class Endpoint { kChat, kCompletions };

// What a request that leaves a field out gets, and what the server allows.
struct RequestRules {
  Request defaults;            // draft, draft_len, propose, max_tokens, sampling
  int64_t context_length = 0;  // stands for "no limit" of max_tokens
  int64_t vocab_size = 0;
  std::string model_id;       // echoed where a request names none
  bool strict_model = false;  // other names are refused
  bool fold_system = false;   // system text goes into the first user turn
  bool split_reasoning = true;
  int choices_max = 128;  // of all prompts of a request
};

struct ApiRequest {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;                    // as the client wrote it
  std::vector<ServeRequest> prompts;    // one, but for completions of several
  std::vector<std::string> tool_names;  // calls of these are looked for; empty: of none
  bool split_reasoning = false;
  bool stream = false;
  bool include_usage = false;  // a last chunk with usage
  bool echo = false;
  bool receipt = false;
};

// ERRORS: kInvalidArgument (BadField), kNotFound (strict_model).
absl::StatusOr<ApiRequest> ParseApiRequest(Endpoint endpoint, std::string_view body,
                                           const RequestRules& rules);

// The messages and tools of a chat, checked and normalised, as a request: for /tokenize too.
// With a tool_choice of "none" tools are checked and left out.
absl::Status ParseChatInput(std::string_view body, const RequestRules& rules, Request* request,
                            std::vector<std::string>* tool_names);

}  // namespace vericache::server
