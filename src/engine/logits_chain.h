// The running hash that makes an answer auditable: one link per emitted token.
//
// h0 = SHA-256(contract id); h = SHA-256(h || XXH3-128 of the row's raw little-endian fp32 logits,
// before bias and penalties). It proves nothing unless it is computed again (vericache audit).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/hash.h"

namespace vericache {

// Names the numeric contract; a change of any rounding step is a new id.
inline constexpr char kContractId[] = "vericache-contract-1";

class LogitsChain {
 public:
  using RowHash = std::array<uint8_t, 16>;

  LogitsChain();
  // logits: [vocab_size], the row that chose an emitted token.
  void Push(const float* logits, int64_t vocab_size) { Push(HashOf(logits, vocab_size)); }
  // The same where only the row's hash is at hand: the row lies on another machine.
  void Push(const RowHash& row);
  static RowHash HashOf(const float* logits, int64_t vocab_size);
  std::string Hex() const { return HexOf(hash_); }
  const Sha256Digest& digest() const { return hash_; }
  static LogitsChain Restore(const Sha256Digest& digest);

 private:
  Sha256Digest hash_;
};

}  // namespace vericache
