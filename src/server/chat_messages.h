// Checks the messages and tools of a chat and brings them into the form that templates expect.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/json.h"

namespace vericache::server {

enum class SystemText {
  kOwnMessage,
  kInFirstUserTurn,  // for templates that refuse the system role
};

// Content parts become one text, "developer" becomes "system", arguments of tool calls become
// objects where they are JSON (templates print them so). Other members stay as they are.
// ERRORS: kInvalidArgument naming the message.
absl::StatusOr<OrderedJson> NormaliseMessages(const OrderedJson& messages, SystemText system);

// Names of the functions, each once. ERRORS: kInvalidArgument.
absl::StatusOr<std::vector<std::string>> CheckTools(const OrderedJson& tools);

}  // namespace vericache::server
