#include "tokenizer/chat_template.h"

#include <mutex>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tokenizer/chat_child.h"
#include "tokenizer/chatml.h"

namespace vericache {
namespace {

absl::Status TooLong(size_t max_bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the chat template wrote more than ", max_bytes, " bytes and was stopped"));
}

}  // namespace

struct ChatTemplate::Child {
  Child(std::vector<std::string> settings, size_t max_answer_bytes)
      : process(std::move(settings), max_answer_bytes) {}
  std::mutex mutex;  // one rendering at a time
  ChatChild process;
};

ChatTemplate::ChatTemplate(std::string source, std::string bos_text, std::string eos_text,
                           ChatTemplateLimits limits)
    : source_(std::move(source)),
      bos_text_(std::move(bos_text)),
      eos_text_(std::move(eos_text)),
      limits_(limits),
      builtin_(FindChatMlStyle(source_) != nullptr) {
  // The child stops itself by processor time too, lest it outlive a killed parent.
  const int cpu_seconds = limits_.timeout_ms / 1000 + 2;
  // An error text may be longer than a very small limit on the output.
  constexpr size_t kMaxErrorBytes = 16 << 10;
  child_ = std::make_unique<Child>(
      std::vector<std::string>{source_, bos_text_, eos_text_,
                               absl::StrCat(limits_.max_output_bytes), absl::StrCat(cpu_seconds)},
      std::max(limits_.max_output_bytes, kMaxErrorBytes));
}

ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::string> ChatTemplate::Render(const ChatRequest& request) {
  if (const ChatMlStyle* style = FindChatMlStyle(source_); style != nullptr) {
    std::optional<std::string> prompt = RenderChatMl(*style, request);
    if (prompt.has_value() && prompt->size() > limits_.max_output_bytes)
      return TooLong(limits_.max_output_bytes);
    if (prompt.has_value()) return *std::move(prompt);
  }
  const std::lock_guard<std::mutex> lock(child_->mutex);
  VC_ASSIGN_OR_RETURN(
      ChildAnswer answer,
      child_->process.Call({request.messages_json, request.tools_json, request.extra_json,
                            request.add_generation_prompt ? "1" : "0"},
                           limits_.timeout_ms));
  switch (answer.status) {
    case 'o':
      return std::move(answer.text);
    case 'l':
      return TooLong(limits_.max_output_bytes);
    case 'm':
      return absl::ResourceExhaustedError("the chat template ran out of memory");
    default:
      return absl::InvalidArgumentError(answer.text);
  }
}

}  // namespace vericache
