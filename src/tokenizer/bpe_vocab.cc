#include "tokenizer/bpe_vocab.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/special_splitter.h"
#include "tokenizer/utf8.h"

namespace vericache {
namespace {

constexpr char kTokensKey[] = "tokenizer.ggml.tokens";
constexpr char kTypesKey[] = "tokenizer.ggml.token_type";
constexpr char kScoresKey[] = "tokenizer.ggml.scores";
constexpr char kMergesKey[] = "tokenizer.ggml.merges";

// Files often name one end token only; these texts end a turn whatever the keys say.
constexpr std::string_view kEndTexts[] = {"<|im_end|>", "<|eot_id|>", "<|endoftext|>",
                                          "<|end_of_text|>", "<|eom_id|>"};

uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// A required array of strings; an absent one is this file's fault, not "not found".
absl::StatusOr<std::vector<std::string_view>> RequiredStrings(const GgufFile& file,
                                                              const char* key) {
  if (file.FindValue(key) == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat(key,
                     " is missing: the file holds no usable tokenizer; convert it again with "
                     "a current convert_hf_to_gguf.py"));
  return file.GetStrings(key);
}

absl::Status WrongLength(const char* key, uint64_t count, int64_t num_tokens) {
  return absl::InvalidArgumentError(
      absl::StrCat(key, " has ", count, " entries, but ", kTokensKey, " has ", num_tokens));
}

void AddField(std::string_view field, Sha256* sha) {
  const uint64_t size = field.size();
  sha->Update(&size, sizeof(size));
  sha->Update(field.data(), field.size());
}

}  // namespace

absl::StatusOr<BpeVocab> BpeVocab::Read(const GgufFile& file) {
  BpeVocab vocab;
  VC_ASSIGN_OR_RETURN(const std::vector<std::string_view> texts, RequiredStrings(file, kTokensKey));
  VC_ASSIGN_OR_RETURN(const std::vector<std::string_view> lines, RequiredStrings(file, kMergesKey));
  if (texts.empty()) return absl::InvalidArgumentError(absl::StrCat(kTokensKey, " is empty"));
  constexpr size_t kMaxInt32 = std::numeric_limits<int32_t>::max();
  if (texts.size() > kMaxInt32 || lines.size() > kMaxInt32)
    return absl::InvalidArgumentError("the tokenizer tables have more than 2^31 - 1 entries");
  TextIndex by_text;
  VC_RETURN_IF_ERROR(vocab.ReadTypes(file, static_cast<int64_t>(texts.size())));
  VC_RETURN_IF_ERROR(vocab.ReadTokens(texts, &by_text));
  VC_RETURN_IF_ERROR(vocab.ReadMerges(lines, by_text));
  VC_RETURN_IF_ERROR(vocab.ReadSpecialIds(file, by_text));
  vocab.IndexNormalTokens();
  vocab.ComputeDigest(texts, lines);
  return vocab;
}

absl::Status BpeVocab::ReadTypes(const GgufFile& file, int64_t num_tokens) {
  // BPE needs no scores, but scores that are wrong mean a table nobody should trust.
  if (const GgufValue* scores = file.FindValue(kScoresKey); scores != nullptr) {
    VC_RETURN_IF_ERROR(file.GetFloats(kScoresKey).status());
    if (scores->count != static_cast<uint64_t>(num_tokens))
      return WrongLength(kScoresKey, scores->count, num_tokens);
  }
  if (file.FindValue(kTypesKey) == nullptr)
    return absl::InvalidArgumentError(
        absl::StrCat(kTypesKey,
                     " is missing: special tokens cannot be told from text; convert "
                     "the model again with a current convert_hf_to_gguf.py"));
  VC_ASSIGN_OR_RETURN(const std::vector<int64_t> types, file.GetInts(kTypesKey));
  if (types.size() != static_cast<size_t>(num_tokens))
    return WrongLength(kTypesKey, types.size(), num_tokens);
  types_.reserve(types.size());
  for (size_t id = 0; id < types.size(); ++id) {
    if (types[id] < 1 || types[id] > 6)
      return absl::InvalidArgumentError(
          absl::StrCat(kTypesKey, "[", id, "] is ", types[id], ", expected 1 to 6"));
    types_.push_back(static_cast<TokenType>(types[id]));
  }
  return absl::OkStatus();
}

absl::Status BpeVocab::ReadTokens(const std::vector<std::string_view>& texts, TextIndex* by_text) {
  by_text->reserve(texts.size());
  begins_.reserve(texts.size() + 1);
  begins_.push_back(0);
  byte_tokens_.fill(-1);
  for (size_t i = 0; i < texts.size(); ++i) {
    const TokenId id = static_cast<TokenId>(i);
    const std::string_view text = texts[i];
    if (FindInvalidUtf8(text) != std::string_view::npos)
      return absl::InvalidArgumentError(absl::StrCat(kTokensKey, "[", i, "] is not UTF-8"));
    // Several empty tokens exist in real tables; they can neither be produced nor be confused.
    if (!text.empty() && !by_text->emplace(text, id).second)
      return absl::InvalidArgumentError(
          absl::StrCat(kTokensKey, "[", i, "] repeats token ", by_text->at(text)));
    const bool is_special =
        types_[i] == TokenType::kControl || types_[i] == TokenType::kUserDefined;
    if (is_special && text.size() > SpecialSplitter::kMaxTokenBytes)
      return absl::InvalidArgumentError(absl::StrCat(kTokensKey, "[", i, "]: a special token of ",
                                                     text.size(), " bytes; at most ",
                                                     SpecialSplitter::kMaxTokenBytes));
    // Only the pieces of the model itself are written in the byte alphabet. As the reference does,
    // a text with a character outside it stands for itself.
    std::optional<std::string> bytes;
    if (types_[i] == TokenType::kNormal || types_[i] == TokenType::kByte)
      bytes = BytesOfAlphabetText(text);
    const std::string_view raw = bytes.has_value() ? *bytes : text;
    bytes_.insert(bytes_.end(), raw.begin(), raw.end());
    begins_.push_back(bytes_.size());
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    AppendUtf8(CharOfByte(static_cast<uint8_t>(byte)), &text);
    if (const auto found = by_text->find(text); found != by_text->end())
      byte_tokens_[byte] = found->second;
  }
  return absl::OkStatus();
}

absl::Status BpeVocab::ReadMerges(const std::vector<std::string_view>& lines,
                                  const TextIndex& by_text) {
  merges_.reserve(lines.size());
  std::string joined;
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string_view line = lines[rank];
    const auto error = [&](const char* what) {
      return absl::InvalidArgumentError(absl::StrCat(kMergesKey, "[", rank, "] ", what));
    };
    const size_t space = line.find(' ');
    if (space == 0 || space >= line.size() - 1 || line.find(' ', space + 1) != line.npos)
      return error("is not two tokens with a space between");
    joined.assign(line.substr(0, space)).append(line.substr(space + 1));
    const auto left = by_text.find(line.substr(0, space));
    const auto right = by_text.find(line.substr(space + 1));
    const auto result = by_text.find(joined);
    if (left == by_text.end() || right == by_text.end() || result == by_text.end())
      return error("names a token that is not in tokenizer.ggml.tokens");
    // A pair that is listed twice has its later rank, as in the reference.
    merges_[PairKey(left->second, right->second)] = {static_cast<int32_t>(rank), result->second};
  }
  return absl::OkStatus();
}

