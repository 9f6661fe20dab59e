// ChatML, the format of most small models, rendered without a template engine.
//
// Only for templates whose exact source is known, and for the plain conversations for which the
// result was compared with Jinja2 (chat_template_test.cc); all else is left to the engine.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/chat_template.h"

namespace vericache {

// One known template.
struct ChatMlStyle {
  std::string_view source_sha256;   // of the template, hex
  std::string_view default_system;  // written where the conversation has no system message
};

// The style of a template's source; null if it is not known.
const ChatMlStyle* FindChatMlStyle(std::string_view source);

// The prompt; nullopt if the request is not plain: tools, extra variables, or messages that are
// not {"role": "system" | "user" | "assistant", "content": text} and nothing more.
std::optional<std::string> RenderChatMl(const ChatMlStyle& style, const ChatRequest& request);

}  // namespace vericache
