#include "storage/spill_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "storage/fault_plan.h"
#include "storage/storage_test_util.h"

namespace vericache {
namespace {

constexpr size_t kPage = kSpillAlign;

std::shared_ptr<SpillFile> MakeFile(const std::string& folder,
                                    std::shared_ptr<FaultPlan> faults = nullptr) {
  auto file = SpillFile::Create(folder, std::move(faults));
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? *file : nullptr;
}

bool FileHasPattern(const SpillFile& file, uint64_t offset, size_t bytes, uint64_t seed) {
  const AlignedBytes got = MakeAligned(bytes);
  return pread(file.fd(), got.get(), bytes, static_cast<off_t>(offset)) ==
             static_cast<ssize_t>(bytes) &&
         HasPattern(got.get(), bytes, offset, seed);
}

TEST(SpillFile, HasNoNameAndStartsEmpty) {
  const TempFolder folder;
  const auto file = MakeFile(folder.path());
  ASSERT_TRUE(WritePattern(file.get(), 0, 4 * kPage, 1).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  struct stat info;
  ASSERT_EQ(fstat(file->fd(), &info), 0);
  EXPECT_EQ(info.st_nlink, 0u);
  EXPECT_EQ(file->bytes_written(), 4 * kPage);
}

TEST(SpillFile, KeepsWhatWasWrittenAnywhereInAnyOrder) {
  const TempFolder folder;
  const auto file = MakeFile(folder.path());
  std::mt19937 random(7);
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < 40; ++i) offsets.push_back(i * 1000 * kPage);  // holes between them
  std::shuffle(offsets.begin(), offsets.end(), random);
  for (uint64_t offset : offsets) {
    ASSERT_TRUE(WritePattern(file.get(), offset, 5 * kPage, offset).ok());
  }
  for (uint64_t offset : offsets) EXPECT_TRUE(FileHasPattern(*file, offset, 5 * kPage, offset));
  EXPECT_LT(file->bytes_on_disk(), 40 * 20 * kPage) << "the file is not sparse";
}

TEST(SpillFile, RefusesWhatIsNotAligned) {
  const TempFolder folder;
  const auto file = MakeFile(folder.path());
  const AlignedBytes data = MakeAligned(2 * kPage);
  for (const absl::Status& status :
       {file->Write(1, data.get(), kPage), file->Write(0, data.get() + 8, kPage),
        file->Write(0, data.get(), kPage - 1), file->Write(uint64_t{1} << 63, data.get(), kPage),
        file->Write((uint64_t{1} << 62), data.get(), kPage)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  EXPECT_EQ(file->bytes_written(), 0u);
}

TEST(SpillFile, NamesTheFolderItCannotUse) {
  const TempFolder folder;
  const std::string missing = folder.path() + "/missing";
  const absl::Status status = SpillFile::Create(missing).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
  EXPECT_NE(status.message().find(missing), std::string::npos) << status;
  const std::string not_a_folder = folder.path() + "/file";
  std::ofstream(not_a_folder) << "x";
  EXPECT_EQ(SpillFile::Create(not_a_folder).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::remove(not_a_folder);
  // A folder nobody can write to, not even root.
  EXPECT_FALSE(SpillFile::Create("/proc").ok());
}

TEST(SpillFile, FreeGivesRoomBackAndLeavesNeighboursAlone) {
  const TempFolder folder;
  const auto file = MakeFile(folder.path());
  ASSERT_TRUE(WritePattern(file.get(), 0, 64 * kPage, 3).ok());
  const uint64_t before = file->bytes_on_disk();
  file->Free(16 * kPage, 32 * kPage);
  EXPECT_TRUE(FileHasPattern(*file, 0, 16 * kPage, 3));
  EXPECT_TRUE(FileHasPattern(*file, 48 * kPage, 16 * kPage, 3));
  EXPECT_LE(file->bytes_on_disk(), before);
  if (file->bytes_on_disk() < before) {  // the file system can
    const AlignedBytes got = MakeAligned(32 * kPage, 0xFF);
    ASSERT_EQ(pread(file->fd(), got.get(), 32 * kPage, 16 * kPage),
              static_cast<ssize_t>(32 * kPage));
    EXPECT_TRUE(std::all_of(got.get(), got.get() + 32 * kPage, [](uint8_t b) { return b == 0; }));
  }
  file->Free(UINT64_MAX - 5, 10);  // nonsense is ignored
  file->Free(0, UINT64_MAX);
  EXPECT_TRUE(FileHasPattern(*file, 0, 16 * kPage, 3));
}

TEST(SpillFile, GoesOnAfterShortWrites) {
  const TempFolder folder;
  const auto faults =
      std::make_shared<FaultPlan>(FaultOptions{.seed = 5, .short_writes_per_1000 = 800});
  const auto file = MakeFile(folder.path(), faults);
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(WritePattern(file.get(), i * 16 * kPage, 16 * kPage, 11).ok());
  }
  EXPECT_GT(faults->num_writes(), 20) << "no write was short";
  EXPECT_TRUE(FileHasPattern(*file, 0, 20 * 16 * kPage, 11));
}

TEST(SpillFile, ReportsAFullDiskByPlanAndGoesOnWhenThereIsRoom) {
  const TempFolder folder;
  const auto faults = std::make_shared<FaultPlan>(FaultOptions{.enospc_from_write = 3});
  const auto file = MakeFile(folder.path(), faults);
  ASSERT_TRUE(WritePattern(file.get(), 0, kPage, 1).ok());
  ASSERT_TRUE(WritePattern(file.get(), kPage, kPage, 1).ok());
  const absl::Status status = WritePattern(file.get(), 2 * kPage, kPage, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find(folder.path()), std::string::npos) << status;
  EXPECT_NE(status.message().find("4096"), std::string::npos) << status;
  EXPECT_FALSE(WritePattern(file.get(), 2 * kPage, kPage, 1).ok());
  faults->AllowWrites();
  EXPECT_TRUE(WritePattern(file.get(), 2 * kPage, kPage, 1).ok());
  EXPECT_TRUE(FileHasPattern(*file, 0, 3 * kPage, 1));
}

TEST(SpillFile, ReportsAFailingDevice) {
  const TempFolder folder;
  const auto faults = std::make_shared<FaultPlan>(FaultOptions{.eio_at_write = 2});
  const auto file = MakeFile(folder.path(), faults);
  ASSERT_TRUE(WritePattern(file.get(), 0, kPage, 1).ok());
  EXPECT_EQ(WritePattern(file.get(), kPage, kPage, 1).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(WritePattern(file.get(), kPage, kPage, 1).ok());
}

// A real full disk where mounting is allowed (root). Elsewhere the plan above stands for it.
TEST(SpillFile, FillsARealDiskAndGivesItsRoomBack) {
  const TempFolder folder;
  if (mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0) return;
  {
    auto file = MakeFile(folder.path());
    ASSERT_NE(file, nullptr);
    absl::Status status;
    uint64_t offset = 0;
    for (; status.ok() && offset < (8u << 20); offset += 16 * kPage) {
      status = WritePattern(file.get(), offset, 16 * kPage, 9);
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_TRUE(FileHasPattern(*file, 0, offset - 32 * kPage, 9));
    EXPECT_FALSE(SpillFile::Create(folder.path()).ok()) << "there is no room for one page";
    file.reset();  // and all of it is back
    file = MakeFile(folder.path());
    EXPECT_TRUE(WritePattern(file.get(), 0, 64 * kPage, 9).ok());
  }
  EXPECT_EQ(umount(folder.path().c_str()), 0);
}

// Makes open(O_TMPFILE) fail as on a file system that lacks it. For this process and for ever,
// hence in a child.
int SpillWithoutTmpfile() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_openat, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{6, program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    return 9;
  }
  const TempFolder folder;
  const int fd = open(folder.path().c_str(), O_TMPFILE | O_RDWR, 0600);
  if (fd >= 0) return 2;
  const auto file = SpillFile::Create(folder.path());
  if (!file.ok()) return 3;
  if (!std::filesystem::is_empty(folder.path())) return 4;
  if (!WritePattern(file->get(), kPage, 8 * kPage, 1).ok()) return 5;
  if (!FileHasPattern(**file, kPage, 8 * kPage, 1)) return 6;
  if (!absl::IsNotFound(SpillFile::Create(folder.path() + "/missing").status())) return 7;
  return 0;
}

TEST(SpillFileDeathTest, HasNoNameAlsoWhereTheFileSystemInsistsOnOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(SpillWithoutTmpfile()), testing::ExitedWithCode(0), "");
}

TEST(SpillFile, TakesWritesFromSeveralThreads) {
  const TempFolder folder;
  const auto file = MakeFile(folder.path());
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&file, t] {
      for (uint64_t i = t; i < 64; i += 4) {
        EXPECT_TRUE(WritePattern(file.get(), i * 2 * kPage, 2 * kPage, 21).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(FileHasPattern(*file, 0, 128 * kPage, 21));
  EXPECT_EQ(file->bytes_written(), 128 * kPage);
}

}  // namespace
}  // namespace vericache
