#include "server/api_error.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "base/text.h"
#include "server/json.h"

namespace vericache::server {
namespace {

constexpr char kParamPayload[] = "vericache/param";
constexpr char kCodePayload[] = "vericache/code";

std::string PayloadOf(const absl::Status& status, const char* url) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  return payload.has_value() ? std::string(*payload) : "";
}

struct Row {
  absl::StatusCode status;
  int http_status;
  const char* type;
  const char* code;
};

// What is not here is our fault: 500.
constexpr Row kRows[] = {
    {absl::StatusCode::kInvalidArgument, 400, "invalid_request_error", ""},
    {absl::StatusCode::kOutOfRange, 400, "invalid_request_error", "context_length_exceeded"},
    {absl::StatusCode::kFailedPrecondition, 400, "invalid_request_error", ""},
    {absl::StatusCode::kUnimplemented, 400, "invalid_request_error", "unsupported"},
    // A chat template that ran too long.
    {absl::StatusCode::kDeadlineExceeded, 400, "invalid_request_error", ""},
    {absl::StatusCode::kUnauthenticated, 401, "invalid_request_error", "invalid_api_key"},
    {absl::StatusCode::kNotFound, 404, "invalid_request_error", "not_found"},
    {absl::StatusCode::kResourceExhausted, 400, "invalid_request_error", "kv_memory_exceeded"},
    {absl::StatusCode::kUnavailable, 503, "server_error", "unavailable"},
    {absl::StatusCode::kCancelled, 503, "server_error", "cancelled"},
    {absl::StatusCode::kDataLoss, 500, "server_error", "data_loss"},
};

}  // namespace

absl::Status BadField(std::string_view param, std::string_view message) {
  absl::Status status = absl::InvalidArgumentError(AsAbsl(StrCat("'", param, "' ", message)));
  status.SetPayload(kParamPayload, absl::Cord(AsAbsl(param)));
  return status;
}

absl::Status WithCode(absl::Status status, std::string_view code) {
  status.SetPayload(kCodePayload, absl::Cord(AsAbsl(code)));
  return status;
}

ApiError ApiErrorOf(const absl::Status& status) {
  ApiError error;
  error.type = "server_error";
  error.code = "internal_error";
  for (const Row& row : kRows) {
    if (row.status != status.code()) continue;
    error.http_status = row.http_status;
    error.type = row.type;
    error.code = row.code;
  }
  error.message = std::string(status.message());
  error.param = PayloadOf(status, kParamPayload);
  if (const std::string code = PayloadOf(status, kCodePayload); !code.empty()) error.code = code;
  // What can never fit is the request's fault; a full queue passes.
  if (status.code() == absl::StatusCode::kResourceExhausted &&
      error.message.find("queue") != std::string::npos) {
    error.http_status = 429;
    error.type = "rate_limit_error";
    error.code = "queue_full";
  }
  if (status.code() == absl::StatusCode::kDataLoss &&
      error.message.find("finite") != std::string::npos)
    error.code = "non_finite_logits";
  error.retry_later = error.http_status == 429 || error.http_status == 503;
  return error;
}

std::string ErrorJson(const ApiError& error) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? OrderedJson() : OrderedJson(text);
  };
  const OrderedJson json = {{"error",
                             {{"message", error.message},
                              {"type", error.type},
                              {"param", text_or_null(error.param)},
                              {"code", text_or_null(error.code)}}}};
  return Dump(json);
}

}  // namespace vericache::server
