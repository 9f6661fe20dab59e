// The byte-level BPE tokenizer: special tokens, normalisation, pieces, merges, in this order.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tokenizer/bpe_vocab.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/special_splitter.h"
#include "tokenizer/tokenizer.h"

namespace vericache {

class BpeTokenizer final : public Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const GgufFile& file);

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text,
                                              SpecialText special) const override;
  absl::StatusOr<std::vector<TokenId>> EncodeTemplated(std::string_view text,
                                                       std::string_view guard) const override;
  std::string BreakSpecialText(std::string_view text, std::string_view guard) const override;
  std::string_view TokenBytes(TokenId id) const override;
  bool IsControl(TokenId id) const override;
  bool IsEndOfGeneration(TokenId id) const override;
  int64_t vocab_size() const override { return vocab_.size(); }
  TokenId bos_id() const override { return vocab_.bos_id(); }
  TokenId eos_id() const override { return vocab_.eos_id(); }
  bool add_bos() const override { return add_bos_; }
  const std::string& digest() const override { return digest_; }

 private:
  BpeTokenizer(BpeVocab vocab, std::unique_ptr<PreTokenizer> pre_tokenizer, bool add_bos);

  // Ids of `text` split by `splitter`; `guard` ("" for none) is removed from ordinary text.
  absl::StatusOr<std::vector<TokenId>> EncodeWith(const SpecialSplitter& splitter,
                                                  std::string_view text,
                                                  std::string_view guard) const;

  BpeVocab vocab_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  bool add_bos_;
  // Special tokens that text may name: user-defined ones always, control ones in kAsToken.
  SpecialSplitter user_defined_, all_special_;
  std::string digest_;
};

}  // namespace vericache
