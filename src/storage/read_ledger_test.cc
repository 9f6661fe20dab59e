// The rules of a read queue without threads and disks: the test is the I/O thread.
#include "storage/read_ledger.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "storage/storage_test_util.h"

namespace vericache {
namespace {

constexpr size_t kPage = kSpillAlign;

class ReadLedgerTest : public testing::Test {
 protected:
  ReadLedgerTest() : file_(*SpillFile::Create(folder_.path())), memory_(MakeAligned(16 * kPage)) {
    options_.read_bytes = 4 * kPage;
  }
  ReadRequest Request(size_t first_page, size_t num_pages) {
    return {file_.get(), first_page * kPage, memory_.get() + first_page * kPage, num_pages * kPage};
  }

  TempFolder folder_;
  std::shared_ptr<SpillFile> file_;
  AlignedBytes memory_;
  ReadQueueOptions options_;
  ReadLedger::Chunk chunk_;
  ReadTicket ticket_;
};

TEST_F(ReadLedgerTest, SplitsAndWakes) {
  int num_wakes = 0;
  ReadLedger ledger(options_, [&num_wakes] { ++num_wakes; });
  EXPECT_EQ(ledger.Take(&chunk_), ReadLedger::kNothing);
  ASSERT_TRUE(ledger.Submit({Request(0, 9)}, &ticket_).ok());
  EXPECT_EQ(num_wakes, 1);
  for (const size_t pages : {4, 4, 1}) {
    ASSERT_EQ(ledger.Take(&chunk_), 0);
    EXPECT_EQ(chunk_.issue_bytes, pages * kPage);
    EXPECT_FALSE(ledger.Done(ticket_));
    ledger.Complete(chunk_, static_cast<int64_t>(chunk_.issue_bytes));
  }
  EXPECT_TRUE(ledger.Done(ticket_));
  EXPECT_TRUE(ledger.Wait(&ticket_).ok());
  EXPECT_EQ(ledger.Take(&chunk_), ReadLedger::kNothing);
  EXPECT_EQ(ledger.stats().num_reads, 3);
  EXPECT_EQ(ledger.stats().bytes, static_cast<int64_t>(9 * kPage));
}

TEST_F(ReadLedgerTest, WhatIsLeftOfAShortReadComesNextFromAWholePage) {
  ReadLedger ledger(options_, [] {});
  ASSERT_TRUE(ledger.Submit({Request(0, 8)}, &ticket_).ok());
  ASSERT_EQ(ledger.Take(&chunk_), 0);
  ledger.Complete(chunk_, kPage + 100);
  ASSERT_EQ(ledger.Take(&chunk_), 0);
  ASSERT_EQ(chunk_.offset, kPage);
  EXPECT_EQ(chunk_.dest, memory_.get() + kPage);
  EXPECT_EQ(chunk_.bytes, 3 * kPage);
  for (const int again : {EINTR, EAGAIN}) {
    ledger.Complete(chunk_, -again);
    ASSERT_EQ(ledger.Take(&chunk_), 0);
    ASSERT_EQ(chunk_.offset, kPage);
  }
  ledger.Complete(chunk_, 100);  // less than a page: the file ends here
  ASSERT_EQ(ledger.Take(&chunk_), 0);
  ledger.Complete(chunk_, 4 * kPage);
  EXPECT_EQ(ledger.Wait(&ticket_).code(), absl::StatusCode::kDataLoss);
}

TEST_F(ReadLedgerTest, TheFirstErrorStays) {
  ReadLedger ledger(options_, [] {});
  ASSERT_TRUE(ledger.Submit({Request(0, 12)}, &ticket_).ok());
  for (const int64_t result : {int64_t{-ENXIO}, int64_t{-EIO}, static_cast<int64_t>(4 * kPage)}) {
    ASSERT_EQ(ledger.Take(&chunk_), 0);
    ledger.Complete(chunk_, result);
  }
  EXPECT_EQ(ledger.Wait(&ticket_).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ReadLedgerTest, TheLimitHoldsTheNextReadBack) {
  options_.bytes_per_second = 1;  // over an hour a page
  ReadLedger ledger(options_, [] {});
  ASSERT_TRUE(ledger.Submit({Request(0, 8)}, &ticket_).ok());
  ASSERT_EQ(ledger.Take(&chunk_), 0);
  ReadLedger::Chunk next;
  const int64_t wait_ns = ledger.Take(&next);
  ASSERT_GT(wait_ns, 0);
  EXPECT_LT(wait_ns, ReadLedger::kNothing);
  ledger.Complete(chunk_, 4 * kPage);
  EXPECT_GT(ledger.Take(&next), 0);
  ledger.CancelAll(absl::MakeSpan(&ticket_, 1));
  EXPECT_EQ(ledger.Take(&next), ReadLedger::kNothing);
}

TEST_F(ReadLedgerTest, CancelWaitsForWhatIsInFlightAndDoesNotContinueIt) {
  ReadLedger ledger(options_, [] {});
  ASSERT_TRUE(ledger.Submit({Request(0, 12)}, &ticket_).ok());
  ASSERT_EQ(ledger.Take(&chunk_), 0);
  std::atomic<bool> completed{false};
  std::thread io([&] {
    ReadLedger::Chunk chunk;
    while (ledger.Take(&chunk) == 0) {  // until Cancel has taken back what waits
      ledger.Complete(chunk, static_cast<int64_t>(chunk.issue_bytes));
    }
    completed = true;
    ledger.Complete(chunk_, kPage);  // a short read
  });
  ledger.CancelAll(absl::MakeSpan(&ticket_, 1));
  EXPECT_TRUE(completed) << "Cancel returned with a read in flight";
  io.join();
  EXPECT_EQ(ledger.Take(&chunk_), ReadLedger::kNothing);
  EXPECT_EQ(ledger.Wait(&ticket_).code(), absl::StatusCode::kCancelled);
}

TEST_F(ReadLedgerTest, StopCancelsWhatWaitsAndTakesNothingMore) {
  ReadLedger ledger(options_, [] {});
  ReadTicket other;
  ASSERT_TRUE(ledger.Submit({Request(0, 8)}, &ticket_).ok());
  ASSERT_TRUE(ledger.Submit({Request(8, 8)}, &other).ok());
  ASSERT_EQ(ledger.Take(&chunk_), 0);
  ledger.Stop();
  ReadLedger::Chunk next;
  EXPECT_EQ(ledger.Take(&next), ReadLedger::kStop);
  EXPECT_FALSE(ledger.TakeBlocking(&next));
  EXPECT_TRUE(ledger.Done(other));
  EXPECT_FALSE(ledger.Done(ticket_));
  ledger.Complete(chunk_, 4 * kPage);
  EXPECT_TRUE(ledger.Done(ticket_));
  EXPECT_EQ(ledger.Submit({Request(0, 1)}, &other).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace vericache
