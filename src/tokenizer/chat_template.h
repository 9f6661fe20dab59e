// Renders a conversation to prompt text with the model's own chat template.
//
// The template is code from a downloaded file. It runs on Jinja2 itself, in a child process
// (/usr/bin/python3 -I, ImmutableSandboxedEnvironment set up as Hugging Face transformers does),
// which is killed after 2 s or 4 MiB of output: byte-identical to transformers, and a hostile
// template harms nobody. Plain ChatML is rendered in C++ and needs no child.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace vericache {

// Limits of one rendering.
struct ChatTemplateLimits {
  int timeout_ms = 2000;
  size_t max_output_bytes = 4 << 20;
};

// One conversation as JSON text, so that only the outermost layers know a JSON library:
//   messages_json  array of {"role", "content", "tool_calls"?, ...}; passed to the template as is
//   tools_json     array of tool schemas, or "" for none
//   extra_json     object of further template variables ("enable_thinking"), or ""
struct ChatRequest {
  std::string messages_json;
  std::string tools_json;
  std::string extra_json;
  bool add_generation_prompt = true;
};

class ChatTemplate {
 public:
  // `source` is tokenizer.chat_template; bos/eos are the texts the template may use. Creating
  // never fails because of the template (case 32): the first Render() does.
  ChatTemplate(std::string source, std::string bos_text, std::string eos_text,
               ChatTemplateLimits limits = {});
  ~ChatTemplate();

  // ERRORS: kInvalidArgument: the template refused (its own words) or is broken (line, construct);
  //         kDeadlineExceeded, kResourceExhausted: over the limits;
  //         kUnavailable: python3 or jinja2 is missing (says what to install).
  // THREADS: safe; renders one at a time.
  absl::StatusOr<std::string> Render(const ChatRequest& request);

  // True if this source is known ChatML, rendered without a child unless tools are given.
  bool is_builtin() const { return builtin_; }

 private:
  struct Child;
  std::string source_, bos_text_, eos_text_;
  ChatTemplateLimits limits_;
  bool builtin_ = false;
  std::unique_ptr<Child> child_;
};

}  // namespace vericache
