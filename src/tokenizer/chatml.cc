#include "tokenizer/chatml.h"

#include <nlohmann/json.hpp>

#include "base/hash.h"

namespace vericache {
namespace {

constexpr ChatMlStyle kStyles[] = {
    // SmolLM2-135M-Instruct.
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788",
     "You are a helpful AI assistant named SmolLM, trained by Hugging Face"},
    // Qwen2.5 and Qwen2.5-Coder, Instruct, all sizes.
    {"cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f",
     "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
};

bool IsPlain(const nlohmann::json& message) {
  if (!message.is_object() || message.size() != 2) return false;
  const auto role = message.find("role");
  const auto content = message.find("content");
  if (role == message.end() || content == message.end()) return false;
  return (*role == "system" || *role == "user" || *role == "assistant") && content->is_string();
}

void AppendMessage(std::string_view role, std::string_view content, std::string* prompt) {
  prompt->append("<|im_start|>").append(role).append("\n");
  prompt->append(content).append("<|im_end|>\n");
}

}  // namespace

const ChatMlStyle* FindChatMlStyle(std::string_view source) {
  const std::string sha256 = HexOf(Sha256Of(source.data(), source.size()));
  for (const ChatMlStyle& style : kStyles)
    if (style.source_sha256 == sha256) return &style;
  return nullptr;
}

std::optional<std::string> RenderChatMl(const ChatMlStyle& style, const ChatRequest& request) {
  if (!request.tools_json.empty() && request.tools_json != "[]") return std::nullopt;
  if (!request.extra_json.empty() && request.extra_json != "{}") return std::nullopt;
  const nlohmann::json messages =
      nlohmann::json::parse(request.messages_json, /*cb=*/nullptr, /*allow_exceptions=*/false);
  // Templates differ on the empty conversation, so it is not plain.
  if (!messages.is_array() || messages.empty()) return std::nullopt;
  std::string prompt;
  for (const nlohmann::json& message : messages) {
    if (!IsPlain(message)) return std::nullopt;
    const auto& role = message["role"].get_ref<const std::string&>();
    if (prompt.empty() && role != "system") AppendMessage("system", style.default_system, &prompt);
    AppendMessage(role, message["content"].get_ref<const std::string&>(), &prompt);
  }
  if (request.add_generation_prompt) prompt.append("<|im_start|>assistant\n");
  return prompt;
}

}  // namespace vericache
