#include "storage/read_queue.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "storage/fault_plan.h"
#include "storage/spill_file.h"
#include "storage/storage_test_util.h"

namespace vericache {
namespace {

constexpr size_t kPage = kSpillAlign;
constexpr size_t kFilePages = 256;

std::unique_ptr<ReadQueue> MakeQueue(const ReadQueueOptions& options) {
  auto queue = MakeReadQueue(options);
  EXPECT_TRUE(queue.ok()) << queue.status();
  return queue.ok() ? *std::move(queue) : nullptr;
}

// Every test runs with what the system has and with the fallback.
class ReadQueueTest : public testing::TestWithParam<ReadBackend> {
 protected:
  ReadQueueTest() : file_(*SpillFile::Create(folder_.path())) {
    EXPECT_TRUE(WritePattern(file_.get(), 0, kFilePages * kPage, kSeed).ok());
    options_.backend = GetParam();
    options_.read_bytes = 4 * kPage;
    memory_ = MakeAligned(kFilePages * kPage);
  }

  ReadRequest Request(size_t first_page, size_t num_pages) {
    return {file_.get(), first_page * kPage, memory_.get() + first_page * kPage, num_pages * kPage};
  }
  bool HasPages(size_t first_page, size_t num_pages) const {
    return HasPattern(memory_.get() + first_page * kPage, num_pages * kPage, first_page * kPage,
                      kSeed);
  }

