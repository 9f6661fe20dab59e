#include "cli/json_out.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::ordered_json;

// A receipt has three levels: the object, `sampling`, a pair in `logit_bias` inside its array.
constexpr int kReceiptDepthMax = 4;
// What rounds to a finite float lies below this: half a step above the largest one.
constexpr double kFloatLimit = 0x1.ffffffp127;

// 0.7F is written 0.7 and not 0.699999988079071, as long as that reads back as the same float.
double ShortestDouble(float value) {
  const double shortest = std::strtod(fmt::format("{}", value).c_str(), nullptr);
  return static_cast<float>(shortest) == value ? shortest : static_cast<double>(value);
}

// Invalid UTF-8 becomes U+FFFD instead of an exception.
std::string Dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

absl::Status BadField(std::string_view field, std::string_view expected) {
  return absl::InvalidArgumentError(
      fmt::format("the receipt is not usable: '{}' must be {}", field, expected));
}

absl::StatusOr<std::string> GetText(const Json& object, const char* field) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_string()) return BadField(field, "a text");
  return it->get<std::string>();
}

absl::StatusOr<std::string> GetHash(const Json& object, const char* field) {
  VC_ASSIGN_OR_RETURN(std::string text, GetText(object, field));
  if (text.size() != 64 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    return BadField(field, "64 lower-case hexadecimal digits");
  return text;
}

absl::StatusOr<std::vector<int32_t>> GetIds(const Json& object, const char* field) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_array() || it->empty())
    return BadField(field, "a list of token ids, not empty");
  std::vector<int32_t> ids;
  ids.reserve(it->size());
  for (const Json& id : *it) {
    // A float such as 1e300 is no number_integer; what is above int64 is number_unsigned.
    if (!id.is_number_integer() ||
        (id.is_number_unsigned() && id.get<uint64_t>() > std::numeric_limits<int32_t>::max()) ||
        id.get<int64_t>() < 0)
      return BadField(field, "a list of whole numbers from 0 to 2147483647");
    ids.push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
  return ids;
}

absl::Status GetFloat(const Json& object, const char* field, float* value) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_number()) return BadField(field, "a number");
  const double number = it->get<double>();
  if (!(std::fabs(number) < kFloatLimit))
    return BadField(field, "a number within the range of 32-bit floats");
  *value = static_cast<float>(number);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> GetUnsigned(const Json& object, const char* field, uint64_t max) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_number_unsigned() || it->get<uint64_t>() > max)
    return BadField(field, fmt::format("a whole number from 0 to {}", max));
  return it->get<uint64_t>();
}

absl::Status GetLogitBias(const Json& object, SamplingOptions* sampling) {
  const auto it = object.find("logit_bias");
  if (it == object.end()) return absl::OkStatus();
  if (!it->is_array()) return BadField("logit_bias", "a list of [token id, number]");
  for (const Json& pair : *it) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_unsigned() ||
        pair[0].get<uint64_t>() > std::numeric_limits<int32_t>::max() || !pair[1].is_number() ||
        !(std::fabs(pair[1].get<double>()) < kFloatLimit))
      return BadField("logit_bias", "a list of [token id, number]");
    sampling->logit_bias.emplace_back(pair[0].get<int32_t>(), pair[1].get<float>());
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingOptions> GetSampling(const Json& receipt) {
  const auto it = receipt.find("sampling");
  if (it == receipt.end() || !it->is_object()) return BadField("sampling", "an object");
  SamplingOptions s;
  VC_RETURN_IF_ERROR(GetFloat(*it, "temperature", &s.temperature));
  VC_RETURN_IF_ERROR(GetFloat(*it, "top_p", &s.top_p));
  VC_RETURN_IF_ERROR(GetFloat(*it, "min_p", &s.min_p));
  VC_RETURN_IF_ERROR(GetFloat(*it, "repetition_penalty", &s.repetition_penalty));
  VC_RETURN_IF_ERROR(GetFloat(*it, "presence_penalty", &s.presence_penalty));
  VC_RETURN_IF_ERROR(GetFloat(*it, "frequency_penalty", &s.frequency_penalty));
  VC_ASSIGN_OR_RETURN(const uint64_t top_k,
                      GetUnsigned(*it, "top_k", std::numeric_limits<int64_t>::max()));
  VC_ASSIGN_OR_RETURN(s.seed, GetUnsigned(*it, "seed", std::numeric_limits<uint64_t>::max()));
  VC_ASSIGN_OR_RETURN(const uint64_t choice,
                      GetUnsigned(*it, "choice", std::numeric_limits<uint32_t>::max()));
  VC_RETURN_IF_ERROR(GetLogitBias(*it, &s));
  s.top_k = static_cast<int64_t>(top_k);
  s.choice = static_cast<uint32_t>(choice);
  return s;
}

