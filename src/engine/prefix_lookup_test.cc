// Look-ups that load beside the engine's thread: what they give, when they end, what they leave.
#include "engine/prefix_lookup.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/prefix_cache.h"
#include "engine/prefix_loader.h"
#include "engine/prefix_test_util.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

// Lets readers through one by one.
class Gate {
 public:
  void Pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return free_ > 0; });
    --free_;
    --waiting_;
  }
  void Open(int count) {
    const std::lock_guard lock(mutex_);
    free_ += count;
    changed_.notify_all();
  }
  void WaitForReader() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0 && free_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int waiting_ = 0, free_ = 0;
};

void Store(Backing* backing, const std::vector<TokenId>& tokens) {
  const auto writer = CacheOn(backing);
  const DraftSpec off = *ParseDraftSpec("off");
  writer->Add({tokens, KvOf(tokens), "", off});
}

void ExpectKv(const PrefixHit& hit, const std::vector<TokenId>& tokens, int64_t num_tokens) {
  ASSERT_EQ(hit.num_tokens(), num_tokens);
  const FullKv want = KvOf(tokens);
  for (int64_t block = 0; block < num_tokens / kBlockTokens; ++block)
    EXPECT_EQ(std::memcmp(hit.full->block(block), want.block(block), want.block_bytes()), 0);
}

TEST(PrefixLookup, LoadsBesideTheEngineWhichGoesOn) {
  Backing backing;
  const auto tokens = Tokens(400), other = Tokens(300, 5);
  Store(&backing, tokens);
  const auto cache = CacheOn(&backing, 1 << 20);
  Gate gate;
  backing.before_get = [&] { gate.Pass(); };
  auto lookup = cache->Plan(tokens, "", *ParseDraftSpec("off"), 0);
  ASSERT_TRUE(lookup->asks_store());
  EXPECT_EQ(lookup->progress().blocks_wanted, -1);
  std::thread loader([&] { lookup->Load(); });
  gate.WaitForReader();
  gate.Open(2);
  gate.WaitForReader();
  EXPECT_EQ(lookup->progress().blocks_wanted, 6);
  EXPECT_EQ(lookup->progress().blocks_done, 2);
  EXPECT_EQ(lookup->progress().bytes_done, 2 * KvOf(Tokens(64)).block_bytes());
  // Meanwhile others are added to RAM and found there.
  cache->Add({other, KvOf(other), "", *ParseDraftSpec("off")});
  auto near = cache->Plan(other, "", *ParseDraftSpec("off"), 0);
  EXPECT_FALSE(near->asks_store()) << "RAM has all but the last token";
  ExpectKv(cache->Finish(std::move(near)), other, 299);
  EXPECT_GE(cache->Stats().lookups, 2);
  gate.Open(1000);
  loader.join();
  ExpectKv(cache->Finish(std::move(lookup)), tokens, 384);
  EXPECT_EQ(cache->Stats().store_hits, 1);
  EXPECT_EQ(cache->Stats().memory_hits, 1);
}

TEST(PrefixLookup, EndsWithWhatCameWhenItIsCancelled) {
  Backing backing;
  const auto tokens = Tokens(400);
  Store(&backing, tokens);
  const auto cache = CacheOn(&backing);
  Gate gate;
  backing.before_get = [&] { gate.Pass(); };
  auto lookup = cache->Plan(tokens, "", *ParseDraftSpec("off"), 0);
  std::thread loader([&] { lookup->Load(); });
  gate.Open(3);
  gate.WaitForReader();
  lookup->Cancel();
  gate.Open(1);  // the blob it is at
  loader.join();
  ExpectKv(cache->Finish(std::move(lookup)), tokens, 192);
  // One that is cancelled before it begins asks nothing.
  lookup = cache->Plan(tokens, "", *ParseDraftSpec("off"), 0);
  lookup->Cancel();
  const int questions = backing.questions;
  lookup->Load();
  EXPECT_EQ(backing.questions, questions);
  EXPECT_EQ(cache->Finish(std::move(lookup)).num_tokens(), 0);
}

TEST(PrefixLookup, TheStoreDiesInTheMiddle) {
  Backing backing;
  const auto tokens = Tokens(400);
  Store(&backing, tokens);
  const auto cache = CacheOn(&backing);
  int gets = 0;
  backing.before_get = [&] { backing.broken = ++gets > 4; };
  auto lookup = cache->Plan(tokens, "", *ParseDraftSpec("off"), 0);
  lookup->Load();
  ExpectKv(cache->Finish(std::move(lookup)), tokens, 256);
}

// What RAM has got meanwhile counts, and so does what it has lost.
TEST(PrefixLookup, FinishLooksAgainWhereItWasLetGo) {
  Backing backing;
  const auto tokens = Tokens(400);
  Store(&backing, Tokens(128));
  const auto cache = CacheOn(&backing, 1 << 20);
  const DraftSpec off = *ParseDraftSpec("off");
  auto lookup = cache->Plan(tokens, "", off, 0);
  lookup->LetGo();
  lookup->Load();
  cache->Add({tokens, KvOf(tokens), "", off});
  ExpectKv(cache->Finish(std::move(lookup)), tokens, 399);
  lookup = cache->Plan(tokens, "", off, 0);
  lookup->LetGo();
  cache->LimitMemory(0);
  EXPECT_EQ(cache->Finish(std::move(lookup)).num_tokens(), 0);
}