  static constexpr uint64_t kSeed = 77;
  TempFolder folder_;
  std::shared_ptr<SpillFile> file_;
  AlignedBytes memory_;
  ReadQueueOptions options_;
};

TEST_P(ReadQueueTest, DeliversEveryByteAtAnyDepthAndSize) {
  for (const int depth : {1, 2, 8, 32}) {
    for (const size_t pages : {1, 3, 64}) {
      options_.depth = depth;
      options_.read_bytes = pages * kPage;
      const auto queue = MakeQueue(options_);
      std::memset(memory_.get(), 0xAB, kFilePages * kPage);
      ReadTicket one, two;
      ASSERT_TRUE(queue->Submit({Request(0, 100), Request(150, 6)}, &one).ok());
      ASSERT_TRUE(queue->Submit({Request(156, 100)}, &two).ok());
      ASSERT_TRUE(queue->Submit({Request(100, 50)}, &one).ok());
      EXPECT_TRUE(queue->Wait(&two).ok());
      EXPECT_TRUE(queue->Wait(&one).ok());
      EXPECT_TRUE(queue->Done(one) && queue->Done(two));
      EXPECT_TRUE(HasPages(0, kFilePages)) << "depth " << depth << ", " << pages << " pages";
      EXPECT_EQ(queue->stats().bytes, static_cast<int64_t>(kFilePages * kPage));
      EXPECT_GT(queue->stats().busy_ns, 0);
      EXPECT_GE(queue->Times(one).complete_ns, queue->Times(one).submit_ns);
    }
  }
}

TEST_P(ReadQueueTest, UsesRegisteredMemoryAndOtherMemoryAlike) {
  const std::shared_ptr<uint8_t[]> staging(MakeAligned(64 * kPage).release(),
                                           [](uint8_t* p) { std::free(p); });
  options_.staging = staging;
  options_.staging_bytes = 64 * kPage;
  const auto queue = MakeQueue(options_);
  ReadTicket ticket;
  ASSERT_TRUE(queue
                  ->Submit({{file_.get(), 8 * kPage, staging.get(), 63 * kPage},
                            {file_.get(), 0, staging.get() + 63 * kPage, kPage},
                            Request(100, 50)},
                           &ticket)
                  .ok());
  EXPECT_TRUE(queue->Wait(&ticket).ok()) << queue->backend();
  EXPECT_TRUE(HasPattern(staging.get(), 63 * kPage, 8 * kPage, kSeed));
  EXPECT_TRUE(HasPattern(staging.get() + 63 * kPage, kPage, 0, kSeed));
  EXPECT_TRUE(HasPages(100, 50));
}

// A file system without O_DIRECT where mounting is allowed (root); elsewhere just another folder.
TEST_P(ReadQueueTest, ReadsThroughThePageCacheWhereItMust) {
  const TempFolder folder;
  const bool mounted = mount("ramfs", folder.path().c_str(), "ramfs", 0, nullptr) == 0;
  {
    auto file = *SpillFile::Create(folder.path());
    EXPECT_TRUE(!mounted || !file->direct());
    ASSERT_TRUE(WritePattern(file.get(), 0, 50 * kPage, 4).ok());
    options_.faults =
        std::make_shared<FaultPlan>(FaultOptions{.seed = 8, .short_reads_per_1000 = 400});
    const auto queue = MakeQueue(options_);
    ReadTicket ticket;
    ASSERT_TRUE(queue->Submit({{file.get(), 0, memory_.get(), 50 * kPage}}, &ticket).ok());
    EXPECT_TRUE(queue->Wait(&ticket).ok());
    EXPECT_TRUE(HasPattern(memory_.get(), 50 * kPage, 0, 4));
  }
  EXPECT_TRUE(!mounted || umount(folder.path().c_str()) == 0);
}

TEST_P(ReadQueueTest, ContinuesShortReads) {
  options_.faults = std::make_shared<FaultPlan>(FaultOptions{
      .seed = 3, .short_reads_per_1000 = 700, .delays_per_1000 = 100, .delay_us_max = 300});
  options_.read_bytes = 32 * kPage;
  const auto queue = MakeQueue(options_);
  ReadTicket ticket;
  ASSERT_TRUE(queue->Submit({Request(0, kFilePages)}, &ticket).ok());
  EXPECT_TRUE(queue->Wait(&ticket).ok());
  EXPECT_TRUE(HasPages(0, kFilePages));
  EXPECT_GT(queue->stats().num_reads, 8) << "no read was short";
}

TEST_P(ReadQueueTest, AnErrorFailsItsOwnTicketOnly) {
  options_.faults = std::make_shared<FaultPlan>(FaultOptions{.eio_at_read = 2});
  options_.read_bytes = kFilePages * kPage;
  options_.depth = 1;
  const auto queue = MakeQueue(options_);
  ReadTicket tickets[3];
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(queue->Submit({Request(i * 10, 10)}, &tickets[i]).ok());
  }
  int num_failed = 0;
  for (size_t i = 0; i < 3; ++i) {
    const absl::Status status = queue->Wait(&tickets[i]);
    if (status.ok()) {
      EXPECT_TRUE(HasPages(i * 10, 10));
      continue;
    }
    ++num_failed;
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_NE(status.message().find(folder_.path()), std::string::npos) << status;
    // The error stays, also if more is read.
    ASSERT_TRUE(queue->Submit({Request(i * 10, 10)}, &tickets[i]).ok());
    EXPECT_EQ(queue->Wait(&tickets[i]), status);
  }
  EXPECT_EQ(num_failed, 1);
}

TEST_P(ReadQueueTest, TheEndOfTheFileIsAnError) {
  const auto queue = MakeQueue(options_);
  ReadTicket inside, across, beyond;
  const AlignedBytes other = MakeAligned(16 * kPage);
  ASSERT_TRUE(queue->Submit({Request(0, 8)}, &inside).ok());
  ASSERT_TRUE(
      queue->Submit({{file_.get(), (kFilePages - 3) * kPage, other.get(), 8 * kPage}}, &across)
          .ok());
  ASSERT_TRUE(
      queue
          ->Submit({{file_.get(), (kFilePages + 9) * kPage, other.get() + 8 * kPage, kPage}},
                   &beyond)
          .ok());
  EXPECT_EQ(queue->Wait(&across).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(queue->Wait(&beyond).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(queue->Wait(&inside).ok());
}

TEST_P(ReadQueueTest, RefusesWhatIsNotAligned) {
  const auto queue = MakeQueue(options_);
  ReadTicket ticket;
  ReadRequest bad = Request(0, 1);
  bad.offset = 12;
  EXPECT_EQ(queue->Submit({Request(1, 1), bad}, &ticket).code(),
            absl::StatusCode::kInvalidArgument);
  bad = Request(0, 1);
  bad.dest += 512;
  EXPECT_FALSE(queue->Submit({bad}, &ticket).ok());
  bad = Request(0, 1);
  bad.bytes = 100;
  EXPECT_FALSE(queue->Submit({bad}, &ticket).ok());
  bad = Request(0, 1);
  bad.file = nullptr;
  EXPECT_FALSE(queue->Submit({bad}, &ticket).ok());
  bad = Request(0, 1);
  bad.offset = UINT64_MAX - kPage + 1;
  EXPECT_FALSE(queue->Submit({bad}, &ticket).ok());
  EXPECT_TRUE(queue->Done(ticket));
  EXPECT_EQ(queue->stats().num_reads, 0);
  EXPECT_TRUE(queue->Submit({}, &ticket).ok());
  EXPECT_TRUE(queue->Wait(&ticket).ok());
}

// In order of submission the prefetch would be done first, after 20 s.
TEST_P(ReadQueueTest, WhatSomebodyWaitsForGoesFirst) {
  options_.bytes_per_second = 40'000;
  options_.read_bytes = kPage;
  const auto queue = MakeQueue(options_);
  ReadTicket prefetch, wanted;
  ASSERT_TRUE(queue->Submit({Request(0, 200)}, &prefetch).ok());
  ASSERT_TRUE(queue->Submit({Request(200, 1)}, &wanted).ok());
  EXPECT_TRUE(queue->Wait(&wanted).ok());
  EXPECT_TRUE(HasPages(200, 1));
  EXPECT_FALSE(queue->Done(prefetch));
  queue->Cancel(&prefetch);
  EXPECT_TRUE(queue->Done(prefetch));
}

// At 4 KB/s the reads would take 200 s.
TEST_P(ReadQueueTest, CancelTakesBackWhatHasNotStarted) {
  options_.bytes_per_second = 4'000;
  options_.read_bytes = kPage;
  const auto queue = MakeQueue(options_);
  ReadTicket cancelled, other;
  ASSERT_TRUE(queue->Submit({Request(0, 200)}, &cancelled).ok());
  ASSERT_TRUE(queue->Submit({Request(200, 1)}, &other).ok());
  queue->Cancel(&cancelled);
  EXPECT_EQ(queue->Wait(&cancelled).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(queue->Submit({Request(0, 1)}, &cancelled).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(queue->Wait(&other).ok());
  EXPECT_TRUE(HasPages(200, 1));
  EXPECT_LE(queue->stats().num_reads, 100);
}

TEST_P(ReadQueueTest, DestructionTakesEverythingBack) {
  ReadTicket ticket;
  {
    options_.bytes_per_second = 4'000;
    options_.read_bytes = kPage;
    const auto queue = MakeQueue(options_);
    ASSERT_TRUE(queue->Submit({Request(0, 200)}, &ticket).ok());
  }
  memory_.reset();  // nobody writes there any more (ASan)
  for (int i = 0; i < 50; ++i) {
    options_.bytes_per_second = 0;
    ReadTicket many;
    auto queue = MakeQueue(options_);
    memory_ = MakeAligned(kFilePages * kPage);
    ASSERT_TRUE(queue->Submit({Request(0, kFilePages)}, &many).ok());
    if (i % 2 == 0) std::this_thread::yield();
    queue.reset();
    memory_.reset();
  }
}

TEST_P(ReadQueueTest, ServesManyThreadsWithFaultsAndCancels) {
  options_.faults = std::make_shared<FaultPlan>(FaultOptions{.seed = 9,
                                                             .short_reads_per_1000 = 200,
                                                             .read_errors_per_1000 = 50,
                                                             .delays_per_1000 = 50,
                                                             .delay_us_max = 200});
  options_.depth = 4;
  const auto queue = MakeQueue(options_);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      const AlignedBytes mine = MakeAligned(32 * kPage);
      for (int i = 0; i < 100; ++i) {
        ReadTicket ticket;
        const size_t pages = 1 + random() % 32;
        const size_t first = random() % (kFilePages - pages);
        ASSERT_TRUE(
            queue->Submit({{file_.get(), first * kPage, mine.get(), pages * kPage}}, &ticket).ok());
        if (random() % 4 == 0) {
          queue->Cancel(&ticket);
          EXPECT_TRUE(queue->Done(ticket));
        }
        const absl::Status status = queue->Wait(&ticket);
        if (status.ok()) {
          EXPECT_TRUE(HasPattern(mine.get(), pages * kPage, first * kPage, kSeed));
        } else {
          EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsCancelled(status)) << status;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Backends, ReadQueueTest,
                         testing::Values(ReadBackend::kAuto, ReadBackend::kPread),
                         [](const auto& info) {
                           return info.param == ReadBackend::kAuto ? "Auto" : "Pread";
                         });

TEST(MakeReadQueue, ChecksItsOptions) {
  for (const ReadQueueOptions& options :
       {ReadQueueOptions{.depth = 0}, ReadQueueOptions{.depth = 257},
        ReadQueueOptions{.read_bytes = 0}, ReadQueueOptions{.read_bytes = 1000},
        ReadQueueOptions{.read_bytes = size_t{2} << 30},
        ReadQueueOptions{.bytes_per_second = -1}}) {
    EXPECT_EQ(MakeReadQueue(options).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// Makes io_uring_setup fail with `code`, as a container's seccomp profile does. For this process
// and for ever, hence in a child.
void ForbidIoUring(uint32_t code) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    std::_Exit(9);
  }
}

int ReadWithoutIoUring(uint32_t code) {
  ForbidIoUring(code);
  const TempFolder folder;
  const auto file = *SpillFile::Create(folder.path());
  if (!WritePattern(file.get(), 0, 8 * kPage, 1).ok()) return 2;
  if (!absl::IsUnavailable(MakeReadQueue({.backend = ReadBackend::kIoUring}).status())) {
    return 3;
  }
  const auto queue = MakeReadQueue({});
  if (!queue.ok() || std::string((*queue)->backend()) != "pread") return 4;
  const AlignedBytes memory = MakeAligned(8 * kPage);
  ReadTicket ticket;
  if (!(*queue)->Submit({{file.get(), 0, memory.get(), 8 * kPage}}, &ticket).ok()) return 5;
  if (!(*queue)->Wait(&ticket).ok()) return 6;
  return HasPattern(memory.get(), 8 * kPage, 0, 1) ? 0 : 7;
}

TEST(MakeReadQueueDeathTest, FallsBackWhereIoUringIsForbidden) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(ReadWithoutIoUring(EPERM)), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::_Exit(ReadWithoutIoUring(ENOSYS)), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace vericache
