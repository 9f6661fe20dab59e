// The words of a conversation, kept beside its KV: SESSION.chat.json.
//
// KV and words may be of different age (a crash between two writes): harmless, since the engine
// reuses the longest common prefix and computes the rest.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vericache::cli {

class ChatHistory {
 public:
  explicit ChatHistory(std::string system);

  // Reads what Save() wrote; every message is checked. ERRORS: kInvalidArgument, kNotFound.
  static absl::StatusOr<ChatHistory> Load(const std::string& path);
  absl::Status Save(const std::string& path) const;
  static std::string PathFor(const std::string& session_path) {
    return session_path + ".chat.json";
  }

  // ERRORS: kInvalidArgument: the text is not UTF-8.
  absl::Status AddUser(const std::string& text);
  void AddAssistant(const std::string& text);
  void RemoveLast() { messages_.erase(messages_.size() - 1); }
  // Forgets all but the system message.
  void Reset();

  const std::string& system() const { return system_; }
  size_t num_messages() const { return messages_.size(); }
  // For Request::messages_json.
  std::string MessagesJson() const;
  // For models without a chat template: the texts, one after another.
  std::string Transcript() const;

 private:
  void Add(const char* role, const std::string& text);

  std::string system_;
  nlohmann::ordered_json messages_;  // [{"role", "content"}], the system message first if any
};

}  // namespace vericache::cli