// Absent: the settings of the model file itself.
absl::StatusOr<RopeOptions> GetRope(const Json& receipt) {
  RopeOptions rope;
  const auto it = receipt.find("rope");
  if (it == receipt.end()) return rope;
  if (!it->is_object()) return BadField("rope", "an object");
  VC_ASSIGN_OR_RETURN(rope.scaling, GetText(*it, "scaling"));
  if (rope.scaling != "none" && rope.scaling != "linear" && rope.scaling != "yarn")
    return BadField("scaling", "none, linear or yarn");
  const auto scale = it->find("scale");
  if (scale == it->end() || !scale->is_number()) return BadField("scale", "a number");
  rope.scale = scale->get<double>();
  VC_ASSIGN_OR_RETURN(const uint64_t context, GetUnsigned(*it, "orig_context", 1 << 28));
  rope.orig_context = static_cast<int64_t>(context);
  return rope;
}

Json RopeJson(const RopeOptions& rope) {
  return {{"scaling", rope.scaling}, {"scale", rope.scale}, {"orig_context", rope.orig_context}};
}

Json SamplingJson(const SamplingOptions& s) {
  Json json = {{"temperature", ShortestDouble(s.temperature)},
               {"top_k", s.top_k},
               {"top_p", ShortestDouble(s.top_p)},
               {"min_p", ShortestDouble(s.min_p)},
               {"seed", s.seed},
               {"choice", s.choice},
               {"repetition_penalty", ShortestDouble(s.repetition_penalty)},
               {"presence_penalty", ShortestDouble(s.presence_penalty)},
               {"frequency_penalty", ShortestDouble(s.frequency_penalty)},
               {"logit_bias", Json::array()}};
  for (const auto& [id, bias] : s.logit_bias)
    json["logit_bias"].push_back(Json::array({id, ShortestDouble(bias)}));
  return json;
}

Json ArrivalJson(const PrefixArrivalStats& a) {
  if (a.plan.empty()) return nullptr;
  return {{"plan", a.plan},
          {"reason", a.reason},
          {"link_bytes_per_s", a.link_bytes_per_s},
          {"round_trip_s", a.round_trip_s},
          {"draft_s", a.draft_s},
          {"full_s", a.full_s},
          {"draft_bytes", a.draft_bytes},
          {"full_bytes", a.full_bytes},
          {"draft_tokens", a.draft_tokens},
          {"full_tokens", a.full_tokens},
          {"provisional_rows", a.provisional_rows},
          {"drafted", a.drafted},
          {"accepted", a.accepted}};
}

Json MemoryJson(const KvMemoryStats& m) {
  if (m.budget_bytes == 0) return nullptr;
  return {{"budget_bytes", m.budget_bytes},     {"planned_bytes", m.planned_bytes},
          {"peak_bytes", m.peak_bytes},         {"staging_bytes", m.staging_bytes},
          {"hot_bytes", m.hot_bytes},           {"spilled_bytes", m.spilled_bytes},
          {"streamed_bytes", m.streamed_bytes}, {"stream_s", m.stream_s},
          {"stream_wait_s", m.stream_wait_s}};
}

