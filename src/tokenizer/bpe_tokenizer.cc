#include "tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "tokenizer/bpe_merge.h"
#include "tokenizer/nfc.h"
#include "tokenizer/utf8.h"

namespace vericache {
namespace {

constexpr char kPreKey[] = "tokenizer.ggml.pre";
constexpr char kAddBosKey[] = "tokenizer.ggml.add_bos_token";

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BpeTokenizer::Create(const GgufFile& file) {
  if (file.FindValue(kPreKey) == nullptr)
    return absl::InvalidArgumentError(absl::StrCat(
        kPreKey,
        " is missing: the file does not say how text is split before merging, and a "
        "guess would give wrong token ids; convert the model again with a current "
        "convert_hf_to_gguf.py, or set the key (gguf_new_metadata.py --pre-tokenizer)"));
  VC_ASSIGN_OR_RETURN(const std::string_view pre, file.GetString(kPreKey));
  VC_ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> pre_tokenizer, PreTokenizer::Create(pre));
  VC_ASSIGN_OR_RETURN(BpeVocab vocab, BpeVocab::Read(file));
  VC_ASSIGN_OR_RETURN(const bool add_bos,
                      file.GetBoolOr(kAddBosKey, pre_tokenizer->kind().adds_bos));
  return std::unique_ptr<Tokenizer>(
      new BpeTokenizer(std::move(vocab), std::move(pre_tokenizer), add_bos));
}

BpeTokenizer::BpeTokenizer(BpeVocab vocab, std::unique_ptr<PreTokenizer> pre_tokenizer,
                           bool add_bos)
    : vocab_(std::move(vocab)),
      pre_tokenizer_(std::move(pre_tokenizer)),
      // Without a BOS token there is nothing to add.
      add_bos_(add_bos && vocab_.bos_id() >= 0) {
  for (TokenId id = 0; id < vocab_.size(); ++id) {
    const TokenType type = vocab_.type(id);
    if (vocab_.bytes(id).empty()) continue;
    if (type == TokenType::kUserDefined) user_defined_.Add(vocab_.bytes(id), id);
    if (type == TokenType::kUserDefined || type == TokenType::kControl)
      all_special_.Add(vocab_.bytes(id), id);
  }
  // The pattern stands for the rule: a corrected pattern is another tokenizer.
  const std::string settings =
      absl::StrCat("vericache-bpe-1\n", pre_tokenizer_->kind().name, "\n",
                   pre_tokenizer_->kind().pattern, "\n", add_bos_, "\n", vocab_.tables_digest());
  digest_ = HexOf(Sha256Of(settings.data(), settings.size()));
}

absl::StatusOr<std::vector<TokenId>> BpeTokenizer::Encode(std::string_view text,
                                                          SpecialText special) const {
  return EncodeWith(special == SpecialText::kAsToken ? all_special_ : user_defined_, text, "");
}

absl::StatusOr<std::vector<TokenId>> BpeTokenizer::EncodeTemplated(std::string_view text,
                                                                   std::string_view guard) const {
  return EncodeWith(all_special_, text, guard);
}

std::string BpeTokenizer::BreakSpecialText(std::string_view text, std::string_view guard) const {
  std::string broken;
  all_special_.Split(text, [&](std::string_view part, TokenId id) {
    if (id < 0 || !IsControl(id)) {
      broken += part;
      return;
    }
    size_t first = 1;  // bytes of the first character
    while (first < part.size() && (part[first] & 0xC0) == 0x80) ++first;
    broken.append(part.substr(0, first)).append(guard).append(part.substr(first));
  });
  return broken;
}

absl::StatusOr<std::vector<TokenId>> BpeTokenizer::EncodeWith(const SpecialSplitter& splitter,
                                                              std::string_view text,
                                                              std::string_view guard) const {
  if (const size_t bad = FindInvalidUtf8(text); bad != std::string_view::npos)
    return absl::InvalidArgumentError(absl::StrCat("the text is not UTF-8 at byte ", bad));
  // Positions within a piece are 32 bits wide; NFC at most triples a text.
  if (text.size() > std::numeric_limits<int32_t>::max() / 3)
    return absl::InvalidArgumentError(
        absl::StrCat("a text of ", text.size(), " bytes is too long to tokenize at once"));

  std::vector<TokenId> ids;
  absl::Status status;
  BpeMerger merger(vocab_);
  const bool ignores_merges = pre_tokenizer_->kind().ignores_merges;
  const auto encode_piece = [&](std::string_view piece) {
    const TokenId whole = ignores_merges ? vocab_.FindNormal(piece) : -1;
    if (whole >= 0) {
      ids.push_back(whole);
    } else {
      merger.Merge(piece, &ids);
    }
  };
  const auto encode_part = [&](std::string_view part, TokenId special_id) {
    if (special_id >= 0) {
      ids.push_back(special_id);
      return;
    }
    std::string unguarded;
    if (!guard.empty() && part.find(guard) != part.npos) {
      for (size_t at; (at = part.find(guard)) != part.npos; part.remove_prefix(at + guard.size()))
        unguarded += part.substr(0, at);
      unguarded += part;
      part = unguarded;
    }
    std::optional<std::string> nfc;
    if (pre_tokenizer_->kind().normalizes_nfc) nfc = ToNfc(part);
    status.Update(pre_tokenizer_->ForEachPiece(nfc.has_value() ? *nfc : part, encode_piece));
  };
  splitter.Split(text, encode_part);
  if (!status.ok()) return status;
  return ids;
}

std::string_view BpeTokenizer::TokenBytes(TokenId id) const {
  return vocab_.Contains(id) ? vocab_.bytes(id) : std::string_view();
}

bool BpeTokenizer::IsControl(TokenId id) const {
  return vocab_.Contains(id) && vocab_.type(id) == TokenType::kControl;
}

bool BpeTokenizer::IsEndOfGeneration(TokenId id) const {
  const std::vector<TokenId>& ends = vocab_.end_of_generation();
  return std::binary_search(ends.begin(), ends.end(), id);
}

}  // namespace vericache
