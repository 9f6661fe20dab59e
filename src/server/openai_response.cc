#include "server/openai_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace vericache::server {
namespace {

// True if `bytes` are UTF-8; the JSON library, which writes them, is the judge.
bool IsUtf8(const std::string& bytes) {
  if (std::all_of(bytes.begin(), bytes.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
    return true;
  const Json json(bytes);
  return json.dump(-1, ' ', false, Json::error_handler_t::ignore) ==
         json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

OrderedJson NullIfEmpty(const std::string& text) {
  return text.empty() ? OrderedJson() : OrderedJson(text);
}

OrderedJson BytesJson(const std::string& bytes) {
  OrderedJson list = OrderedJson::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

OrderedJson TokenJson(const TokenLogprob& token, const TokenBytesFn& bytes_of) {
  const std::string bytes = bytes_of(token.id);
  return {{"token", TokenName(bytes)},
          {"logprob", ShortDouble(token.logprob)},
          {"bytes", BytesJson(bytes)}};
}

OrderedJson HeadJson(const ReplyHead& head, const char* object) {
  return {{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
}

// Which way a choice took that a verifier had, and why.
OrderedJson WayJson(const RemoteStats& s) {
  OrderedJson estimates = OrderedJson::object();
  for (const WayEstimate& e : s.estimates) estimates[e.way] = ShortDouble(e.last_s);
  return {{"way", s.plan},
          {"reason", s.reason},
          {"last_token_s", std::move(estimates)},
          {"chosen_s", ShortDouble(s.chosen_s)},
          {"handed_over_s", ShortDouble(s.handed_over_s)},
          {"remote_tokens", s.remote_tokens},
          {"local_tokens", s.local_tokens},
          {"looked_up", s.looked_up},
          {"fallback", s.fallback}};
}

}  // namespace

std::string TokenName(const std::string& bytes) {
  if (IsUtf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char c : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

OrderedJson ChatLogprobs(absl::Span<const PositionLogprobs> positions, const TokenBytesFn& bytes) {
  OrderedJson content = OrderedJson::array();
  for (const PositionLogprobs& position : positions) {
    OrderedJson entry = TokenJson(position.chosen, bytes);
    entry["top_logprobs"] = OrderedJson::array();
    for (const TokenLogprob& token : position.top)
      entry["top_logprobs"].push_back(TokenJson(token, bytes));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

void LegacyLogprobs::AddToken(const std::string& bytes) {
  tokens_.push_back(TokenName(bytes));
  offsets_.push_back(offset_);
  for (const char c : bytes) offset_ += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
}

void LegacyLogprobs::AddUnscored(int32_t id, const TokenBytesFn& bytes) {
  AddToken(bytes(id));
  logprobs_.push_back(nullptr);
  top_.push_back(nullptr);
}

void LegacyLogprobs::Add(const PositionLogprobs& position, const TokenBytesFn& bytes) {
  AddToken(bytes(position.chosen.id));
  logprobs_.push_back(ShortDouble(position.chosen.logprob));
  OrderedJson top = OrderedJson::object();
  for (const TokenLogprob& token : position.top)
    top[TokenName(bytes(token.id))] = ShortDouble(token.logprob);
  top_.push_back(position.top.empty() ? OrderedJson() : std::move(top));
}

OrderedJson LegacyLogprobs::Take() {
  const OrderedJson taken = {{"tokens", std::exchange(tokens_, OrderedJson::array())},
                             {"token_logprobs", std::exchange(logprobs_, OrderedJson::array())},
                             {"top_logprobs", std::exchange(top_, OrderedJson::array())},
                             {"text_offset", std::exchange(offsets_, OrderedJson::array())}};
  return taken;
}

OrderedJson WholeReply(const ReplyHead& head, OrderedJson choices, OrderedJson usage) {
  OrderedJson json =
      HeadJson(head, head.endpoint == Endpoint::kChat ? "chat.completion" : "text_completion");
  json["choices"] = std::move(choices);
  json["usage"] = std::move(usage);
  json["system_fingerprint"] = "vericache";
  return json;
}

OrderedJson OneChoice(const ReplyHead& head, OrderedJson choice) {
  OrderedJson choices = OrderedJson::array();
  choices.push_back(std::move(choice));
  return Chunk(head, std::move(choices));
}

OrderedJson Chunk(const ReplyHead& head, OrderedJson choices) {
  OrderedJson json = HeadJson(
      head, head.endpoint == Endpoint::kChat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = std::move(choices);
  json["system_fingerprint"] = "vericache";
  if (head.include_usage) json["usage"] = nullptr;
  return json;
}

OrderedJson ChatChunkChoice(int index, OrderedJson delta, OrderedJson logprobs,
                            const std::string& finish_reason) {
  return {{"index", index},
          {"delta", std::move(delta)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", NullIfEmpty(finish_reason)}};
}

OrderedJson TextChoice(int index, const std::string& text, OrderedJson logprobs,
                       const std::string& finish_reason) {
  return {{"index", index},
          {"text", text},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", NullIfEmpty(finish_reason)}};
}

OrderedJson DeltaJson(const TextDelta& delta, const std::vector<ToolCall>& calls) {
  OrderedJson json = OrderedJson::object();
  if (!delta.reasoning.empty()) json["reasoning_content"] = delta.reasoning;
  if (!delta.content.empty()) json["content"] = delta.content;
  for (const ToolDelta& call : delta.calls) {
    OrderedJson one = {{"index", call.index}};
    if (!call.name.empty()) {
      one["id"] = calls[call.index].id;
      one["type"] = "function";
      one["function"]["name"] = call.name;
    }
    one["function"]["arguments"] = call.arguments;
    json["tool_calls"].push_back(std::move(one));
  }
  return json;
}

OrderedJson MessageJson(const ChoiceText& text) {
  OrderedJson message = {{"role", "assistant"}, {"content", text.content()}, {"refusal", nullptr}};
  if (!text.reasoning().empty()) message["reasoning_content"] = text.reasoning();
  if (text.calls().empty()) return message;
  if (text.content().empty()) message["content"] = nullptr;
  for (const ToolCall& call : text.calls())
    message["tool_calls"].push_back(
        {{"id", call.id},
         {"type", "function"},
         {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  return message;
}

void UsageSum::Add(int choice, const Completion& completion, int64_t reasoning_tokens) {
  if (choice == 0) {
    usage_.prompt_tokens += completion.usage.prompt_tokens;
    usage_.cached_tokens += completion.usage.cached_tokens;
  }
  usage_.completion_tokens += completion.usage.completion_tokens;
  reasoning_tokens_ += reasoning_tokens;
  const CompletionStats& stats = completion.stats;
  rounds_ += stats.rounds;
  drafted_ += stats.drafted;
  accepted_ += stats.accepted;
  run_tokens_ += stats.mean_run_length * static_cast<double>(stats.rounds);
  kept_fraction_ += stats.kept_fraction;
  ++num_choices_;
  for (const RoundRecord& round : stats.records) {
    // A drafted token reads the draft KV, a verification the full KV.
    draft_bytes_ += round.draft_bytes * static_cast<uint64_t>(std::max(0, round.drafted));
    full_bytes_ += round.full_bytes;
  }
  streamed_bytes_ += stats.memory.streamed_bytes;
  const RemoteStats& remote = stats.remote;
  if (remote.remote_tokens + remote.local_tokens > 0) ways_.push_back(WayJson(remote));
}

void UsageSum::AddReceipt(const std::string& receipt_json) {
  receipts_.push_back(OrderedJson::parse(receipt_json, nullptr, /*allow_exceptions=*/false));
}

OrderedJson UsageSum::ToJson() const {
  const auto mean = [](double sum, int64_t count) {
    return count > 0 ? sum / static_cast<double>(count) : 0.0;
  };
  OrderedJson ours = {{"seed", seed_},
                      {"draft", draft_},
                      {"rounds", rounds_},
                      {"drafted", drafted_},
                      {"accepted", accepted_},
                      {"mean_run", mean(run_tokens_, rounds_)},
                      {"kept_fraction", mean(kept_fraction_, num_choices_)},
                      {"draft_bytes_read", draft_bytes_},
                      {"full_bytes_read", full_bytes_},
                      {"fetched_bytes", streamed_bytes_}};
  if (ways_.size() == 1) ours["remote"] = ways_[0];
  if (ways_.size() > 1) ours["remotes"] = ways_;
  if (receipts_.size() == 1) ours["receipt"] = receipts_[0];
  if (receipts_.size() > 1) ours["receipts"] = receipts_;
  return {{"prompt_tokens", usage_.prompt_tokens},
          {"completion_tokens", usage_.completion_tokens},
          {"total_tokens", usage_.prompt_tokens + usage_.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage_.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", reasoning_tokens_}}},
          {"vericache", std::move(ours)}};
}

std::string Event(const OrderedJson& json) { return "data: " + Dump(json) + "\n\n"; }

std::string NamedEvent(const std::string& name, const OrderedJson& json) {
  return "event: " + name + "\n" + Event(json);
}

}  // namespace vericache::server