Json TimesJson(const RequestTimes& t) {
  return {{"start_s", t.start_s},
          {"prefill_s", t.prefill_s},
          {"first_token_s", t.first_token_s},
          {"end_s", t.end_s},
          {"max_burst_s", t.max_burst_s}};
}

Json ModesJson(const std::vector<ModeStats>& modes) {
  Json list = Json::array();
  for (const ModeStats& m : modes)
    list.push_back({{"mode", m.mode},
                    {"rounds", m.rounds},
                    {"drafted", m.drafted},
                    {"accepted", m.accepted},
                    {"emitted", m.emitted},
                    {"draft_s", m.draft_s},
                    {"verify_s", m.verify_s}});
  return list;
}

Json ChoiceJson(const DraftChoiceStats& c) {
  if (c.mode.empty()) return nullptr;
  return {{"mode", c.mode},
          {"reason", c.reason},
          {"draft_len", c.draft_len},
          {"agreement", c.agreement},
          {"expected_emitted", c.expected_emitted},
          {"tokens_per_s", c.tokens_per_s},
          {"plain_tokens_per_s", c.plain_tokens_per_s},
          {"draft_token_s", c.draft_token_s},
          {"verify_s", c.verify_s},
          {"row_s", c.row_s},
          {"fetch_s", c.fetch_s},
          {"plain_rounds", c.plain_rounds},
          {"drafted_rounds", c.drafted_rounds}};
}

Json RemoteJson(const RemoteStats& s) {
  Json estimates = Json::object();
  for (const WayEstimate& e : s.estimates)
    estimates[e.way] = {{"first_s", e.first_s},
                        {"last_s", e.last_s},
                        {"tokens_per_s", e.tokens_per_s},
                        {"link_bytes", e.link_bytes}};
  return {{"verifier", s.verifier},
          {"fallback", s.fallback},
          {"plan", s.plan},
          {"reason", s.reason},
          {"estimates", estimates},
          {"expected_tokens", s.expected_tokens},
          {"chosen_s", s.chosen_s},
          {"handed_over_s", s.handed_over_s},
          {"full_bytes", s.full_bytes},
          {"remote_tokens", s.remote_tokens},
          {"local_tokens", s.local_tokens},
          {"draft_tokens", s.draft_tokens},
          {"draft_bytes", s.draft_bytes},
          {"provisional_rows", s.provisional_rows},
          {"rounds", s.rounds},
          {"drafted", s.drafted},
          {"accepted", s.accepted},
          {"looked_up", s.looked_up},
          {"ahead_tokens", s.ahead_tokens},
          {"sessions", s.opened},
          {"failed_calls", s.failed_calls},
          {"rows_bytes", s.rows_bytes},
          {"draft_len", s.draft_len},
          {"agreement", s.agreement},
          {"round_trip_s", s.round_trip_s},
          {"draft_token_s", s.draft_token_s},
          {"verify_s", s.verify_s},
          {"row_s", s.row_s},
          {"tokens_per_s", s.tokens_per_s},
          {"plain_tokens_per_s", s.plain_tokens_per_s}};
}

Json CompletionFields(const Completion& c) {
  const CompletionStats& s = c.stats;
  Json json = {
      {"text", c.text},
      {"token_ids", c.token_ids},
      {"finish_reason", c.finish_reason},
      {"usage",
       {{"prompt_tokens", c.usage.prompt_tokens},
        {"completion_tokens", c.usage.completion_tokens},
        {"cached_tokens", c.usage.cached_tokens}}},
      {"logits_hash", c.logits_hash},
      {"stats",
       {{"rounds", s.rounds},
        {"drafted", s.drafted},
        {"accepted", s.accepted},
        {"mean_run_length", s.mean_run_length},
        {"kept_fraction", s.kept_fraction},
        {"draft_bytes", s.draft_bytes},
        {"full_bytes", s.full_bytes},
        {"prefill_s", s.prefill_s},
        {"draft_s", s.draft_s},
        {"verify_s", s.verify_s},
        {"kv_memory", MemoryJson(s.memory)},
        {"arrival", ArrivalJson(s.arrival)},
        {"choice", ChoiceJson(s.choice)},
        {"times", TimesJson(s.times)},
        {"modes", ModesJson(s.choice.modes)}}},
  };
  if (s.remote.rounds > 0 || !s.remote.fallback.empty() || !s.remote.plan.empty())
    json["stats"]["remote"] = RemoteJson(s.remote);
  return json;
}

}  // namespace

