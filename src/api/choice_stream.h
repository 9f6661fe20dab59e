// What the sink of one choice is told while its answer is made: text up to a stop string,
// logprobs, drafts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/logprobs.h"
#include "api/stop_matcher.h"
#include "engine/sequence.h"
#include "tokenizer/tokenizer.h"
#include "vericache/serving.h"

namespace vericache {

class ChoiceStream {
 public:
  // All but the request's own fields outlive the stream. logprobs: shared scratch.
  ChoiceStream(const Tokenizer* tokenizer, LogprobMaker* logprobs, const ServeRequest& request,
               int choice, std::shared_ptr<ServeSink> sink);

  // Sets the sequence's hooks: the stream outlives the sequence. Before its first pass.
  void Watch(Sequence* sequence);
  // Hands on what was verified since the last call.
  void SendDelta();
  // The answer is whole: releases what was held back, and hands it on.
  void Finish();
  void SendPrefill(int64_t done, int64_t total) { sink_->OnPrefill(done, total); }
  void SendEnd(ServeEnd end);

  // All text handed on so far.
  const std::string& text() const { return shown_; }
  bool stopped() const { return stops_.matched(); }
  const std::string& stop() const { return stops_.stop(); }

 private:
  bool TakeToken(TokenId id, const float* logits);
  absl::Status TakePromptRow(const Sequence& s, int64_t pos, const float* logits);
  void SendDraft(const Sequence& s);

  const Tokenizer* tokenizer_;
  LogprobMaker* logprobs_;
  const bool wants_logprobs_, wants_prompt_, wants_drafts_;
  const int num_top_;
  const int choice_;
  const std::shared_ptr<ServeSink> sink_;
  Utf8Assembler characters_;
  StopMatcher stops_;
  std::string shown_;
  // Of the next delta.
  std::string text_;
  std::vector<int32_t> ids_;
  std::vector<PositionLogprobs> rows_;
  std::vector<PositionLogprobs> prompt_rows_;
};

}  // namespace vericache
