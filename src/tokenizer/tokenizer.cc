#include "tokenizer/tokenizer.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gguf/messages.h"
#include "tokenizer/bpe_tokenizer.h"

namespace vericache {

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const GgufFile& file) {
  constexpr char kModelKey[] = "tokenizer.ggml.model";
  if (file.FindValue(kModelKey) == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat(kModelKey, " is missing: the file holds no tokenizer"));
  VC_ASSIGN_OR_RETURN(const std::string_view model, file.GetString(kModelKey));
  if (model == "gpt2") return BpeTokenizer::Create(file);
  return absl::UnimplementedError(
      absl::StrCat(kModelKey, ": the tokenizer ", Quoted(model),
                   " is not supported; supported is gpt2 (byte-level BPE)"));
}

std::string Tokenizer::Decode(absl::Span<const TokenId> ids, SpecialText special) const {
  std::string bytes;
  for (TokenId id : ids)
    if (special == SpecialText::kAsToken || !IsControl(id)) bytes.append(TokenBytes(id));
  return bytes;
}

}  // namespace vericache
