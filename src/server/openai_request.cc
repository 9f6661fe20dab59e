#include "server/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"
#include "server/api_error.h"
#include "server/chat_messages.h"
#include "server/fields.h"
#include "server/json.h"

namespace vericache::server {
namespace {

constexpr int kStopsMax = 16;
constexpr size_t kStopBytesMax = 4096;
constexpr int kTopLogprobsMax = 20;
constexpr int kDraftLenMax = 256;  // kMaxDraftLen of the engine
constexpr size_t kPromptsMax = 128;
constexpr size_t kNameBytesMax = 1024;

// 53 bits, so that it survives clients that keep numbers as doubles.
uint64_t RandomSeed() {
  std::random_device device;
  const uint64_t high = device(), low = device();
  return (high << 32 | low) & ((uint64_t{1} << 53) - 1);
}

absl::Status ReadBias(const Fields& fields, int64_t vocab_size, SamplingOptions* sampling) {
  const Json* json = fields.Find("logit_bias");
  if (json == nullptr) return absl::OkStatus();
  if (!json->is_object()) return fields.Bad("logit_bias", "must be an object of token ids");
  for (const auto& [key, value] : json->items()) {
    int32_t id = -1;
    const bool digits = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || !ParseInt(key, &id) || id >= vocab_size)
      return fields.Bad("logit_bias", fmt::format("has the key '{}', no token id from 0 to {}",
                                                  key.substr(0, 64), vocab_size - 1));
    const double bias = value.is_number() ? value.get<double>() : 1e9;
    if (!(bias >= -100 && bias <= 100))
      return fields.Bad("logit_bias", fmt::format("of {} must be a number from -100 to 100", id));
    sampling->logit_bias.emplace_back(id, static_cast<float>(bias));
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const Fields& fields, const RequestRules& rules,
                          SamplingOptions* sampling) {
  VC_RETURN_IF_ERROR(fields.Real("temperature", 0, 100, &sampling->temperature));
  VC_RETURN_IF_ERROR(fields.Real("top_p", 1e-9F, 1, &sampling->top_p));
  VC_RETURN_IF_ERROR(fields.Real("min_p", 0, 1, &sampling->min_p));
  VC_RETURN_IF_ERROR(fields.Real("presence_penalty", -100, 100, &sampling->presence_penalty));
  VC_RETURN_IF_ERROR(fields.Real("frequency_penalty", -100, 100, &sampling->frequency_penalty));
  for (const char* name : {"repetition_penalty", "repeat_penalty"})
    VC_RETURN_IF_ERROR(fields.Real(name, 1e-3F, 1e3F, &sampling->repetition_penalty));
  // -1 is how other servers spell "off".
  VC_RETURN_IF_ERROR(fields.Integer("top_k", int64_t{-1}, int64_t{1} << 40, &sampling->top_k));
  if (sampling->top_k < 0 || sampling->top_k >= rules.vocab_size) sampling->top_k = 0;
  sampling->seed = RandomSeed();
  VC_RETURN_IF_ERROR(fields.Unsigned("seed", &sampling->seed));
  return ReadBias(fields, rules.vocab_size, sampling);
}

absl::Status ReadStops(const Fields& fields, std::vector<std::string>* stops) {
  const Json* json = fields.Find("stop");
  if (json == nullptr) return absl::OkStatus();
  Json list = json->is_string() ? Json::array({*json}) : *json;
  if (!list.is_array() || list.size() > kStopsMax)
    return fields.Bad("stop", fmt::format("must be a text or a list of at most {}", kStopsMax));
  for (const Json& stop : list) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty() ||
        stop.get_ref<const std::string&>().size() > kStopBytesMax)
      return fields.Bad("stop", fmt::format("must hold texts of 1 to {} bytes", kStopBytesMax));
    stops->push_back(stop.get<std::string>());
  }
  return absl::OkStatus();
}

