// The tables of a byte-level BPE vocabulary, read from a GGUF file and checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/types.h"
#include "gguf/reader.h"

namespace vericache {

// tokenizer.ggml.token_type, by the numbers in the format.
enum class TokenType : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // never shown, parsed from template output only
  kUserDefined = 4,  // ordinary text that is always one token ("<tool_call>")
  kUnused = 5,       // padding of the table
  kByte = 6,
};

struct BpeMerge {
  int32_t rank;  // lower merges first
  TokenId result;
};

// Move-only: an index holds views into the token bytes.
class BpeVocab {
 public:
  BpeVocab(BpeVocab&&) = default;
  BpeVocab& operator=(BpeVocab&&) = default;

  // ERRORS: kInvalidArgument: a table is absent or of wrong type, length or range.
  static absl::StatusOr<BpeVocab> Read(const GgufFile& file);

  int64_t size() const { return static_cast<int64_t>(types_.size()); }
  bool Contains(TokenId id) const { return id >= 0 && id < size(); }
  // REQUIRES for both: Contains(id).
  TokenType type(TokenId id) const { return types_[id]; }
  std::string_view bytes(TokenId id) const {
    return {bytes_.data() + begins_[id], begins_[id + 1] - begins_[id]};
  }

  // The token of one byte; -1 where the vocabulary has none (SmolLM2 lacks U+0004, for one).
  TokenId byte_token(uint8_t byte) const { return byte_tokens_[byte]; }
  // The normal token with just these bytes; -1 if there is none.
  TokenId FindNormal(std::string_view bytes) const;
  // How a pair of neighbours merges; null if it does not.
  const BpeMerge* FindMerge(TokenId left, TokenId right) const;

  TokenId bos_id() const { return bos_id_; }  // -1 if none
  TokenId eos_id() const { return eos_id_; }  // -1 if none
  // Sorted: EOS, EOT, EOM by key, and control tokens known by their text.
  const std::vector<TokenId>& end_of_generation() const { return end_of_generation_; }
  // SHA-256 over all of the tables, as raw bytes.
  const std::string& tables_digest() const { return tables_digest_; }

 private:
  BpeVocab() = default;
  using TextIndex = absl::flat_hash_map<std::string_view, TokenId>;

  absl::Status ReadTokens(const std::vector<std::string_view>& texts, TextIndex* by_text);
  absl::Status ReadTypes(const GgufFile& file, int64_t num_tokens);
  absl::Status ReadMerges(const std::vector<std::string_view>& lines, const TextIndex& by_text);
  absl::Status ReadSpecialIds(const GgufFile& file, const TextIndex& by_text);
  void IndexNormalTokens();
  void ComputeDigest(const std::vector<std::string_view>& texts,
                     const std::vector<std::string_view>& merges);

  std::vector<char> bytes_;     // of all tokens, joined; no std::string, whose short text moves
  std::vector<size_t> begins_;  // [size() + 1] into bytes_
  std::vector<TokenType> types_;
  std::array<TokenId, 256> byte_tokens_{};
  absl::flat_hash_map<std::string_view, TokenId> normal_tokens_;  // views into bytes_
  absl::flat_hash_map<uint64_t, BpeMerge> merges_;                // by left << 32 | right
  TokenId bos_id_ = -1, eos_id_ = -1;
  std::vector<TokenId> end_of_generation_;
  std::string tables_digest_;
};

}  // namespace vericache