absl::Status BpeVocab::ReadSpecialIds(const GgufFile& file, const TextIndex& by_text) {
  for (const auto& [key, value] : file.metadata()) {
    constexpr std::string_view kPrefix = "tokenizer.ggml.", kSuffix = "_token_id";
    std::string_view name = key;
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    name.remove_prefix(kPrefix.size());
    name.remove_suffix(std::min(name.size(), kSuffix.size()));
    VC_ASSIGN_OR_RETURN(const int64_t id, file.GetInt(key));
    if (id < 0 || id >= size())
      return absl::InvalidArgumentError(
          absl::StrCat(key, " is ", id, ", but the vocabulary has ", size(), " tokens"));
    if (name == "bos") bos_id_ = static_cast<TokenId>(id);
    if (name == "eos") eos_id_ = static_cast<TokenId>(id);
    if (name == "eos" || name == "eot" || name == "eom")
      end_of_generation_.push_back(static_cast<TokenId>(id));
  }
  for (std::string_view text : kEndTexts)
    if (const auto found = by_text.find(text);
        found != by_text.end() && type(found->second) == TokenType::kControl)
      end_of_generation_.push_back(found->second);
  std::sort(end_of_generation_.begin(), end_of_generation_.end());
  end_of_generation_.erase(std::unique(end_of_generation_.begin(), end_of_generation_.end()),
                           end_of_generation_.end());
  return absl::OkStatus();
}

void BpeVocab::IndexNormalTokens() {
  // Only now: growing `bytes_` would have moved what the keys point to.
  for (TokenId id = 0; id < size(); ++id)
    if (type(id) == TokenType::kNormal && !bytes(id).empty()) normal_tokens_.emplace(bytes(id), id);
}

void BpeVocab::ComputeDigest(const std::vector<std::string_view>& texts,
                             const std::vector<std::string_view>& merges) {
  Sha256 sha;
  for (const std::vector<std::string_view>* table : {&texts, &merges}) {
    const uint64_t count = table->size();
    sha.Update(&count, sizeof(count));
    for (std::string_view entry : *table) AddField(entry, &sha);
  }
  AddField({reinterpret_cast<const char*>(types_.data()), types_.size()}, &sha);
  AddField(absl::StrCat("bos ", bos_id_, " eos ", eos_id_), &sha);
  for (TokenId id : end_of_generation_) AddField(absl::StrCat("end ", id), &sha);
  const Sha256Digest digest = sha.Finish();
  tables_digest_.assign(digest.begin(), digest.end());
}

TokenId BpeVocab::FindNormal(std::string_view bytes) const {
  const auto found = normal_tokens_.find(bytes);
  return found == normal_tokens_.end() ? -1 : found->second;
}

const BpeMerge* BpeVocab::FindMerge(TokenId left, TokenId right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

}  // namespace vericache