absl::Status ReadLogprobs(const Fields& fields, Endpoint endpoint, ServeRequest* serve) {
  if (endpoint == Endpoint::kCompletions) {
    if (fields.Find("logprobs") == nullptr) return absl::OkStatus();
    serve->logprobs = true;
    return fields.Integer("logprobs", 0, kTopLogprobsMax, &serve->top_logprobs);
  }
  VC_RETURN_IF_ERROR(fields.Flag("logprobs", &serve->logprobs));
  VC_RETURN_IF_ERROR(fields.Integer("top_logprobs", 0, kTopLogprobsMax, &serve->top_logprobs));
  if (serve->top_logprobs > 0 && !serve->logprobs)
    return fields.Bad("top_logprobs", "needs \"logprobs\": true");
  return absl::OkStatus();
}

// "draft", "draft_len", "propose": how tokens are proposed, which changes no answer.
absl::Status ReadExtension(const Json& body, ServeRequest* serve, ApiRequest* request) {
  const auto it = body.find("vericache");
  if (it == body.end() || it->is_null()) return absl::OkStatus();
  if (!it->is_object()) return BadField("vericache", "must be an object");
  const Fields fields(*it, "vericache.");
  Request* r = &serve->request;
  VC_RETURN_IF_ERROR(fields.Text("draft", kNameBytesMax, &r->draft));
  // A spec may name a file of positions on the server: not from a client.
  if (r->draft.find("file") != std::string::npos)
    return fields.Bad("draft", "must not name a file");
  VC_RETURN_IF_ERROR(fields.Text("propose", kNameBytesMax, &r->propose));
  const Json* length = fields.Find("draft_len");
  if (length != nullptr && length->is_string() && *length == "auto") {
    r->draft_len = 0;
  } else {
    VC_RETURN_IF_ERROR(fields.Integer("draft_len", 1, kDraftLenMax, &r->draft_len));
  }
  VC_RETURN_IF_ERROR(fields.Flag("receipt", &request->receipt));
  return fields.Flag("drafts", &serve->drafts);
}

absl::Status ReadLimits(const Fields& fields, const RequestRules& rules, Endpoint endpoint,
                        ServeRequest* serve) {
  Request* r = &serve->request;
  // The legacy endpoint's own default.
  if (endpoint == Endpoint::kCompletions && r->max_tokens <= 0) r->max_tokens = 16;
  if (r->max_tokens <= 0) r->max_tokens = rules.context_length;
  for (const char* name : {"max_tokens", "max_completion_tokens"})
    VC_RETURN_IF_ERROR(fields.Integer(name, int64_t{0}, INT64_MAX / 4, &r->max_tokens));
  r->max_tokens = std::min(r->max_tokens, rules.context_length);
  VC_RETURN_IF_ERROR(fields.Integer("n", 1, rules.choices_max, &serve->num_choices));
  if (endpoint == Endpoint::kCompletions) {
    int best_of = serve->num_choices;
    VC_RETURN_IF_ERROR(fields.Integer("best_of", 1, rules.choices_max, &best_of));
    if (best_of != serve->num_choices) return fields.Bad("best_of", "must be equal to 'n'");
    std::string suffix;
    VC_RETURN_IF_ERROR(fields.Text("suffix", 0, &suffix));
  }
  VC_RETURN_IF_ERROR(fields.Flag("ignore_eos", &r->ignore_eos));
  VC_RETURN_IF_ERROR(fields.Integer("priority", -1000000, 1000000, &r->priority));
  return fields.Text("cache_salt", kNameBytesMax, &r->prefix_salt);
}

// What would bend the answer and is not there: refused before anything is computed.
absl::Status RefuseUnsupported(const Fields& fields) {
  if (const Json* format = fields.Find("response_format"); format != nullptr) {
    if (!format->is_object() || !format->contains("type") || (*format)["type"] != "text")
      return fields.Bad("response_format", "of another type than \"text\" is not supported");
  }
  for (const char* name : {"functions", "function_call"})
    if (fields.Find(name) != nullptr)
      return fields.Bad(name, "is not supported: use \"tools\" and \"tool_choice\"");
  for (const char* name : {"grammar", "json_schema", "guided_json", "guided_regex", "guided_choice",
                           "guided_grammar", "structured_outputs", "audio"})
    if (fields.Find(name) != nullptr) return fields.Bad(name, "is not supported");
  return absl::OkStatus();
}

