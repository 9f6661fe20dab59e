// Text to token ids and back, for byte-level BPE vocabularies stored in GGUF files.
//
// Ids equal those of the reference library (Hugging Face tokenizers) for every supported
// pre-tokenizer; an unknown one is refused. Linear time in the text, no recursion over it
// (cases 16, 17). A tokenizer is immutable after creation: safe from many threads.
//
// Decode(Encode(text)) == text, but where the reference itself changes text: qwen2 brings it to
// Unicode NFC first, and SmolLM2's vocabulary has no token for some rare bytes, which are dropped
// (U+0004, U+0006, U+0013, U+0014, U+0016, U+001D, first bytes F1 and F2).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/types.h"
#include "gguf/reader.h"

namespace vericache {

// What text that looks like a special token ("<|im_end|>") means.
enum class SpecialText {
  kAsText,   // user text: stays ordinary text
  kAsToken,  // output of a chat template: becomes the special token
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // ERRORS: kInvalidArgument (tables of wrong type, length or range; case 26),
  //         kUnimplemented (unknown tokenizer model or pre-tokenizer, by name).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const GgufFile& file);

  // No BOS is added. ERRORS: kInvalidArgument if `text` is not UTF-8 (names the byte offset).
  virtual absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                                      SpecialText special) const = 0;
  // Encode(kAsToken) of a rendered chat template in which `guard` breaks up special-token text that
  // users typed (special_guard.h): every guard is removed after special tokens have been found.
  virtual absl::StatusOr<std::vector<TokenId>> EncodeTemplated(std::string_view text,
                                                               std::string_view guard) const = 0;
  // `text` with `guard` put after the first character of every control token written out in it.
  virtual std::string BreakSpecialText(std::string_view text, std::string_view guard) const = 0;
  // Raw bytes of one token; special tokens give their text. Empty for ids out of range.
  virtual std::string_view TokenBytes(TokenId id) const = 0;
  // Bytes of all tokens, joined; may end inside a UTF-8 character. Control tokens are left out
  // if `special` is kAsText.
  std::string Decode(absl::Span<const TokenId> ids, SpecialText special) const;

  virtual bool IsControl(TokenId id) const = 0;          // never shown to users
  virtual bool IsEndOfGeneration(TokenId id) const = 0;  // EOS, EOT (<|im_end|>, ...)
  virtual int64_t vocab_size() const = 0;
  virtual TokenId bos_id() const = 0;             // -1 if none
  virtual TokenId eos_id() const = 0;             // -1 if none
  virtual bool add_bos() const = 0;               // raw prompts begin with BOS (case 20)
  virtual const std::string& digest() const = 0;  // hex SHA-256 over all tables and settings
};

// Splits a stream of token bytes into whole UTF-8 characters: what is complete so far is shown,
// an unfinished character is held back, an invalid byte becomes U+FFFD.
class Utf8Assembler {
 public:
  std::string Push(std::string_view bytes);  // text that is complete now
  std::string Flush();                       // the end: an unfinished character as U+FFFD

 private:
  std::string pending_;
};

}  // namespace vericache
