#include "server/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/status_macros.h"
#include "server/api_error.h"

namespace vericache::server {
namespace {

constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool"};
constexpr size_t kToolsMax = 1024;
constexpr size_t kToolNameMax = 128;

bool HasText(const OrderedJson& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string();
}

// A text, or an array of {"type": "text", "text": ...}.
absl::StatusOr<std::string> TextOfContent(const OrderedJson& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return BadField(where, "must be a text or a list of text parts");
  std::string text;
  for (const OrderedJson& part : content) {
    if (!part.is_object() || !HasText(part, "type"))
      return BadField(where, "has a part that is no object with a type");
    if (part["type"] != "text")
      return BadField(where, fmt::format("has a part of type '{}': only text is supported",
                                         part["type"].get<std::string>()));
    if (!HasText(part, "text")) return BadField(where, "has a text part without text");
    text += part["text"].get<std::string>();
  }
  return text;
}

absl::Status NormaliseCalls(const std::string& where, OrderedJson* calls) {
  if (!calls->is_array()) return BadField(where, "must be a list of tool calls");
  for (OrderedJson& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object() ||
        !HasText(call["function"], "name"))
      return BadField(where, "has a call that is no object with function.name");
    OrderedJson& function = call["function"];
    if (!function.contains("arguments") || function["arguments"].is_null()) {
      function["arguments"] = OrderedJson::object();
    } else if (function["arguments"].is_string()) {
      const std::string text = function["arguments"].get<std::string>();
      // The client's own text stays where it is no JSON object: a call that was cut.
      if (!ParseBody(text).ok()) continue;
      const std::string wrapped = "{\"arguments\":" + text + "}";
      VC_ASSIGN_OR_RETURN(OrderedJson parsed, ParseOrdered(wrapped, {"arguments"}));
      function["arguments"] = std::move(parsed["arguments"]);
    } else if (!function["arguments"].is_object()) {
      return BadField(where, "has a call whose arguments are no text");
    }
  }
  return absl::OkStatus();
}

absl::Status NormaliseMessage(const std::string& where, OrderedJson* message) {
  if (!message->is_object()) return BadField(where, "must be an object");
  if (!HasText(*message, "role")) return BadField(where + ".role", "is missing");
  const std::string role = (*message)["role"].get<std::string>();
  if (std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles))
    return BadField(where + ".role",
                    fmt::format("is '{}': use system, developer, user, assistant or tool", role));
  if (role == "developer") (*message)["role"] = "system";
  const bool has_calls =
      role == "assistant" && message->contains("tool_calls") && !(*message)["tool_calls"].is_null();
  if (has_calls) {
    VC_RETURN_IF_ERROR(NormaliseCalls(where + ".tool_calls", &(*message)["tool_calls"]));
  } else {
    message->erase("tool_calls");
  }
  if (!message->contains("content") || (*message)["content"].is_null()) {
    if (role != "assistant") return BadField(where + ".content", "is missing");
    (*message)["content"] = "";
    return absl::OkStatus();
  }
  VC_ASSIGN_OR_RETURN(const std::string text,
                      TextOfContent((*message)["content"], where + ".content"));
  (*message)["content"] = text;
  return absl::OkStatus();
}

// What the system says goes to the front of the first user turn, after an empty line.
OrderedJson FoldSystem(const OrderedJson& messages) {
  std::string system;
  OrderedJson folded = OrderedJson::array();
  for (const OrderedJson& message : messages) {
    if (message["role"] == "system") {
      if (!system.empty()) system += "\n\n";
      system += message["content"].get<std::string>();
    } else {
      folded.push_back(message);
    }
  }
  if (system.empty()) return folded;
  for (OrderedJson& message : folded) {
    if (message["role"] != "user") continue;
    message["content"] = system + "\n\n" + message["content"].get<std::string>();
    return folded;
  }
  folded.insert(folded.begin(), OrderedJson{{"role", "user"}, {"content", system}});
  return folded;
}

}  // namespace

absl::StatusOr<OrderedJson> NormaliseMessages(const OrderedJson& messages, SystemText system) {
  if (!messages.is_array() || messages.empty())
    return BadField("messages", "must be a list of messages that is not empty");
  OrderedJson normal = messages;
  for (size_t i = 0; i < normal.size(); ++i)
    VC_RETURN_IF_ERROR(NormaliseMessage(fmt::format("messages[{}]", i), &normal[i]));
  return system == SystemText::kInFirstUserTurn ? FoldSystem(normal) : normal;
}

absl::StatusOr<std::vector<std::string>> CheckTools(const OrderedJson& tools) {
  if (!tools.is_array() || tools.size() > kToolsMax)
    return BadField("tools", fmt::format("must be a list of at most {} tools", kToolsMax));
  std::vector<std::string> names;
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const OrderedJson& tool = tools[i];
    if (!tool.is_object() || !HasText(tool, "type") || tool["type"] != "function" ||
        !tool.contains("function") || !tool["function"].is_object())
      return BadField(where, "must be {\"type\": \"function\", \"function\": {...}}");
    const OrderedJson& function = tool["function"];
    if (!HasText(function, "name")) return BadField(where + ".function.name", "is missing");
    const std::string name = function["name"].get<std::string>();
    if (name.empty() || name.size() > kToolNameMax)
      return BadField(where + ".function.name",
                      fmt::format("must have 1 to {} bytes", kToolNameMax));
    if (function.contains("parameters") && !function["parameters"].is_object() &&
        !function["parameters"].is_null())
      return BadField(where + ".function.parameters", "must be an object");
    if (std::find(names.begin(), names.end(), name) != names.end())
      return BadField(where + ".function.name", fmt::format("'{}' is there twice", name));
    names.push_back(name);
  }
  return names;
}

}  // namespace vericache::server