// "auto" or "none"; true for none.
absl::StatusOr<bool> ReadToolChoice(const Fields& fields, const std::vector<std::string>& names) {
  const Json* choice = fields.Find("tool_choice");
  if (choice == nullptr || *choice == "auto") return false;
  if (*choice == "none") return true;
  if (*choice == "required") {
    if (names.empty()) return fields.Bad("tool_choice", "is \"required\" but there are no tools");
    return fields.Bad("tool_choice", "\"required\" is not supported: use \"auto\" or \"none\"");
  }
  if (!choice->is_object() || !choice->contains("function") || !(*choice)["function"].is_object() ||
      !(*choice)["function"].contains("name") || !(*choice)["function"]["name"].is_string())
    return fields.Bad("tool_choice", "must be \"auto\" or \"none\"");
  const std::string name = (*choice)["function"]["name"].get<std::string>();
  if (std::find(names.begin(), names.end(), name) == names.end())
    return fields.Bad("tool_choice",
                      fmt::format("names '{}', which is not among the tools", name.substr(0, 128)));
  return fields.Bad("tool_choice", "of one function is not supported: use \"auto\" or \"none\"");
}

absl::Status ReadPrompts(const Fields& fields, ApiRequest* request) {
  const Json* prompt = fields.Find("prompt");
  const absl::Status bad = fields.Bad(
      "prompt", "must be a text, a list of texts, a list of token ids, or a list of such lists");
  if (prompt == nullptr) return fields.Bad("prompt", "is missing");
  std::vector<Json> prompts;
  if (prompt->is_string()) {
    prompts.push_back(*prompt);
  } else if (!prompt->is_array() || prompt->empty()) {
    return bad;
  } else if ((*prompt)[0].is_number()) {
    prompts.push_back(*prompt);
  } else {
    if (prompt->size() > kPromptsMax)
      return fields.Bad("prompt", fmt::format("has more than {} prompts", kPromptsMax));
    prompts.assign(prompt->begin(), prompt->end());
  }
  const ServeRequest base = request->prompts[0];
  request->prompts.clear();
  for (const Json& one : prompts) {
    ServeRequest serve = base;
    if (one.is_string()) {
      serve.request.prompt = one.get<std::string>();
      if (serve.request.prompt.empty()) return fields.Bad("prompt", "is empty");
    } else {
      if (!one.is_array() || one.empty()) return bad;
      for (const Json& id : one) {
        if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) return bad;
        serve.request.prompt_token_ids.push_back(id.get<int32_t>());
      }
    }
    request->prompts.push_back(std::move(serve));
  }
  return absl::OkStatus();
}

absl::Status ReadStreaming(const Fields& fields, ApiRequest* request) {
  VC_RETURN_IF_ERROR(fields.Flag("stream", &request->stream));
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!options->is_object()) return fields.Bad("stream_options", "must be an object");
  if (!request->stream) return fields.Bad("stream_options", "needs \"stream\": true");
  return Fields(*options, "stream_options.").Flag("include_usage", &request->include_usage);
}

absl::Status ReadModel(const Fields& fields, const RequestRules& rules, std::string* model) {
  *model = rules.model_id;
  VC_RETURN_IF_ERROR(fields.Text("model", kNameBytesMax, model));
  if (!rules.strict_model || *model == rules.model_id) return absl::OkStatus();
  return WithCode(absl::NotFoundError(fmt::format("there is no model '{}': this server has '{}'",
                                                  *model, rules.model_id)),
                  "model_not_found");
}

