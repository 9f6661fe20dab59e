// What a caller sees of an answer while it is made: verified text, and rounds in the making.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "engine/sequence.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"
#include "vericache/engine.h"

namespace vericache {

// The whole-character text of emitted tokens, as the stream would give it.
std::string TextOf(const Tokenizer& tokenizer, absl::Span<const TokenId> ids);

// Hands newly emitted tokens of one sequence to the callbacks as whole characters.
class AnswerStream {
 public:
  AnswerStream(const Tokenizer& tokenizer, const Callbacks& callbacks)
      : tokenizer_(tokenizer), callbacks_(callbacks) {}

  // Shows each drafted token of `sequence` as it comes, where the caller asked for rounds.
  void Watch(Sequence* sequence);
  // After a pass. False: the caller wants no more.
  bool Push(const Sequence& sequence);

 private:
  const Tokenizer& tokenizer_;
  const Callbacks& callbacks_;
  Utf8Assembler assembler_;
  RoundView view_;
  int64_t next_ = 0;       // first emitted token not yet handed on
  size_t num_rounds_ = 0;  // told so far
};

}  // namespace vericache
