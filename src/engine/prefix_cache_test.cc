// The prefix cache on made-up K/V: what is kept, found, refused, and what a bad store does to it.
#include "engine/prefix_cache.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/prefix_test_util.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "kv/kv_tier.h"

namespace vericache {
namespace {

DraftSpec Off() { return *ParseDraftSpec("off"); }

void Add(PrefixCache* cache, const std::vector<TokenId>& tokens, const FullKv& full,
         std::shared_ptr<const KeyScores> scores = nullptr, const std::string& spec = "off") {
  const DraftSpec parsed = *ParseDraftSpec(spec);
  PrefixCache::Finding finding = {tokens, full, "", parsed};
  finding.scores = std::move(scores);
  cache->Add(finding);
}

int64_t Found(PrefixCache* cache, const std::vector<TokenId>& tokens) {
  const PrefixHit hit = cache->Find(tokens, "", Off(), 0);
  if (!hit.full.has_value()) return 0;
  const FullKv want = KvOf(tokens);
  for (int64_t block = 0; block < hit.num_tokens() / kBlockTokens; ++block)
    EXPECT_EQ(std::memcmp(hit.full->block(block), want.block(block), want.block_bytes()), 0);
  return hit.num_tokens();
}

TEST(PrefixCache, KeepsByTokenInMemoryAndByBlockInAStore) {
  Backing backing;
  const auto tokens = Tokens(200), longer = Tokens(260);
  const auto in_memory = CacheOn(nullptr, 1 << 20);
  Add(in_memory.get(), tokens, KvOf(tokens));
  EXPECT_EQ(Found(in_memory.get(), longer), 200);
  EXPECT_EQ(Found(in_memory.get(), tokens), 199);
  {
    const auto writer = CacheOn(&backing);
    Add(writer.get(), tokens, KvOf(tokens));
  }  // writes are finished here
  const auto reader = CacheOn(&backing);
  EXPECT_EQ(Found(reader.get(), longer), 192);
  EXPECT_EQ(Found(reader.get(), Tokens(192)), 191);
  EXPECT_EQ(Found(reader.get(), Tokens(200, 1)), 0);
  EXPECT_EQ(reader->Stats().store_hits, 2);
}

TEST(PrefixCache, GivesNothingShorterThanWhatIsKnown) {
  Backing backing;
  const auto tokens = Tokens(200);
  const auto cache = CacheOn(&backing, 1 << 20);
  Add(cache.get(), tokens, KvOf(tokens));
  cache->WaitForWrites();
  EXPECT_FALSE(cache->Find(Tokens(300), "", Off(), 200).full.has_value());
  EXPECT_TRUE(cache->Find(Tokens(300), "", Off(), 199).full.has_value());
  EXPECT_FALSE(cache->Find(Tokens(300), "tenant", Off(), 0).full.has_value());
}

// Selectors that ask the newest queries get them computed again.
TEST(PrefixCache, LeavesTheNewestQueriesToBeComputed) {
  const auto cache = CacheOn(nullptr, 1 << 20);
  Add(cache.get(), Tokens(200), KvOf(Tokens(200)));
  const DraftSpec verify = *ParseDraftSpec("verify:0.25+int4");
  EXPECT_EQ(cache->Find(Tokens(200), "", verify, 0).num_tokens(), 168);
  EXPECT_EQ(cache->Find(Tokens(210), "", verify, 0).num_tokens(), 178);
  EXPECT_EQ(cache->Find(Tokens(232), "", verify, 0).num_tokens(), 200);
  EXPECT_EQ(cache->Find(Tokens(200), "", verify, 180).num_tokens(), 0) << "a session has more";
  EXPECT_EQ(cache->Find(Tokens(20), "", verify, 0).num_tokens(), 0);
  EXPECT_EQ(cache->Find(Tokens(20), "", *ParseDraftSpec("int4"), 0).num_tokens(), 19);
}

TEST(PrefixCache, ScoresAreCutToWhatIsShared) {
  Backing backing;
  auto scores = std::make_shared<KeyScores>();
  scores->num_scored = 200;
  for (int list = 0; list < 4; ++list) {
    scores->of_head.emplace_back(200);
    for (int i = 0; i < 200; ++i) scores->of_head[list][i] = static_cast<float>(list * 1000 + i);
  }
  const std::string name = "h2o:0.3";
  const DraftSpec spec = *ParseDraftSpec(name);
  const auto in_memory = CacheOn(nullptr, 1 << 20);
  Add(in_memory.get(), Tokens(200), KvOf(Tokens(200)), scores, name);
  {
    const auto writer = CacheOn(&backing);
    Add(writer.get(), Tokens(200), KvOf(Tokens(200)), scores, name);
  }
  auto parting = Tokens(220);
  parting[150] = -1;
  const auto in_store = CacheOn(&backing);
  const std::pair<PrefixCache*, int64_t> caches[] = {{in_memory.get(), 150}, {in_store.get(), 128}};
  for (const auto& [cache, num_scored] : caches) {
    const PrefixHit hit = cache->Find(parting, "", spec, 0);
    ASSERT_NE(hit.scores, nullptr);
    EXPECT_EQ(hit.scores->num_scored, num_scored);
    for (int list = 0; list < 4; ++list) {
      ASSERT_EQ(hit.scores->of_head[list].size(), static_cast<size_t>(num_scored));
      for (int i = 0; i < num_scored; ++i)
        EXPECT_EQ(hit.scores->of_head[list][i], static_cast<float>(list * 1000 + i));
    }
    EXPECT_EQ(cache->Find(parting, "", *ParseDraftSpec("kvzip:0.3"), 0).scores, nullptr);
    // Of less than half a prompt they are worth nothing.
    EXPECT_EQ(cache->Find(Tokens(500), "", spec, 0).scores, nullptr);
  }
}

// Case 14: a store that fails costs hits and nothing else, and goes on by itself.
TEST(PrefixCache, Case14ABrokenStoreIsNoStore) {
  Backing backing;
  const auto cache = CacheOn(&backing);
  backing.broken = true;
  Add(cache.get(), Tokens(200), KvOf(Tokens(200)));
  cache->WaitForWrites();
  EXPECT_EQ(Found(cache.get(), Tokens(200)), 0);
  backing.broken = false;
  Add(cache.get(), Tokens(200), KvOf(Tokens(200)));
  cache->WaitForWrites();
  EXPECT_EQ(Found(cache.get(), Tokens(200)), 192);
  backing.broken = true;
  EXPECT_EQ(Found(cache.get(), Tokens(200)), 0) << "there by name, and not to be had";
}

TEST(PrefixCache, ASlowStoreHoldsNobodyUp) {
  Backing backing;
  backing.put_us = 2000;
  auto cache = CacheOn(&backing);
  constexpr int kNum = static_cast<int>(kMaxQueuedPrefixes) + 40;
  for (int i = 0; i < kNum; ++i) {
    const auto tokens = Tokens(130, i);
    Add(cache.get(), tokens, KvOf(tokens));
    (void)Found(cache.get(), tokens);
  }
  EXPECT_GT(cache->Stats().skipped_records, 0);
  cache = nullptr;
  EXPECT_GE(backing.blobs.Stats().num_blobs, 2 * static_cast<int64_t>(kMaxQueuedPrefixes));
}

// A live sequence goes on writing while its prefix is written to the store.
TEST(PrefixCache, RecordsShareOnlyBlocksThatNobodyWrites) {
  Backing backing;
  backing.put_us = 200;
  const auto cache = CacheOn(&backing);
  const auto tokens = Tokens(100);
  for (int i = 0; i < 20; ++i) {
    FullKv full = KvOf(tokens);
    Add(cache.get(), tokens, full);
    ASSERT_TRUE(full.Reserve(1).ok());
    std::memset(full.mutable_block(1), 0x11, full.block_bytes());  // the open block
    FullKv shorter = full.Fork(40);
    ASSERT_TRUE(shorter.Reserve(1).ok());
    std::memset(shorter.mutable_block(0), 0x22, full.block_bytes());
  }
  cache->WaitForWrites();
  EXPECT_EQ(Found(cache.get(), tokens), 64);
}

TEST(PrefixCache, Case46FindsTheFirstRowThatIsNotFinite) {
  for (int64_t bad : {0, 1, 63, 64, 100, 129}) {
    for (uint16_t value : {0x7c00, 0xfc00, 0x7e01}) {
      for (bool in_v : {false, true}) {
        FullKv full = KvOf(Tokens(130));
        const int64_t slot = bad % kBlockTokens;
        const int c = 13, head = 3;  // the last head
        uint16_t* k = full.mutable_block(bad / kBlockTokens) + kShape.head_block_values() * head;
        if (in_v)
          k[kShape.k_block_values() + ((c / 16) * kBlockTokens + slot) * 16 + c % 16] = value;
        else
          k[slot / 16 * kShape.head_dim * 16 + c * 16 + slot % 16] = value;
        EXPECT_EQ(CountFiniteRows(full, 0), bad);
        EXPECT_EQ(CountFiniteRows(full, 65), bad >= 65 ? bad : 130);
        // Rows behind the last committed one may hold anything.
        EXPECT_EQ(CountFiniteRows(full.Fork(bad), 0), bad);
      }
    }
  }
  EXPECT_EQ(CountFiniteRows(KvOf(Tokens(130)), 0), 130);
}

TEST(MemoryPrefixes, EvictsByUseWithinTheBudget) {
  const uint64_t block = KvOf(Tokens(1)).block_bytes();
  MemoryPrefixes memory(4 * block + 4 * 64 * 4 + 100);
  const auto add = [&](TokenId salt) {
    memory.Add({"", Tokens(64, salt), KvOf(Tokens(64, salt)), {}, {}});
  };
  for (TokenId salt : {1, 2, 3, 4}) add(salt);
  EXPECT_EQ(memory.evicted(), 0);
  EXPECT_EQ(memory.Find("", Tokens(64, 1)).num_tokens, 64);
  add(5);
  EXPECT_EQ(memory.Find("", Tokens(64, 2)).num_tokens, 0);
  EXPECT_EQ(memory.Find("", Tokens(64, 1)).num_tokens, 64);
  EXPECT_EQ(memory.evicted(), 1);
  EXPECT_LE(memory.num_bytes(), 4 * block + 4 * 64 * 4 + 100);
}

// Under a KV budget: what is kept goes when running requests need the memory.
TEST(PrefixCache, WhatIsKeptGivesWay) {
  const uint64_t block = KvOf(Tokens(1)).block_bytes();
  const auto cache = CacheOn(nullptr, 1 << 20);
  Add(cache.get(), Tokens(200), KvOf(Tokens(200)));
  Add(cache.get(), Tokens(64, 9), KvOf(Tokens(64, 9)));
  EXPECT_EQ(cache->Stats().memory_evicted, 0);
  cache->LimitMemory(2 * block);
  EXPECT_EQ(cache->Stats().memory_evicted, 1);
  EXPECT_LE(cache->Stats().memory_bytes, 2 * block);
  EXPECT_EQ(Found(cache.get(), Tokens(300)), 0);
  EXPECT_EQ(Found(cache.get(), Tokens(70, 9)), 64);
  // A look-up that needs all the memory for what it finds gets it, and leaves nothing behind.
  PrefixRoom room;
  room.memory_bytes = 0;
  EXPECT_EQ(cache->Find(Tokens(70, 9), "", Off(), 0, room).num_tokens(), 64);
  EXPECT_EQ(cache->Stats().memory_bytes, 0u);
  Add(cache.get(), Tokens(64, 9), KvOf(Tokens(64, 9)));
  EXPECT_EQ(cache->Stats().memory_bytes, 0u) << "there is no room for it";
  cache->LimitMemory(uint64_t{1} << 40);
  Add(cache.get(), Tokens(200), KvOf(Tokens(200)));
  EXPECT_EQ(Found(cache.get(), Tokens(300)), 200);
  EXPECT_LE(cache->Stats().memory_bytes, uint64_t{1} << 20);
}

// What comes from a store is spilled as it comes: no more of it is in RAM than may stay, and two
// blocks on their way.
TEST(PrefixCache, LoadingHoldsNoMoreThanMayStay) {
  Backing backing;
  const auto tokens = Tokens(64 * 40);
  {
    const auto writer = CacheOn(&backing);
    Add(writer.get(), tokens, KvOf(tokens));
  }
  for (const int64_t hot : {0, 5}) {
    KvTierOptions tier_options;
    tier_options.folder = testing::TempDir();
    tier_options.max_tokens = 64 * 50;
    tier_options.staging_bytes = 1 << 20;
    const auto tier = *KvTier::Create(kShape, tier_options);
    PrefixCacheOptions options;
    options.identity = {"model", "tokenizer", "rope", KvFormatText(kShape), "contract", ""};
    options.store = std::make_unique<SharedStore>(&backing);
    PrefixCache cache(std::move(options), kShape, nullptr,
                      [&tier] { return FullKv(kShape, nullptr, tier); });
    PrefixRoom room;
    room.hot_blocks = hot;
    const PrefixHit hit = cache.Find(tokens, "", Off(), 0, room);
    EXPECT_EQ(hit.num_tokens(), 64 * 40 - 1);
    EXPECT_LE(tier->pool().num_used_peak(), hot + 2);
    std::vector<uint16_t> values(hit.full->block_bytes() / 2);
    const FullKv want = KvOf(tokens);
    for (const int64_t block : {0, 4, 5, 38}) {
      ASSERT_TRUE(hit.full->ReadBlock(block, values.data()).ok());
      EXPECT_EQ(std::memcmp(values.data(), want.block(block), want.block_bytes()), 0) << block;
    }
  }
}

// A draft KV under the name of these tokens that stands for fewer or more of them is none.
TEST(PrefixCache, AStoredDraftOfAnotherLengthIsRefused) {
  const DraftSpec spec = *ParseDraftSpec("int8");
  const auto tokens = Tokens(100);
  ThreadPool pool(1);
  const KernelTable* kernels = *SelectKernels("scalar");
  const auto draft_of = [&](int64_t n) {
    const FullKv full = KvOf(absl::MakeConstSpan(tokens).first(n));
    DraftKv draft = NewDraftKv(kShape, spec, kernels);
    KeptSet kept;
    for (int list = 0; list < kShape.num_layers * kShape.num_kv_heads; ++list) {
      kept.positions.emplace_back();
      for (int64_t pos = 0; pos < n; ++pos)
        kept.positions.back().push_back(static_cast<int32_t>(pos));
    }
    draft.Rebuild(full, kept, &pool);
    std::string bytes;
    draft.AppendTo(&bytes);
    return bytes;
  };
  for (const int64_t stands_for : {100, 99, 64}) {
    Backing backing;
    SharedStore store(&backing);
    StoredPrefixes stored(&store, kShape, kernels, [] { return FullKv(kShape, nullptr); });
    const StoredPrefixes::Prompt prompt(
        tokens, {"model", "tokenizer", "rope", KvFormatText(kShape), "contract", ""}, 256);
    StoredPrefixes::Record record{FullKv(kShape, nullptr)};
    record.draft = draft_of(stands_for);
    record.draft_last = prompt.LastKey(100);
    record.draft_key = prompt.keyer.DraftKey(record.draft_last, spec.ToString());
    const auto ids = prompt.LastIds(100);
    record.draft_ids.assign(ids.begin(), ids.end());
    ASSERT_TRUE(stored.Save(record));
    const std::optional<DraftKv> draft = stored.LoadDraft(prompt, 100, 100, spec, kNoDeadline);
    EXPECT_EQ(draft.has_value(), stands_for == 100) << stands_for;
  }
}

TEST(MemoryPrefixes, AContinuationTakesItsBeginningsPlace) {
  MemoryPrefixes memory(1 << 20);
  const FullKv full = KvOf(Tokens(200));
  memory.Add({"", Tokens(130), full.Fork(130), {}, {}});
  const uint64_t before = memory.num_bytes();
  memory.Add({"", Tokens(200), full.Fork(), {}, {}});
  EXPECT_LT(memory.num_bytes(), before + 2 * full.block_bytes()) << "shared blocks count once";
  memory.Add({"", Tokens(90), full.Fork(90), {}, {}});
  EXPECT_EQ(memory.Find("", Tokens(300)).num_tokens, 200);
  EXPECT_EQ(memory.Find("other", Tokens(300)).num_tokens, 0);
  EXPECT_EQ(memory.evicted(), 0);
}

}  // namespace
}  // namespace vericache