// What a chat's tools ask of the decoding.
absl::Status SetTools(const Fields& fields, ApiRequest* request) {
  bool parallel = true;
  VC_RETURN_IF_ERROR(fields.Flag("parallel_tool_calls", &parallel));
  // The one call ends the answer.
  if (!parallel && !request->tool_names.empty()) request->prompts[0].stop.push_back("</tool_call>");
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseChatInput(std::string_view body, const RequestRules& rules, Request* request,
                            std::vector<std::string>* tool_names) {
  VC_ASSIGN_OR_RETURN(const Json unordered, ParseBody(body));
  VC_ASSIGN_OR_RETURN(OrderedJson chat,
                      ParseOrdered(body, {"messages", "tools", "chat_template_kwargs"}));
  const Fields fields(unordered);
  if (!chat.contains("messages")) return fields.Bad("messages", "is missing");
  VC_ASSIGN_OR_RETURN(
      const OrderedJson messages,
      NormaliseMessages(chat["messages"], rules.fold_system ? SystemText::kInFirstUserTurn
                                                            : SystemText::kOwnMessage));
  request->messages_json = Dump(messages);
  tool_names->clear();
  if (fields.Find("tools") != nullptr) {
    VC_ASSIGN_OR_RETURN(*tool_names, CheckTools(chat["tools"]));
  }
  VC_ASSIGN_OR_RETURN(const bool no_tools, ReadToolChoice(fields, *tool_names));
  if (no_tools) tool_names->clear();
  if (!tool_names->empty()) request->tools_json = Dump(chat["tools"]);
  if (fields.Find("chat_template_kwargs") != nullptr) {
    if (!chat["chat_template_kwargs"].is_object())
      return fields.Bad("chat_template_kwargs", "must be an object");
    request->template_kwargs_json = Dump(chat["chat_template_kwargs"]);
  }
  if (fields.Find("enable_thinking") != nullptr) {
    bool thinking = true;
    VC_RETURN_IF_ERROR(fields.Flag("enable_thinking", &thinking));
    OrderedJson kwargs = request->template_kwargs_json.empty() ? OrderedJson::object()
                                                               : chat["chat_template_kwargs"];
    kwargs["enable_thinking"] = thinking;
    request->template_kwargs_json = Dump(kwargs);
  }
  return absl::OkStatus();
}

absl::StatusOr<ApiRequest> ParseApiRequest(Endpoint endpoint, std::string_view body,
                                           const RequestRules& rules) {
  VC_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  const Fields fields(json);
  ApiRequest request;
  request.endpoint = endpoint;
  VC_RETURN_IF_ERROR(ReadModel(fields, rules, &request.model));
  VC_RETURN_IF_ERROR(RefuseUnsupported(fields));
  VC_RETURN_IF_ERROR(ReadStreaming(fields, &request));
  ServeRequest serve;
  serve.request = rules.defaults;
  VC_RETURN_IF_ERROR(ReadSampling(fields, rules, &serve.request.sampling));
  VC_RETURN_IF_ERROR(ReadStops(fields, &serve.stop));
  VC_RETURN_IF_ERROR(ReadLogprobs(fields, endpoint, &serve));
  VC_RETURN_IF_ERROR(ReadLimits(fields, rules, endpoint, &serve));
  VC_RETURN_IF_ERROR(ReadExtension(json, &serve, &request));
  request.prompts.push_back(std::move(serve));
  if (endpoint == Endpoint::kChat) {
    VC_RETURN_IF_ERROR(
        ParseChatInput(body, rules, &request.prompts[0].request, &request.tool_names));
    VC_RETURN_IF_ERROR(SetTools(fields, &request));
    request.split_reasoning = rules.split_reasoning;
    return request;
  }
  VC_RETURN_IF_ERROR(ReadPrompts(fields, &request));
  VC_RETURN_IF_ERROR(fields.Flag("echo", &request.echo));
  for (ServeRequest& prompt : request.prompts)
    prompt.prompt_logprobs = request.echo && prompt.logprobs;
  if (request.prompts.size() * request.prompts[0].num_choices >
      static_cast<size_t>(rules.choices_max))
    return fields.Bad("n",
                      fmt::format("times the number of prompts is above {}", rules.choices_max));
  return request;
}

}  // namespace vericache::server
