// Errors as OpenAI's clients expect them: an HTTP status and {"error": {...}}.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace vericache::server {

// kInvalidArgument about one field of a request: "param" of the error object.
absl::Status BadField(std::string_view param, std::string_view message);
// A status of any kind with a "code" for programs, such as "model_not_found".
absl::Status WithCode(absl::Status status, std::string_view code);

// What a client gets for a status that is not OK.
struct ApiError {
  int http_status = 500;
  std::string type;   // "invalid_request_error", ...
  std::string param;  // "" is null
  std::string code;   // "" is null
  std::string message;
  bool retry_later = false;  // a Retry-After header
};
ApiError ApiErrorOf(const absl::Status& status);
// {"error":{"message":...,"type":...,"param":...,"code":...}}
std::string ErrorJson(const ApiError& error);

}  // namespace vericache::server
