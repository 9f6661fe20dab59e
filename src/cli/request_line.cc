#include "cli/request_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "base/types.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::ordered_json;  // templates show tools as they were written

// Far above any schema of a tool; deeper input would only serve to exhaust the stack.
constexpr int kDepthMax = 200;
constexpr int kKeysMax = 20000;  // in all: a key is looked up among its neighbours one by one
// What rounds to a finite float lies below this: half a step above the largest one.
constexpr double kFloatLimit = 0x1.ffffffp127;

constexpr std::string_view kMembers[] = {"custom_id",
                                         "id",
                                         "kind",
                                         "prompt",
                                         "question",
                                         "messages",
                                         "tools",
                                         "max_tokens",
                                         "temperature",
                                         "top_k",
                                         "top_p",
                                         "min_p",
                                         "seed",
                                         "presence_penalty",
                                         "frequency_penalty",
                                         "repetition_penalty",
                                         "draft",
                                         "draft_len",
                                         "priority"};

absl::Status MustBe(const char* key, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("\"{}\" must be {}", key, what));
}

// The member as a text that is not empty; "" if there is none. ERRORS: it has another type.
absl::StatusOr<std::string> GetText(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return std::string();
  if (!it->is_string() || it->get_ref<const std::string&>().empty())
    return MustBe(key, "a text that is not empty");
  return it->get<std::string>();
}

absl::Status GetSampling(const Json& object, SamplingOptions* s) {
  for (const auto& [key, value] : {std::pair<const char*, float*>{"temperature", &s->temperature},
                                   {"top_p", &s->top_p},
                                   {"min_p", &s->min_p},
                                   {"presence_penalty", &s->presence_penalty},
                                   {"frequency_penalty", &s->frequency_penalty},
                                   {"repetition_penalty", &s->repetition_penalty}}) {
    const auto it = object.find(key);
    if (it == object.end()) continue;
    if (!it->is_number() || !(std::fabs(it->get<double>()) < kFloatLimit))
      return MustBe(key, "a number");
    *value = it->get<float>();
  }
  for (const char* key : {"top_k", "seed"}) {
    const auto it = object.find(key);
    if (it == object.end()) continue;
    if (!it->is_number_unsigned()) return MustBe(key, "a whole number, 0 or more");
    const uint64_t number = it->get<uint64_t>();
    if (key[0] == 's') {
      s->seed = number;
    } else {
      s->top_k = static_cast<int64_t>(std::min<uint64_t>(number, INT64_MAX));
    }
  }
  return absl::OkStatus();
}

// A float such as 5.0 is no integer; what is above int64 is unsigned.
bool IsWithin(const Json& value, int64_t min, int64_t max) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return false;
  return value.get<int64_t>() >= min && value.get<int64_t>() <= max;
}

absl::Status GetLimits(const Json& object, RequestLine* line) {
  if (const auto it = object.find("max_tokens"); it != object.end()) {
    if (!IsWithin(*it, 0, INT64_MAX)) return MustBe("max_tokens", "a whole number, 0 or more");
    line->max_tokens = it->get<int64_t>();
  }
  if (const auto it = object.find("draft_len"); it != object.end()) {
    const bool automatic = it->is_string() && it->get_ref<const std::string&>() == "auto";
    if (!automatic && !IsWithin(*it, 1, kMaxDraftLen))
      return MustBe("draft_len",
                    fmt::format("\"auto\" or a whole number from 1 to {}", kMaxDraftLen));
    line->draft_len = automatic ? 0 : it->get<int>();
  }
  if (const auto it = object.find("priority"); it != object.end()) {
    if (!IsWithin(*it, -1000000, 1000000))
      return MustBe("priority", "a whole number from -1000000 to 1000000");
    line->priority = it->get<int>();
  }
  return absl::OkStatus();
}

absl::Status GetChat(const Json& object, RequestLine* line) {
  if (const auto messages = object.find("messages"); messages != object.end()) {
    if (!messages->is_array() || messages->empty())
      return MustBe("messages", "a list of chat messages");
    line->messages_json = messages->dump();
  }
  if (const auto tools = object.find("tools"); tools != object.end()) {
    if (!tools->is_array() || line->messages_json.empty())
      return MustBe("tools", "a list, beside \"messages\"");
    if (!tools->empty()) line->tools_json = tools->dump();
  }
  return absl::OkStatus();
}

// Duplicate keys in JSON: the last one counts, as everywhere.
absl::StatusOr<Json> ParseObject(std::string_view text) {
  bool too_deep = false;
  int num_keys = 0;
  const auto limit_depth = [&](int depth, Json::parse_event_t event, Json&) {
    too_deep |= depth > kDepthMax;
    num_keys += event == Json::parse_event_t::key;
    return depth <= kDepthMax && num_keys <= kKeysMax;
  };
  Json object = Json::parse(text, limit_depth, /*allow_exceptions=*/false);
  if (too_deep)
    return absl::InvalidArgumentError(
        fmt::format("the JSON is nested more than {} levels deep", kDepthMax));
  if (num_keys > kKeysMax)
    return absl::InvalidArgumentError(
        fmt::format("the JSON has more than {} keys, which no request needs", kKeysMax));
  if (!object.is_object()) return absl::InvalidArgumentError("expected one JSON object a line");
  for (auto it = object.begin(); it != object.end();)
    it = it->is_null() ? object.erase(it) : std::next(it);  // as clients of other servers write it
  return object;
}

}  // namespace

absl::StatusOr<RequestLine> ParseRequestLine(std::string_view text, const SamplingOptions& sampling,
                                             std::string* id) {
  RequestLine line;
  line.sampling = sampling;
  VC_ASSIGN_OR_RETURN(const Json object, ParseObject(text));
  VC_ASSIGN_OR_RETURN(line.id, GetText(object, object.contains("custom_id") ? "custom_id" : "id"));
  if (id != nullptr) *id = line.id;
  VC_ASSIGN_OR_RETURN(line.kind, GetText(object, "kind"));
  VC_ASSIGN_OR_RETURN(line.prompt, GetText(object, "prompt"));
  VC_ASSIGN_OR_RETURN(line.question, GetText(object, "question"));
  VC_ASSIGN_OR_RETURN(line.draft, GetText(object, "draft"));
  VC_RETURN_IF_ERROR(GetLimits(object, &line));
  VC_RETURN_IF_ERROR(GetSampling(object, &line.sampling));
  VC_RETURN_IF_ERROR(GetChat(object, &line));
  for (const auto& [key, value] : object.items())
    if (line.unused.empty() &&
        std::find(std::begin(kMembers), std::end(kMembers), key) == std::end(kMembers))
      line.unused = key;
  return line;
}

std::string ChatOf(const std::string& system, const std::string& user) {
  Json messages = Json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", user}});
  return messages.dump();
}

absl::Status SetPrompt(const RequestLine& line, Request* request) {
  const int given = !line.question.empty() + !line.prompt.empty() + !line.messages_json.empty();
  if (given != 1)
    return absl::InvalidArgumentError("give one of \"prompt\", \"question\" and \"messages\"");
  request->prompt = line.prompt;
  request->messages_json = line.question.empty() ? line.messages_json : ChatOf("", line.question);
  request->tools_json = line.tools_json;
  return absl::OkStatus();
}

absl::Status ForEachLine(std::string_view text,
                         const std::function<absl::Status(size_t, std::string_view)>& use) {
  size_t number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    VC_RETURN_IF_ERROR(use(number, line));
  }
  return absl::OkStatus();
}

}  // namespace vericache::cli
