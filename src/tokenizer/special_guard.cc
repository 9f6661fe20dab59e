#include "tokenizer/special_guard.h"

#include <nlohmann/json.hpp>

namespace vericache {
namespace {

using Json = nlohmann::ordered_json;

// U+FDD0 is a noncharacter: no text of ours holds it, and if a hostile one does, the guard grows.
constexpr std::string_view kGuardUnit = "\xEF\xB7\x90";

template <typename Fn>
void ForEachString(Json* value, const Fn& fn) {
  if (value->is_string()) {
    fn(value->get_ref<std::string&>());
  } else if (value->is_structured()) {
    for (Json& child : *value) ForEachString(&child, fn);
  }
}

template <typename Fn>
void ForEachContent(Json* messages, const Fn& fn) {
  if (!messages->is_array()) return;
  for (Json& message : *messages)
    if (message.is_object() && message.contains("content")) ForEachString(&message["content"], fn);
}

}  // namespace

absl::StatusOr<GuardedMessages> GuardSpecialText(std::string_view messages_json,
                                                 const Tokenizer& tokenizer) {
  GuardedMessages out;
  out.json = messages_json;
  Json messages = Json::parse(messages_json, nullptr, /*allow_exceptions=*/false);
  if (messages.is_discarded()) return absl::InvalidArgumentError("messages are not valid JSON");
  bool found = false;
  std::string guard(kGuardUnit);
  ForEachContent(&messages, [&](std::string& text) {
    found |= tokenizer.BreakSpecialText(text, kGuardUnit) != text;
    while (text.find(guard) != text.npos) guard += kGuardUnit;
  });
  if (!found) return out;
  ForEachContent(&messages,
                 [&](std::string& text) { text = tokenizer.BreakSpecialText(text, guard); });
  out.json = messages.dump(-1, ' ', false, Json::error_handler_t::replace);
  out.guard = guard;
  return out;
}

}  // namespace vericache
