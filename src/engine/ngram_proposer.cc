#include "engine/ngram_proposer.h"

#include <algorithm>

#include "base/check.h"

namespace vericache {
namespace {

// Slots looked at for one n-gram. Chosen texts can make more collide; then the newest is kept.
constexpr int kMaxProbes = 16;
constexpr int kMaxN = 16;
constexpr size_t kFirstSlots = 64;  // a power of two

uint64_t Mix(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15u;
  return x ^ x >> 29;
}

uint64_t HashOf(const TokenId* gram, int n) {
  uint64_t hash = 0x243f6a8885a308d3u;
  for (int i = 0; i < n; ++i) hash = Mix(hash + static_cast<uint32_t>(gram[i]));
  return Mix(hash);
}

// Both ends of the first `n` tokens.
uint64_t MarkOf(absl::Span<const TokenId> tokens, int64_t n) {
  const int64_t few = std::min<int64_t>(n, kMaxN);
  return HashOf(tokens.data(), static_cast<int>(few)) ^
         HashOf(tokens.data() + n - few, static_cast<int>(few)) * 3;
}

}  // namespace

NgramProposer::NgramProposer(const NgramOptions& options)
    : options_(options), tables_(options.max_n - options.min_n + 1) {
  VC_CHECK(options.min_n >= 1 && options.max_n >= options.min_n && options.max_n <= kMaxN &&
           options.max_entries >= 2);
}

// Enters the n-gram before tokens[next], over an older place of the same.
void NgramProposer::Add(absl::Span<const TokenId> tokens, int n, int64_t next) {
  Table& table = TableOf(n);
  const TokenId* gram = tokens.data() + next - n;
  const size_t mask = table.slots.size() - 1, home = HashOf(gram, n) & mask;
  for (size_t probe = 0; probe < kMaxProbes; ++probe) {
    uint32_t& slot = table.slots[(home + probe) & mask];
    const bool used = slot != 0;
    if (used && !std::equal(gram, gram + n, tokens.data() + slot - n)) continue;
    slot = static_cast<uint32_t>(next);
    table.num_used += used ? 0 : 1;
    return;
  }
  table.slots[home] = static_cast<uint32_t>(next);
}

// Half of the slots stay empty. A table at its largest forgets the older half of what it has.
void NgramProposer::MakeRoom(absl::Span<const TokenId> tokens, int n) {
  Table& table = TableOf(n);
  const bool full = table.num_used >= options_.max_entries;
  const bool dense =
      table.slots.empty() || 2 * (table.num_used + 1) > static_cast<int64_t>(table.slots.size());
  if (!full && !dense) return;
  std::vector<uint32_t> old = std::move(table.slots);
  std::erase(old, 0u);
  std::sort(old.begin(), old.end());
  if (full) old.erase(old.begin(), old.begin() + static_cast<int64_t>(old.size() + 1) / 2);
  size_t num_slots = kFirstSlots;
  while (num_slots < 4 * (old.size() + 1)) num_slots *= 2;
  table.slots.assign(num_slots, 0);
  table.num_used = 0;
  for (const uint32_t at : old) Add(tokens, n, at);
}

void NgramProposer::Update(absl::Span<const TokenId> tokens) {
  const int64_t size = static_cast<int64_t>(tokens.size());
  VC_CHECK(size < int64_t{1} << 32);
  if (size < num_known_ || MarkOf(tokens, num_known_) != last_mark_) {
    for (Table& table : tables_) table = Table();
    num_known_ = 0;
  }
  for (int64_t next = num_known_; next < size; ++next) {
    for (int n = options_.min_n; n <= options_.max_n && n <= next; ++n) {
      MakeRoom(tokens, n);
      Add(tokens, n, next);
    }
  }
  num_known_ = size;
  last_mark_ = MarkOf(tokens, size);
}

void NgramProposer::Propose(absl::Span<const TokenId> tokens, absl::Span<const TokenId> tail,
                            int64_t max_tokens, std::vector<TokenId>* proposal) const {
  proposal->clear();
  const int64_t size = static_cast<int64_t>(tokens.size());
  VC_CHECK(size == num_known_);
  const int64_t all = size + static_cast<int64_t>(tail.size());
  const auto at = [&](int64_t pos) {
    if (pos < size) return tokens[pos];
    return pos < all ? tail[pos - size] : (*proposal)[pos - all];
  };
  TokenId end[kMaxN];
  int64_t from = 0;
  for (int n = options_.max_n; n >= options_.min_n && from == 0; --n) {
    if (n > all || TableOf(n).slots.empty()) continue;
    for (int i = 0; i < n; ++i) end[i] = at(all - n + i);
    const std::vector<uint32_t>& slots = TableOf(n).slots;
    const size_t mask = slots.size() - 1, home = HashOf(end, n) & mask;
    for (size_t probe = 0; probe < kMaxProbes && from == 0; ++probe) {
      const uint32_t slot = slots[(home + probe) & mask];
      if (slot == 0) break;
      if (std::equal(end, end + n, tokens.data() + slot - n)) from = slot;
    }
  }
  if (from == 0) return;
  const int64_t most = options_.overlap ? max_tokens : std::min(max_tokens, all - from);
  for (int64_t i = 0; i < most; ++i) proposal->push_back(at(from + i));
}

size_t NgramProposer::num_bytes() const {
  size_t bytes = 0;
  for (const Table& table : tables_) bytes += table.slots.capacity() * sizeof(uint32_t);
  return bytes;
}

}  // namespace vericache
