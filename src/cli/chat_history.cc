#include "cli/chat_history.h"

#include <fmt/format.h>

#include "base/status_macros.h"
#include "cli/files.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "vericache-chat-1";
constexpr size_t kMessagesMax = 100000;

bool IsMessage(const Json& message) {
  if (!message.is_object() || message.size() != 2) return false;
  const auto role = message.find("role"), content = message.find("content");
  if (role == message.end() || content == message.end()) return false;
  return content->is_string() && (*role == "user" || *role == "assistant" || *role == "system");
}

}  // namespace

ChatHistory::ChatHistory(std::string system) : system_(std::move(system)) { Reset(); }

void ChatHistory::Reset() {
  messages_ = Json::array();
  if (!system_.empty()) Add("system", system_);
}

void ChatHistory::Add(const char* role, const std::string& text) {
  messages_.push_back({{"role", role}, {"content", text}});
}

absl::Status ChatHistory::AddUser(const std::string& text) {
  try {
    (void)Json(text).dump();
  } catch (const Json::type_error&) {
    return absl::InvalidArgumentError("the message is not UTF-8 text");
  }
  Add("user", text);
  return absl::OkStatus();
}

void ChatHistory::AddAssistant(const std::string& text) { Add("assistant", text); }

std::string ChatHistory::MessagesJson() const { return messages_.dump(); }

std::string ChatHistory::Transcript() const {
  std::string text;
  for (const Json& message : messages_) text += message["content"].get<std::string>() + "\n";
  return text;
}

absl::StatusOr<ChatHistory> ChatHistory::Load(const std::string& path) {
  VC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kJsonBytesMax));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const absl::Status bad = absl::InvalidArgumentError(
      fmt::format("{} is damaged or no chat of vericache: move it away to start anew", path));
  if (!json.is_object() || json.value("format", Json()) != kFormat || !json.contains("messages"))
    return bad;
  const Json& messages = json["messages"];
  if (!messages.is_array() || messages.size() > kMessagesMax) return bad;
  ChatHistory history("");
  for (const Json& message : messages) {
    if (!IsMessage(message)) return bad;
    if (message["role"] == "system") {
      if (history.num_messages() > 0) return bad;
      history.system_ = message["content"].get<std::string>();
    }
    history.messages_.push_back(message);
  }
  return history;
}

absl::Status ChatHistory::Save(const std::string& path) const {
  const Json json = {{"format", kFormat}, {"messages", messages_}};
  return WriteFileAtomic(path, json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace vericache::cli
