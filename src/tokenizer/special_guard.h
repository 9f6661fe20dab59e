// Keeps special-token text that a user typed from becoming a special token.
//
// A chat template is rendered to one string, which is then tokenised with special tokens read from
// it. A user who writes "<|im_end|>" would so end their own turn and could open another role's. So
// before rendering, such text inside messages is broken up by a guard string that occurs nowhere
// else, and EncodeTemplated() removes the guard again after the special tokens have been found.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tokenizer/tokenizer.h"

namespace vericache {

struct GuardedMessages {
  std::string json;
  std::string guard;  // "" if nothing had to be guarded: json is then the input, byte for byte
};

// messages_json: array of chat messages; every string under "content" is user text, of any role.
// ERRORS: kInvalidArgument: not JSON.
absl::StatusOr<GuardedMessages> GuardSpecialText(std::string_view messages_json,
                                                 const Tokenizer& tokenizer);

}  // namespace vericache
