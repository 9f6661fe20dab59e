// Both stores keep what was put; the file store keeps it through crashes, damage, full volumes and
// other processes.
#include "storage/blob_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "storage/blob_header.h"
#include "storage/file_blob_store.h"

namespace vericache {
namespace {

namespace fs = std::filesystem;

BlobKey KeyOf(int n) { return Sha256Of(&n, sizeof(n)); }

std::string Bytes(int seed, size_t size) {
  std::string bytes(size, '\0');
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  return bytes;
}

std::string GetText(BlobStore* store, const BlobKey& key) {
  const auto bytes = store->Get(key);
  if (!bytes.ok()) return "";
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

class FileBlobStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / (std::string("blobs_") + info->name());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::unique_ptr<FileBlobStore> Open(FileBlobStoreOptions options = {}) {
    auto store = FileBlobStore::Open(folder_, options);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  fs::path PathOf(const BlobKey& key) const {
    const std::string hex = HexOf(key);
    return folder_ / "blobs" / hex.substr(0, 2) / hex;
  }
  size_t NumFiles(const std::string& part) const {
    size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / part))
      count += entry.is_regular_file();
    return count;
  }
  fs::path folder_;
};

void ExpectKeepsWhatWasPut(BlobStore* store) {
  EXPECT_EQ(store->Get(KeyOf(1)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(store->Contains(KeyOf(1)));
  ASSERT_TRUE(store->Put(KeyOf(1), {"ab", "", "cde"}).ok());
  ASSERT_TRUE(store->Put(KeyOf(2), {}).ok());
  const std::string large = Bytes(3, 700000);
  ASSERT_TRUE(store->Put(KeyOf(3), {large}).ok());
  EXPECT_TRUE(store->Contains(KeyOf(1)));
  EXPECT_EQ(GetText(store, KeyOf(1)), "abcde");
  EXPECT_TRUE(store->Get(KeyOf(2)).ok());
  EXPECT_EQ(GetText(store, KeyOf(3)), large);
  ASSERT_TRUE(store->Put(KeyOf(1), {"new"}).ok());
  EXPECT_EQ(GetText(store, KeyOf(1)), "new");
  EXPECT_EQ(store->Stats().num_blobs, 3);
  EXPECT_TRUE(store->Remove(KeyOf(1)).ok());
  EXPECT_TRUE(store->Remove(KeyOf(1)).ok());
  EXPECT_FALSE(store->Contains(KeyOf(1)));
  EXPECT_EQ(store->Stats().num_blobs, 2);
}

TEST(MemoryBlobStore, KeepsWhatWasPut) {
  MemoryBlobStore store;
  ExpectKeepsWhatWasPut(&store);
}

TEST_F(FileBlobStoreTest, KeepsWhatWasPut) {
  ExpectKeepsWhatWasPut(Open().get());
  const auto reopened = Open();
  EXPECT_EQ(GetText(reopened.get(), KeyOf(3)), Bytes(3, 700000));
  EXPECT_EQ(NumFiles("tmp"), 0u);
  struct stat info;
  ASSERT_EQ(stat(folder_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u) << "prompts can be read out of K/V";
}

TEST_F(FileBlobStoreTest, SaysInOneLineWhatIsWrongWithAFolder) {
  std::ofstream(folder_.string()) << "a file";
  for (const std::string& folder : {folder_.string(), folder_.string() + "/below"}) {
    const auto store = FileBlobStore::Open(folder, {});
    ASSERT_FALSE(store.ok());
    EXPECT_NE(store.status().message().find(folder), absl::string_view::npos);
    EXPECT_NE(store.status().message().find("--prefix-store"), absl::string_view::npos);
  }
}

// Any one byte changed, anywhere in the file; any cut; more behind it; another blob's file.
TEST_F(FileBlobStoreTest, WhatIsDamagedIsMissingAndSetAside) {
  const auto store = Open();
  const std::string good = Bytes(1, 300);
  const BlobKey key = KeyOf(1);
  ASSERT_TRUE(store->Put(key, {good}).ok());
  std::ifstream in(PathOf(key), std::ios::binary);
  const std::string file((std::istreambuf_iterator<char>(in)), {});
  ASSERT_EQ(file.size(), kBlobHeaderBytes + good.size());
  int64_t num_damaged = 0;
  const auto expect_missing = [&](const std::string& bytes) {
    std::ofstream(PathOf(key), std::ios::binary) << bytes;
    EXPECT_EQ(store->Get(key).status().code(), absl::StatusCode::kNotFound);
    EXPECT_FALSE(fs::exists(PathOf(key)));
    EXPECT_EQ(store->Stats().damaged, ++num_damaged);
  };
  for (size_t i = 0; i < file.size(); ++i) {
    std::string bytes = file;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
    expect_missing(bytes);
  }
  for (size_t size :
       {size_t{0}, size_t{1}, kBlobHeaderBytes - 1, kBlobHeaderBytes, file.size() - 1})
    expect_missing(file.substr(0, size));
  expect_missing(file + "x");
  ASSERT_TRUE(store->Put(KeyOf(2), {good}).ok());
  std::ifstream other(PathOf(KeyOf(2)), std::ios::binary);
  expect_missing(std::string((std::istreambuf_iterator<char>(other)), {}));
  EXPECT_LE(NumFiles("quarantine"), static_cast<size_t>(kMaxQuarantined));
  EXPECT_GE(NumFiles("quarantine"), 1u);
  ASSERT_TRUE(store->Put(key, {good}).ok());
  EXPECT_EQ(GetText(store.get(), key), good);
}

TEST_F(FileBlobStoreTest, QuarantineIsBounded) {
  const auto store = Open();
  for (int i = 0; i < 3 * kMaxQuarantined; ++i) {
    ASSERT_TRUE(store->Put(KeyOf(i), {"x"}).ok());
    fs::resize_file(PathOf(KeyOf(i)), 20);
    EXPECT_FALSE(store->Get(KeyOf(i)).ok());
  }
  EXPECT_EQ(NumFiles("quarantine"), static_cast<size_t>(kMaxQuarantined));
}

// Runs `body` in a child process, which is to be killed within it.
void InKilledChild(const std::function<void()>& body) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST_F(FileBlobStoreTest, AWriterKilledInMidWriteLeavesNothing) {
  ASSERT_TRUE(Open()->Put(KeyOf(1), {"old"}).ok());
  for (uint64_t at : {uint64_t{0}, kBlobHeaderBytes + 0, uint64_t{300000}, uint64_t{600000}}) {
    InKilledChild([&] {
      FileBlobStoreOptions options;
      options.hooks.write_error = [&](uint64_t written) {
        if (written >= at) raise(SIGKILL);
        return 0;
      };
      (void)(*FileBlobStore::Open(folder_, options))->Put(KeyOf(1), {Bytes(1, 800000)});
    });
    EXPECT_EQ(NumFiles("tmp"), 1u) << "the dead writer's";
    const auto store = Open();
    EXPECT_EQ(NumFiles("tmp"), 0u);
    EXPECT_EQ(GetText(store.get(), KeyOf(1)), "old");
    EXPECT_EQ(store->Stats().damaged, 0);
  }
}

TEST_F(FileBlobStoreTest, ALivingWritersFileIsLeftAlone) {
  FileBlobStoreOptions options;
  int opened = 0;
  options.hooks.write_error = [&](uint64_t) {
    Open();  // another process begins while this one writes
    EXPECT_EQ(NumFiles("tmp"), 1u);
    ++opened;
    return 0;
  };
  const auto store = Open(options);
  ASSERT_TRUE(store->Put(KeyOf(1), {Bytes(1, 600000)}).ok());
  EXPECT_GT(opened, 2);
  EXPECT_EQ(GetText(store.get(), KeyOf(1)), Bytes(1, 600000));
}

TEST_F(FileBlobStoreTest, EvictsTheLeastRecentlyUsedWithinItsBudget) {
  FileBlobStoreOptions options;
  options.max_bytes = 10 * 4096;  // a blob of 3,000 bytes takes 4,096
  const auto store = Open(options);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(store->Put(KeyOf(i), {Bytes(i, 3000)}).ok());
    const BlobKey keys[] = {KeyOf(i)};
    store->Touch(keys);
  }
  EXPECT_EQ(store->Stats().evicted, 0);
  const BlobKey used[] = {KeyOf(2), KeyOf(0)};
  store->Touch(used);
  for (int i = 10; i < 16; ++i) ASSERT_TRUE(store->Put(KeyOf(i), {Bytes(i, 3000)}).ok());
  EXPECT_EQ(store->Stats().evicted, 6);
  std::set<int> left;
  for (int i = 0; i < 16; ++i)
    if (store->Contains(KeyOf(i))) left.insert(i);
  EXPECT_EQ(left, (std::set<int>{0, 2, 8, 9, 10, 11, 12, 13, 14, 15}));
  // The first of those touched together stays longest.
  store->Touch(used);
  for (int i = 20; i < 29; ++i) ASSERT_TRUE(store->Put(KeyOf(i), {Bytes(i, 3000)}).ok());
  EXPECT_TRUE(store->Contains(KeyOf(2)));
  EXPECT_FALSE(store->Contains(KeyOf(0)));
  // A blob larger than the budget costs no other.
  EXPECT_EQ(store->Put(KeyOf(99), {Bytes(9, 50000)}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store->Stats().num_blobs, 10);
  EXPECT_EQ(store->Stats().failed_puts, 1);
}

// A chain longer than the store keeps its head.
TEST_F(FileBlobStoreTest, ARecordDoesNotEvictItself) {
  FileBlobStoreOptions options;
  options.max_bytes = 10 * 4096;
  const auto store = Open(options);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(store->Put(KeyOf(i), {Bytes(i, 3000)}).ok());
  // Two of its blobs are there already.
  std::vector<BlobKey> record = {KeyOf(1), KeyOf(4)};
  for (int i = 10; i < 30; ++i) record.push_back(KeyOf(i));
  store->BeginRecord(record);
  for (int i = 10; i < 18; ++i) ASSERT_TRUE(store->Put(KeyOf(i), {Bytes(i, 3000)}).ok()) << i;
  EXPECT_EQ(store->Put(KeyOf(18), {Bytes(18, 3000)}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store->CountPresent(record, kNoDeadline).value(), 10);
  EXPECT_EQ(store->Stats().num_blobs, 10);
  store->EndRecord();
  EXPECT_TRUE(store->Put(KeyOf(19), {Bytes(19, 3000)}).ok());
  EXPECT_FALSE(store->Contains(KeyOf(4))) << "the oldest of all, now";
}

// Another process's bytes count, too: nobody trusts a counter of their own.
TEST_F(FileBlobStoreTest, Case14TwoWritersShareOneBudget) {
  FileBlobStoreOptions options;
  options.max_bytes = 40 * 4096;
  const auto a = Open(options), b = Open(options);
  for (int i = 0; i < 90; ++i)
    ASSERT_TRUE((i % 2 == 0 ? a : b)->Put(KeyOf(i), {Bytes(i, 3000)}).ok());
  // Each looks again after at most 32 writes of its own.
  EXPECT_LE(a->Stats().num_blobs, 40 + 32);
  ASSERT_TRUE(b->Put(KeyOf(500), {Bytes(5, 3000)}).ok());
  EXPECT_LE(a->Stats().num_blobs, 40);
}

TEST_F(FileBlobStoreTest, Case14AFullVolumeCostsPutsAndNothingElse) {
  uint64_t foreign = 0;
  constexpr uint64_t kVolume = 4 << 20;
  FileBlobStoreOptions options;
  options.hooks.space = [&]() -> VolumeSpace {
    uint64_t used = foreign;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
      if (entry.is_regular_file()) used += (entry.file_size() + 4095) / 4096 * 4096;
    return {kVolume - std::min(used, kVolume), kVolume};
  };
  options.hooks.write_error = [&](uint64_t) {
    return options.hooks.space().free_bytes < 4096 ? ENOSPC : 0;
  };
  const auto store = Open(options);
  const auto put = [&](int i) { return store->Put(KeyOf(i), {Bytes(i, 1 << 16)}); };
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(put(i).ok()) << i;
  EXPECT_GT(store->Stats().evicted, 30);
  const auto reserve_held = [&] { return options.hooks.space().free_bytes >= kVolume / 20; };
  EXPECT_TRUE(reserve_held()) << "others find room, too";
  // A foreign file takes whatever is free: our blobs make way, the last of them, too.
  const auto fill = [&] { foreign += options.hooks.space().free_bytes; };
  fill();
  EXPECT_TRUE(put(200).ok());
  EXPECT_TRUE(reserve_held());
  for (int i = 0; i < 100 && store->Stats().num_blobs > 4; ++i) fill(), (void)put(300 + i);
  fill();
  EXPECT_EQ(put(201).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(NumFiles("tmp"), 0u);
  EXPECT_FALSE(store->Contains(KeyOf(201)));
  // And goes again: so does writing.
  foreign = 0;
  EXPECT_TRUE(put(202).ok());
  EXPECT_EQ(GetText(store.get(), KeyOf(202)), Bytes(202, 1 << 16));
}

// The figures of a volume may lie (quotas): a refused write evicts and is tried once more.
TEST_F(FileBlobStoreTest, Case14ARefusedWriteIsTriedOnceMore) {
  int refused = 0;
  FileBlobStoreOptions options;
  options.hooks.write_error = [&](uint64_t written) {
    return refused > 0 && written > 100000 ? (--refused, ENOSPC) : 0;
  };
  const auto store = Open(options);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(store->Put(KeyOf(i), {Bytes(i, 400000)}).ok());
  refused = 1;
  ASSERT_TRUE(store->Put(KeyOf(5), {Bytes(5, 400000)}).ok());
  EXPECT_EQ(GetText(store.get(), KeyOf(5)), Bytes(5, 400000));
  EXPECT_EQ(store->Stats().evicted, 1);
  refused = 2;
  EXPECT_EQ(store->Put(KeyOf(6), {Bytes(6, 400000)}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(NumFiles("tmp"), 0u);
  EXPECT_TRUE(store->Put(KeyOf(6), {Bytes(6, 400000)}).ok());
}

TEST_F(FileBlobStoreTest, EmptyAndForeignFiles) {
  const auto store = Open();
  ASSERT_TRUE(store->Put(KeyOf(1), {"x"}).ok());
  const fs::path empty = PathOf(KeyOf(1)).parent_path() / std::string(64, 'a');
  const fs::path foreign = PathOf(KeyOf(1)).parent_path() / "notes.txt";
  std::ofstream(empty.string()).close();
  std::ofstream(foreign.string()) << "mine";
  EXPECT_EQ(store->Stats().num_blobs, 1);
  EXPECT_FALSE(fs::exists(empty));
  EXPECT_TRUE(fs::exists(foreign));
  // A folder or a link in a blob's place is no blob.
  fs::remove(PathOf(KeyOf(1)));
  fs::create_directory(PathOf(KeyOf(1)));
  EXPECT_FALSE(store->Get(KeyOf(1)).ok());
  fs::remove_all(PathOf(KeyOf(1)));
  fs::create_symlink(foreign, PathOf(KeyOf(1)));
  EXPECT_FALSE(store->Get(KeyOf(1)).ok());
  ASSERT_TRUE(store->Put(KeyOf(1), {"x"}).ok());
  EXPECT_EQ(GetText(store.get(), KeyOf(1)), "x");
}

// Whole blobs or none, whoever writes, evicts and reads at the same time.
TEST_F(FileBlobStoreTest, Case13ManyProcessesOnOneFolder) {
  FileBlobStoreOptions options;
  options.max_bytes = 1 << 20;
  (void)Open(options);
  std::vector<pid_t> children;
  for (int c = 0; c < 4; ++c) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto store = FileBlobStore::Open(folder_, options);
      bool good = store.ok();
      for (int i = 0; good && i < 60; ++i) {
        const int n = (i * 7 + c * 3) % 25;
        const std::string want = Bytes(n, 50000 + n);
        (void)(*store)->Put(KeyOf(n), {want});
        const std::string got = GetText(store->get(), KeyOf(n));
        good = got.empty() || got == want;
      }
      _exit(good && (*store)->Stats().damaged == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(NumFiles("tmp"), 0u);
  EXPECT_EQ(NumFiles("quarantine"), 0u);
}

TEST_F(FileBlobStoreTest, ThreadsReadWhileOneWrites) {
  const auto store = Open();
  std::thread writer([&] {
    for (int i = 0; i < 40; ++i) (void)store->Put(KeyOf(i % 10), {Bytes(i % 10, 20000)});
  });
  for (int i = 0; i < 200; ++i) {
    const std::string got = GetText(store.get(), KeyOf(i % 10));
    EXPECT_TRUE(got.empty() || got == Bytes(i % 10, 20000));
  }
  writer.join();
  EXPECT_EQ(store->Stats().damaged, 0);
}

TEST_F(FileBlobStoreTest, ReadOnlyRefusesToWrite) {
  ASSERT_TRUE(Open()->Put(KeyOf(1), {"x"}).ok());
  FileBlobStoreOptions options;
  options.read_only = true;
  const auto store = Open(options);
  EXPECT_EQ(store->Put(KeyOf(2), {"y"}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(GetText(store.get(), KeyOf(1)), "x");
  fs::resize_file(PathOf(KeyOf(1)), 3);
  EXPECT_FALSE(store->Get(KeyOf(1)).ok());
  EXPECT_TRUE(fs::exists(PathOf(KeyOf(1)))) << "not even damage is moved";
  EXPECT_EQ(store->Stats().damaged, 1);
}

}  // namespace
}  // namespace vericache
