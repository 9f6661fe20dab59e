// The JSON of OpenAI's replies: whole ones, chunks, logprobs in both shapes, usage.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "server/choice_text.h"
#include "server/json.h"
#include "server/openai_request.h"
#include "vericache/serving.h"

namespace vericache::server {

// Bytes of a token; not always UTF-8.
using TokenBytesFn = std::function<std::string(int32_t)>;

// The bytes where they are UTF-8, otherwise "bytes:\xe2\x80" as OpenAI writes it.
std::string TokenName(const std::string& bytes);

// {"content": [{"token", "logprob", "bytes", "top_logprobs"}, ...], "refusal": null}
OrderedJson ChatLogprobs(absl::Span<const PositionLogprobs> positions, const TokenBytesFn& bytes);

// Collects the legacy shape: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}. Offsets
// count characters from the beginning of the returned text.
class LegacyLogprobs {
 public:
  // A token that has no logprob: the first of a prompt.
  void AddUnscored(int32_t id, const TokenBytesFn& bytes);
  void Add(const PositionLogprobs& position, const TokenBytesFn& bytes);
  // What was added since the last call; offsets go on.
  OrderedJson Take();

 private:
  void AddToken(const std::string& bytes);

  OrderedJson tokens_ = OrderedJson::array(), logprobs_ = OrderedJson::array(),
              top_ = OrderedJson::array(), offsets_ = OrderedJson::array();
  int64_t offset_ = 0;
};

// What all pieces of one reply have in common.
struct ReplyHead {
  Endpoint endpoint = Endpoint::kChat;
  std::string id;
  int64_t created = 0;  // Unix seconds
  std::string model;
  bool include_usage = false;
};

// A reply or chunk with these choices; usage is null for none.
OrderedJson WholeReply(const ReplyHead& head, OrderedJson choices, OrderedJson usage);
OrderedJson Chunk(const ReplyHead& head, OrderedJson choices);
OrderedJson OneChoice(const ReplyHead& head, OrderedJson choice);  // a chunk
// {"index", "delta", "logprobs", "finish_reason"}
OrderedJson ChatChunkChoice(int index, OrderedJson delta, OrderedJson logprobs,
                            const std::string& finish_reason);
OrderedJson TextChoice(int index, const std::string& text, OrderedJson logprobs,
                       const std::string& finish_reason);
// The members of a delta that this text adds. `calls`: all calls so far, for their ids.
OrderedJson DeltaJson(const TextDelta& delta, const std::vector<ToolCall>& calls);
// {"role": "assistant", "content", "refusal", "reasoning_content"?, "tool_calls"?}
OrderedJson MessageJson(const ChoiceText& text);

// Sums over the choices of a reply. "vericache" tells how the tokens were made: rounds, drafted,
// accepted, mean_run (tokens a round), kept_fraction, bytes, seed.
class UsageSum {
 public:
  UsageSum(uint64_t seed, std::string draft) : seed_(seed), draft_(std::move(draft)) {}
  // The prompt counts with choice 0 alone.
  void Add(int choice, const Completion& completion, int64_t reasoning_tokens);
  void AddReceipt(const std::string& receipt_json);
  OrderedJson ToJson() const;

 private:
  const uint64_t seed_;
  const std::string draft_;
  Usage usage_;
  int64_t reasoning_tokens_ = 0;
  int64_t rounds_ = 0, drafted_ = 0, accepted_ = 0, num_choices_ = 0;
  double run_tokens_ = 0, kept_fraction_ = 0;
  uint64_t draft_bytes_ = 0, full_bytes_ = 0, streamed_bytes_ = 0;
  std::vector<OrderedJson> receipts_;
  OrderedJson ways_ = OrderedJson::array();  // of choices that a verifier had
};

// data: JSON, with the empty line that ends an event.
std::string Event(const OrderedJson& json);
// The same with a name: clients that know only OpenAI's events see no choices in it.
std::string NamedEvent(const std::string& name, const OrderedJson& json);

}  // namespace vericache::server