std::string CompletionJson(const Completion& completion) {
  return Dump(CompletionFields(completion), -1);
}

std::string BatchLineJson(const std::string& id, const std::string& error,
                          const std::string& digest, const Completion* completion) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json() : Json(text);
  };
  Json json = {{"custom_id", text_or_null(id)},
               {"error", text_or_null(error)},
               {"request_digest", text_or_null(digest)}};
  if (completion != nullptr) json.update(CompletionFields(*completion));
  return Dump(json, -1);
}

std::string SamplingText(const SamplingOptions& sampling) {
  return Dump(SamplingJson(sampling), -1);
}

std::string TraceLines(const CompletionStats& stats) {
  std::string lines;
  for (const RoundRecord& r : stats.records) {
    const Json json = {{"drafted", r.drafted},       {"accepted", r.accepted},
                       {"emitted", r.emitted},       {"draft_ns", r.draft_ns},
                       {"verify_ns", r.verify_ns},   {"draft_bytes", r.draft_bytes},
                       {"full_bytes", r.full_bytes}, {"mode", r.mode}};
    lines += Dump(json, -1) + "\n";
  }
  return lines;
}

std::string ReceiptJson(const Receipt& r) {
  Json json = {
      {"contract", r.contract},
      {"model", {{"name", r.model_name}, {"path", r.model_path}, {"sha256", r.model_sha256}}},
      {"prompt_token_ids", r.prompt_token_ids},
      {"prompt_hash", r.prompt_hash},
      {"token_ids", r.token_ids},
      {"sampling", SamplingJson(r.sampling)},
      {"logits_hash", r.logits_hash},
  };
  if (!r.rope.scaling.empty()) json["rope"] = RopeJson(r.rope);
  return Dump(json, -1) + "\n";
}

absl::StatusOr<Receipt> ParseReceipt(std::string_view text) {
  bool too_deep = false;
  const auto limit_depth = [&too_deep](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > kReceiptDepthMax;
    return depth <= kReceiptDepthMax;
  };
  const Json json = Json::parse(text, limit_depth, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object() || too_deep)
    return absl::InvalidArgumentError(
        "this is no receipt: expected the JSON object that `vericache run --receipt` writes");
  Receipt r;
  VC_ASSIGN_OR_RETURN(r.contract, GetText(json, "contract"));
  const auto model = json.find("model");
  if (model == json.end() || !model->is_object()) return BadField("model", "an object");
  VC_ASSIGN_OR_RETURN(r.model_name, GetText(*model, "name"));
  VC_ASSIGN_OR_RETURN(r.model_path, GetText(*model, "path"));
  VC_ASSIGN_OR_RETURN(r.model_sha256, GetHash(*model, "sha256"));
  VC_ASSIGN_OR_RETURN(r.prompt_token_ids, GetIds(json, "prompt_token_ids"));
  VC_ASSIGN_OR_RETURN(r.prompt_hash, GetHash(json, "prompt_hash"));
  VC_ASSIGN_OR_RETURN(r.token_ids, GetIds(json, "token_ids"));
  VC_ASSIGN_OR_RETURN(r.sampling, GetSampling(json));
  VC_ASSIGN_OR_RETURN(r.logits_hash, GetHash(json, "logits_hash"));
  VC_ASSIGN_OR_RETURN(r.rope, GetRope(json));
  return r;
}

}  // namespace vericache::cli
