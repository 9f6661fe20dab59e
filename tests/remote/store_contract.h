// What every BlobStore must do, whatever is behind it: one suite, run over all of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "storage/blob_store.h"

namespace vericache {

inline BlobKey KeyOf(int n) { return Sha256Of(&n, sizeof(n)); }

inline std::string Bytes(int seed, size_t size) {
  std::string bytes(size, '\0');
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  return bytes;
}

inline std::string TextOf(const absl::StatusOr<BlobBytes>& bytes) {
  if (!bytes.ok()) return "";
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

inline std::set<BlobKey> KeysIn(BlobStore* store, std::string_view hex_prefix = "") {
  std::set<BlobKey> keys;
  EXPECT_TRUE(store
                  ->List(hex_prefix,
                         [&](const BlobInfo& info) {
                           EXPECT_TRUE(keys.insert(info.key).second) << "visited twice";
                           return true;
                         })
                  .ok());
  return keys;
}

inline void ExpectKeepsWhatWasPut(BlobStore* store, size_t large_bytes) {
  EXPECT_TRUE(absl::IsNotFound(store->Get(KeyOf(1)).status())) << store->Get(KeyOf(1)).status();
  EXPECT_FALSE(store->Contains(KeyOf(1)));
  ASSERT_TRUE(store->Put(KeyOf(1), {"ab", "", "cde"}).ok());
  ASSERT_TRUE(store->Put(KeyOf(2), {}).ok());
  const std::string large = Bytes(3, large_bytes);
  const absl::Status put = store->Put(
      KeyOf(3), {std::string_view(large).substr(0, 5), std::string_view(large).substr(5)});
  ASSERT_TRUE(put.ok()) << put;
  EXPECT_TRUE(store->Contains(KeyOf(1)));
  EXPECT_EQ(TextOf(store->Get(KeyOf(1))), "abcde");
  EXPECT_TRUE(store->Get(KeyOf(2)).ok()) << store->Get(KeyOf(2)).status();
  EXPECT_EQ(store->Get(KeyOf(2))->size(), 0u);
  const auto got = store->Get(KeyOf(3));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(TextOf(got) == large);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(got->data()) % 64, 0u);
  // Replaced whole: a long one by a short one and the other way round.
  ASSERT_TRUE(store->Put(KeyOf(3), {"new"}).ok());
  EXPECT_EQ(TextOf(store->Get(KeyOf(3))), "new");
  ASSERT_TRUE(store->Put(KeyOf(3), {large}).ok());
  EXPECT_TRUE(TextOf(store->Get(KeyOf(3))) == large);
  EXPECT_EQ(KeysIn(store), (std::set<BlobKey>{KeyOf(1), KeyOf(2), KeyOf(3)}));
  EXPECT_EQ(KeysIn(store, HexOf(KeyOf(2)).substr(0, 16)), (std::set<BlobKey>{KeyOf(2)}));
  uint64_t listed = 0;
  EXPECT_TRUE(store->List("", [&](const BlobInfo& i) { return listed += i.num_bytes, true; }).ok());
  EXPECT_EQ(listed, large.size() + 5);
  EXPECT_TRUE(store->Remove(KeyOf(1)).ok());
  EXPECT_TRUE(store->Remove(KeyOf(1)).ok()) << "nothing to remove is no error";
  EXPECT_FALSE(store->Contains(KeyOf(1)));
  EXPECT_TRUE(store->Remove(KeyOf(3)).ok());
  EXPECT_EQ(KeysIn(store), (std::set<BlobKey>{KeyOf(2)}));
}

inline void ExpectManyInOrder(BlobStore* store) {
  constexpr int kCount = 30;
  std::vector<BlobKey> keys;
  for (int i = 0; i < kCount; ++i) {
    keys.push_back(KeyOf(100 + i));
    if (i == 20) continue;  // a hole
    ASSERT_TRUE(store->Put(keys[i], {Bytes(i, 10000 + i)}).ok());
  }
  EXPECT_EQ(*store->CountPresent(keys, kNoDeadline), 20);
  EXPECT_EQ(*store->CountPresent(absl::MakeConstSpan(keys).subspan(21), kNoDeadline), 9);
  EXPECT_EQ(*store->CountPresent({}, kNoDeadline), 0);
  size_t next = 0;
  store->GetMany(keys, kNoDeadline, [&](size_t idx, absl::StatusOr<BlobBytes> blob) {
    EXPECT_EQ(idx, next++);
    if (idx == 20)
      EXPECT_TRUE(absl::IsNotFound(blob.status())) << blob.status();
    else
      EXPECT_TRUE(TextOf(blob) == Bytes(static_cast<int>(idx), 10000 + idx)) << idx;
    return true;
  });
  EXPECT_EQ(next, keys.size());
  // Stopped early, and read again: nothing of the first call is in the way.
  for (int round = 0; round < 3; ++round) {
    size_t calls = 0;
    store->GetMany(keys, kNoDeadline, [&](size_t idx, absl::StatusOr<BlobBytes> blob) {
      EXPECT_TRUE(TextOf(blob) == Bytes(static_cast<int>(idx), 10000 + idx));
      return ++calls < 3;
    });
    EXPECT_EQ(calls, 3u);
    EXPECT_TRUE(TextOf(store->Get(keys[29])) == Bytes(29, 10029));
  }
  store->Touch(keys);
}

// Whole blobs or none, whoever writes, removes and reads at the same time.
inline void ExpectWholeUnderConcurrency(const std::function<std::unique_ptr<BlobStore>()>& open,
                                        size_t blob_bytes) {
  std::atomic<int> wrong{0}, right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const auto store = open();
      for (int i = 0; i < 25; ++i) {
        const int n = (i * 7 + t * 3) % 5;
        // Contents differ between writers of one key: a mixture would be seen.
        if (t < 2) (void)store->Put(KeyOf(500 + n), {Bytes(n * 10 + t, blob_bytes + n)});
        if (t == 1 && i % 9 == 0) (void)store->Remove(KeyOf(500 + n));
        const std::string got = TextOf(store->Get(KeyOf(500 + n)));
        if (got.empty()) continue;
        const bool good =
            got == Bytes(n * 10, blob_bytes + n) || got == Bytes(n * 10 + 1, blob_bytes + n);
        ++(good ? right : wrong);
      }
      if (store->Stats().damaged != 0) ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(right, 0);
}

inline void ExpectLastsBeyondTheObject(const std::function<std::unique_ptr<BlobStore>()>& open) {
  ASSERT_TRUE(open()->Put(KeyOf(7), {Bytes(7, 100000)}).ok());
  EXPECT_TRUE(TextOf(open()->Get(KeyOf(7))) == Bytes(7, 100000));
}

}  // namespace vericache