// An entry that a look-up holds may be joined to a longer one, or evicted.
TEST(PrefixLookup, HoldsWhatRamHadWhenItWasPlanned) {
  const auto tokens = Tokens(200), longer = Tokens(300);
  const auto cache = CacheOn(nullptr, 1 << 20);
  const DraftSpec off = *ParseDraftSpec("off");
  cache->Add({tokens, KvOf(tokens), "", off});
  auto joined = cache->Plan(longer, "", off, 0), evicted = cache->Plan(longer, "", off, 0);
  cache->Add({longer, KvOf(longer), "", off});
  ExpectKv(cache->Finish(std::move(joined)), tokens, 200);
  cache->LimitMemory(0);
  ExpectKv(cache->Finish(std::move(evicted)), tokens, 200);
}

// A draft KV that keeps every position of the first n tokens.
void StoreDraft(Backing* backing, const std::vector<TokenId>& tokens, int64_t num_tokens,
                const DraftSpec& spec) {
  ThreadPool pool(1);
  const KernelTable* kernels = *SelectKernels("scalar");
  SharedStore store(backing);
  StoredPrefixes stored(&store, kShape, kernels, [] { return FullKv(kShape, nullptr); });
  const auto first = absl::MakeConstSpan(tokens).first(num_tokens);
  const StoredPrefixes::Prompt prompt(
      first, {"model", "tokenizer", "rope", KvFormatText(kShape), "contract", ""}, 256);
  DraftKv draft = NewDraftKv(kShape, spec, kernels);
  KeptSet kept;
  kept.positions.resize(kShape.num_layers * kShape.num_kv_heads);
  for (auto& of_list : kept.positions)
    for (int32_t pos = 0; pos < num_tokens; ++pos) of_list.push_back(pos);
  draft.Rebuild(KvOf(first), kept, &pool);
  StoredPrefixes::Record record{FullKv(kShape, nullptr)};
  draft.AppendTo(&record.draft);
  record.draft_last = prompt.LastKey(num_tokens);
  record.draft_key = prompt.keyer.DraftKey(record.draft_last, spec.ToString());
  const auto ids = prompt.LastIds(num_tokens);
  record.draft_ids.assign(ids.begin(), ids.end());
  ASSERT_TRUE(stored.Save(record));
}

TEST(PrefixLookup, ADraftAloneTakesAFewQuestionsAndNoReadTooMany) {
  Backing backing;
  const auto tokens = Tokens(400);
  const DraftSpec spec = *ParseDraftSpec("int8");
  Store(&backing, tokens);
  StoreDraft(&backing, tokens, 64, spec);
  StoreDraft(&backing, tokens, 128, spec);
  int gets = 0;
  backing.before_get = [&] { ++gets; };
  const auto cache = CacheOn(&backing);
  backing.questions = 0;
  const std::optional<DraftKv> draft = cache->FindDraftAlone(tokens, "", spec, 0).draft;
  ASSERT_TRUE(draft.has_value());
  EXPECT_EQ(draft->num_tokens(), 128);
  EXPECT_EQ(backing.questions, 2) << "how long the prefix is, which drafts there are";
  EXPECT_EQ(gets, 2) << "the draft of the very prompt, which is not there, and the longest";
  EXPECT_FALSE(cache->FindDraftAlone(tokens, "", *ParseDraftSpec("int4"), 0).draft.has_value());
}

TEST(PrefixLoader, LoadsInOrderAndTellsEachOnce) {
  Backing backing;
  const auto tokens = Tokens(400), other = Tokens(300, 5);
  Store(&backing, tokens);
  Store(&backing, other);
  const auto cache = CacheOn(&backing);
  const DraftSpec off = *ParseDraftSpec("off");
  Gate gate;
  backing.before_get = [&] { gate.Pass(); };
  std::atomic<int> ended{0};
  {
    PrefixLoader loader(1);
    auto first = loader.Start(cache->Plan(tokens, "", off, 0), [&] { ++ended; });
    auto second = loader.Start(cache->Plan(other, "", off, 0), [&] { ++ended; });
    gate.WaitForReader();
    EXPECT_FALSE(first->done());
    EXPECT_FALSE(second->WaitFor(std::chrono::milliseconds(0)));
    EXPECT_EQ(second->lookup().progress().blocks_wanted, -1) << "one thread, one load";
    gate.Open(1000);
    while (!second->WaitFor(std::chrono::milliseconds(100))) {
    }
    EXPECT_TRUE(first->done());
    ExpectKv(cache->Finish(first->Take()), tokens, 384);
    ExpectKv(cache->Finish(second->Take()), other, 256);
  }
  EXPECT_EQ(ended, 2);
}

TEST(PrefixLoader, WhatIsDroppedOrLeftEndsByItself) {
  Backing backing;
  const auto tokens = Tokens(640);
  Store(&backing, tokens);
  const auto cache = CacheOn(&backing);
  const DraftSpec off = *ParseDraftSpec("off");
  Gate gate;
  backing.before_get = [&] { gate.Pass(); };
  std::atomic<int> ended{0};
  std::thread opener;
  {
    PrefixLoader loader(2);
    auto dropped = loader.Start(cache->Plan(tokens, "", off, 0), [&] { ++ended; });
    gate.WaitForReader();
    dropped->Cancel();
    dropped.reset();
    auto left = loader.Start(cache->Plan(tokens, "", off, 0), [&] { ++ended; });
    auto queued = loader.Start(cache->Plan(tokens, "", off, 0), [&] { ++ended; });
    opener = std::thread([&] { gate.Open(1000); });
  }
  opener.join();
  EXPECT_EQ(ended, 3);
}

}  // namespace
}  // namespace vericache
