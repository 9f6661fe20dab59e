#include "engine/logits_chain.h"

#include <cstring>

namespace vericache {

LogitsChain::LogitsChain() : hash_(Sha256Of(kContractId, std::strlen(kContractId))) {}

LogitsChain::RowHash LogitsChain::HashOf(const float* logits, int64_t vocab_size) {
  return Xxh3_128(logits, vocab_size * sizeof(float));
}

void LogitsChain::Push(const RowHash& row) {
  uint8_t link[48];
  std::memcpy(link, hash_.data(), 32);
  std::memcpy(link + 32, row.data(), 16);
  hash_ = Sha256Of(link, sizeof(link));
}

LogitsChain LogitsChain::Restore(const Sha256Digest& digest) {
  LogitsChain chain;
  chain.hash_ = digest;
  return chain;
}

}  // namespace vericache
