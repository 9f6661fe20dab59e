// Fuzzes what the server reads from strangers. The first byte says what the rest is:
//   - even: the body of a chat, of a completion, or of /tokenize, to requests of the engine. It is
//     taken or refused with a message of UTF-8; what is taken is within the limits;
//   - odd: an answer with reasoning and tool calls. However it is cut into pieces, what comes out
//     is the same, and the deltas add up to it.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "server/choice_text.h"
#include "server/json.h"
#include "server/openai_request.h"

namespace vericache::server {
namespace {

constexpr int64_t kContext = 4096, kVocab = 1000;

RequestRules Rules(uint8_t bits) {
  RequestRules rules;
  rules.context_length = kContext;
  rules.vocab_size = kVocab;
  rules.model_id.assign(1, 'm');
  rules.strict_model = (bits & 1) != 0;
  rules.fold_system = (bits & 2) != 0;
  return rules;
}

void CheckTaken(const ApiRequest& taken) {
  VC_CHECK(!taken.prompts.empty());
  for (const ServeRequest& serve : taken.prompts) {
    const Request& request = serve.request;
    VC_CHECK(request.max_tokens >= 0 && request.max_tokens <= kContext);
    VC_CHECK(serve.num_choices >= 1 && serve.top_logprobs >= 0 && serve.top_logprobs <= 20);
    VC_CHECK(request.draft.find("file") == std::string::npos);
    const int given = !request.prompt.empty() + !request.prompt_token_ids.empty() +
                      !request.messages_json.empty();
    VC_CHECK(given == 1);
    for (const std::string& stop : serve.stop) VC_CHECK(!stop.empty());
    for (const auto& [id, bias] : request.sampling.logit_bias)
      VC_CHECK(id >= 0 && id < kVocab && bias >= -100 && bias <= 100);
    for (const std::string* text :
         {&request.messages_json, &request.tools_json, &request.template_kwargs_json})
      VC_CHECK(text->empty() || Json::accept(*text));
  }
  VC_CHECK(taken.tool_names.empty() || !taken.prompts[0].request.tools_json.empty());
}

void CheckRefused(const absl::Status& status) {
  const Json message(std::string(status.message()));
  VC_CHECK(!status.message().empty());
  VC_CHECK(message.dump(-1, ' ', false, Json::error_handler_t::ignore) ==
           message.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void CheckBody(std::string_view body, uint8_t bits) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletions}) {
    const absl::StatusOr<ApiRequest> taken = ParseApiRequest(endpoint, body, Rules(bits));
    if (taken.ok()) {
      CheckTaken(*taken);
    } else {
      CheckRefused(taken.status());
    }
  }
  Request request;
  std::vector<std::string> names;
  const absl::Status status = ParseChatInput(body, Rules(bits), &request, &names);
  if (!status.ok()) CheckRefused(status);
}

struct Answer {
  std::string reasoning, content, calls;
  bool operator==(const Answer&) const = default;
};

// `sizes` are those of the pieces, over and over.
Answer Split(std::string_view text, ReasoningStart start, const std::vector<size_t>& sizes) {
  ChoiceText choice(start, {"f", "get_weather"});
  Answer told;
  std::vector<std::string> calls;  // name and arguments, one behind the other
  const auto add = [&](const TextDelta& delta) {
    told.reasoning += delta.reasoning;
    told.content += delta.content;
    for (const ToolDelta& call : delta.calls) {
      if (!call.name.empty()) calls.push_back(call.name);
      VC_CHECK(call.index >= 0 && call.index < static_cast<int>(calls.size()));
      calls[call.index] += call.arguments;
    }
  };
  for (size_t i = 0; !text.empty(); ++i) {
    const size_t size = std::min(text.size(), sizes[i % sizes.size()]);
    add(choice.Push(text.substr(0, size)));
    text.remove_prefix(size);
  }
  add(choice.Finish());
  VC_CHECK(told.reasoning == choice.reasoning() && told.content == choice.content());
  VC_CHECK(calls.size() == choice.calls().size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const ToolCall& call = choice.calls()[i];
    VC_CHECK(calls[i] == call.name + call.arguments);
    told.calls += calls[i];
    told.calls += '\n';
  }
  return told;
}

void CheckAnswer(std::string_view text, uint8_t bits) {
  const auto start = static_cast<ReasoningStart>((bits >> 1) % 3);
  const Answer whole = Split(text, start, {text.size() + 1});
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{1}, std::vector<size_t>{2, 3}, std::vector<size_t>{7, 1, 11}})
    VC_CHECK(Split(text, start, sizes) == whole);
}

}  // namespace
}  // namespace vericache::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) == 0) {
    vericache::server::CheckBody(rest, data[0] >> 1);
  } else {
    vericache::server::CheckAnswer(rest, data[0]);
  }
  return 0;
}
