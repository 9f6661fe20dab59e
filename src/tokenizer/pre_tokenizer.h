// Cuts text into pieces that byte-pair merges never cross, by the model's published rule.
//
// The rules are regular expressions; PCRE2 (JIT) only finds the cuts. They repeat single
// characters only, never groups, so that no stack grows with the text (case 17).
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vericache {

// One supported rule with all that the model's reference tokenizer ties to it.
struct PreTokenizerKind {
  std::string name;     // tokenizer.ggml.pre
  std::string pattern;  // PCRE2
  bool normalizes_nfc;  // text is brought to Unicode NFC first
  bool ignores_merges;  // a piece that is a token as a whole is taken without merging
  bool adds_bos;        // unless the file says otherwise
};

class PreTokenizer {
 public:
  // ERRORS: kUnimplemented: a rule that is not supported (the message lists those that are).
  static absl::StatusOr<std::unique_ptr<PreTokenizer>> Create(std::string_view name);
  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  const PreTokenizerKind& kind() const { return kind_; }

  // Calls `visit` for each piece in order; joined they are `text`.
  // REQUIRES: `text` is UTF-8.
  // ERRORS:   kInternal if PCRE2 gives up (no input is known to make it).
  // COST:     linear in the text.
  // THREADS:  safe.
  absl::Status ForEachPiece(std::string_view text,
                            absl::FunctionRef<void(std::string_view)> visit) const;

 private:
  explicit PreTokenizer(PreTokenizerKind kind) : kind_(std::move(kind)) {}
  PreTokenizerKind kind_;
  void* code_ = nullptr;  // pcre2_code
};

}  // namespace vericache
