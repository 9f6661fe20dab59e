// Squeezed blobs: bit for bit what was put, smaller where values are f16, harmless where hostile.
#include "remote/squeeze.h"

#include <cmath>
#include <cstring>
#include <random>

#include "gtest/gtest.h"
#include "remote/squeezed_store.h"
#include "storage/forwarding_store.h"

namespace vericache {
namespace {

absl::Span<const uint8_t> BytesOf(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string TextOf(const BlobBytes& blob) {
  return {reinterpret_cast<const char*>(blob.data()), blob.size()};
}

// Like K/V: f16 of a normal distribution, one scale a channel.
std::string HalfValues(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::string out(2 * count, '\0');
  for (size_t i = 0; i < count; ++i) {
    const _Float16 value = static_cast<_Float16>(normal(random) * (1 + i / 16 % 7));
    std::memcpy(out.data() + 2 * i, &value, 2);
  }
  return out;
}

std::string Noise(size_t size) {
  std::mt19937 random(5);
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

TEST(Squeeze, GivesBackWhatWasPutBitForBit) {
  std::string special;
  for (int bits = 0; bits < 65536; ++bits) {  // every f16 there is, NaN and all
    special += static_cast<char>(bits & 255);
    special += static_cast<char>(bits >> 8);
  }
  for (const std::string& blob : {HalfValues(100000, 1), HalfValues(100000, 2) + "x", special,
                                  std::string(100001, 'a'), std::string(640, '\0')}) {
    const std::string squeezed = Squeeze(blob);
    ASSERT_FALSE(squeezed.empty()) << blob.size();
    EXPECT_LT(squeezed.size(), blob.size());
    ASSERT_TRUE(IsSqueezed(BytesOf(squeezed)));
    const auto back = Unsqueeze(BytesOf(squeezed));
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(TextOf(*back) == blob) << blob.size();
  }
  const std::string half = HalfValues(400000, 3);
  EXPECT_LT(Squeeze(half).size(), half.size() * 92 / 100);
}

TEST(Squeeze, LeavesAloneWhatItCannotMakeSmaller) {
  for (const std::string& blob :
       {std::string(), std::string("x"), std::string("abcdefgh"), Noise(100000)})
    EXPECT_EQ(Squeeze(blob), "") << blob.size();
}

// Whatever a store sends: an error or a blob no longer than twice the bytes sent.
TEST(Squeeze, HostileBytesAreRefusedAndBounded) {
  const std::string good = Squeeze(HalfValues(3000, 4));
  for (size_t size = 0; size < good.size(); size += size < 64 ? 1 : 37) {
    const std::string cut = good.substr(0, size);
    if (IsSqueezed(BytesOf(cut))) EXPECT_FALSE(Unsqueeze(BytesOf(cut)).ok()) << size;
  }
  EXPECT_FALSE(Unsqueeze(BytesOf(good + "x")).ok());
  for (size_t at : {size_t{8}, size_t{16}})
    for (uint64_t value : {uint64_t{0}, uint64_t{1}, uint64_t{6000}, uint64_t{1} << 32,
                           ~uint64_t{0}, ~uint64_t{0} - 20, uint64_t{1} << 63}) {
      std::string bad = good;
      std::memcpy(bad.data() + at, &value, 8);
      if (bad == good) continue;
      EXPECT_FALSE(Unsqueeze(BytesOf(bad)).ok()) << at << " " << value;
    }
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    for (int n = 0; n < 3; ++n) bad[8 + random() % (bad.size() - 8)] ^= 1 << random() % 8;
    const auto blob = Unsqueeze(BytesOf(bad));
    if (blob.ok()) EXPECT_LE(blob->size(), 2 * bad.size());
  }
  EXPECT_FALSE(IsSqueezed(BytesOf("VCSQZ")));
  EXPECT_FALSE(IsSqueezed(BytesOf(std::string(100, '\1'))));
}

// Both kinds under one roof: who reads need not know how it was written.
TEST(SqueezedStore, ReadsBothAndSqueezesWhereAsked) {
  const std::string half = HalfValues(50000, 6), noise = Noise(50000);
  for (const auto on_put : {SqueezedStore::OnPut::kAsItIs, SqueezedStore::OnPut::kSqueeze}) {
    auto owned = std::make_unique<MemoryBlobStore>();
    MemoryBlobStore* memory = owned.get();
    SqueezedStore store(std::move(owned), on_put);
    const BlobKey first = {1}, second = {2}, third = {3};
    ASSERT_TRUE(store.Put(first, {half.substr(0, 777), std::string_view(half).substr(777)}).ok());
    ASSERT_TRUE(store.Put(second, {noise}).ok());
    ASSERT_TRUE(memory->Put(third, {Squeeze(half)}).ok());
    const bool squeezed = on_put == SqueezedStore::OnPut::kSqueeze;
    EXPECT_EQ(memory->Get(first)->size() < half.size(), squeezed);
    EXPECT_EQ(memory->Get(second)->size(), noise.size());
    EXPECT_TRUE(TextOf(*store.Get(second)) == noise);
    const BlobKey keys[] = {first, third};
    int seen = 0;
    store.GetMany(keys, kNoDeadline, [&](size_t idx, absl::StatusOr<BlobBytes> blob) {
      EXPECT_TRUE(blob.ok() && TextOf(*blob) == half) << idx;
      return ++seen < 9;
    });
    EXPECT_EQ(seen, 2);
    std::string bad = Squeeze(half);
    bad[30] ^= 1;
    bad.pop_back();
    ASSERT_TRUE(memory->Put(third, {bad}).ok());
    EXPECT_TRUE(absl::IsNotFound(store.Get(third).status()));
    EXPECT_EQ(store.Stats().damaged, 1);
  }
}

// What a store answers with one question stays one, and its link is told.
class CountingStore : public ForwardingStore {
 public:
  explicit CountingStore(BlobStore* store) : ForwardingStore(store) {}
  absl::StatusOr<int64_t> CountPresent(absl::Span<const BlobKey> keys, Deadline deadline) override {
    ++questions;
    return ForwardingStore::CountPresent(keys, deadline);
  }
  absl::StatusOr<size_t> FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) override {
    ++questions;
    return ForwardingStore::FindFirst(keys, deadline);
  }
  StoreLink Link() override { return {.least_wait_s = 7}; }
  int questions = 0;
};

TEST(SqueezedStore, AsksNoMoreOftenThanTheStoreItself) {
  MemoryBlobStore memory;
  ASSERT_TRUE(memory.Put({5}, {"blob"}).ok());
  auto owned = std::make_unique<CountingStore>(&memory);
  CountingStore* counting = owned.get();
  SqueezedStore store(std::move(owned), SqueezedStore::OnPut::kSqueeze);
  const BlobKey keys[] = {{1}, {2}, {3}, {4}, {5}, {6}};
  EXPECT_EQ(*store.FindFirst(keys, kNoDeadline), 4u);
  EXPECT_EQ(counting->questions, 1);
  EXPECT_EQ(store.Link().least_wait_s, 7);
}

}  // namespace
}  // namespace vericache
