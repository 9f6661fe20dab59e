// Streams of random shape against the plain rule of where a part lies in its file. Each byte of a
// test file is a function of file and offset, so a part out of place is always seen.
#include "kv/kv_stream.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "storage/fault_plan.h"
#include "storage/storage_test_util.h"

namespace vericache {
namespace {

constexpr size_t kPage = kSpillAlign;
constexpr size_t kFilePages = 1024;

int Pick(std::mt19937* random, int low, int high) {
  return low + static_cast<int>((*random)() % static_cast<unsigned>(high - low + 1));
}

// Two files full of their patterns.
class Files {
 public:
  Files() {
    for (uint64_t seed = 0; seed < 2; ++seed) {
      std::shared_ptr<SpillFile> file = *SpillFile::Create(folder_.path());
      EXPECT_TRUE(WritePattern(file.get(), 0, kFilePages * kPage, seed).ok());
      files_.push_back(std::move(file));
    }
  }
  std::shared_ptr<SpillFile> file(size_t idx) const { return files_[idx]; }

  // A plan of up to `runs_max` runs, anywhere in the files.
  StreamPlan RandomPlan(std::mt19937* random, int runs_max) const {
    StreamPlan plan;
    plan.num_planes = Pick(random, 1, 6);
    const int part_pages = Pick(random, 1, 3);
    plan.part_bytes = part_pages * kPage;
    int64_t block = 0;
    for (int i = Pick(random, 1, runs_max); i > 0; --i) {
      ColdRun run;
      run.file = files_[Pick(random, 0, 1)];
      run.first_block = block + Pick(random, 0, 3);  // hot blocks in between
      run.num_blocks = Pick(random, 1, 9);
      const int plane_pages = static_cast<int>(run.num_blocks) * part_pages;
      const int stride_pages = plane_pages + Pick(random, 0, 5);
      run.plane_stride = stride_pages * kPage;
      run.offset_of_plane0 =
          Pick(random, 0, static_cast<int>(kFilePages) - stride_pages * plan.num_planes) * kPage;
      block = run.first_block + run.num_blocks;
      plan.runs.push_back(std::move(run));
    }
    return plan;
  }

  // The rule, written out: is parts[i] the i-th cold block of the plane?
  bool HasPlane(const StreamPlan& plan, int plane, const std::vector<const uint8_t*>& parts) const {
    size_t i = 0;
    for (const ColdRun& run : plan.runs) {
      for (int64_t b = 0; b < run.num_blocks; ++b, ++i) {
        const uint64_t offset =
            run.offset_of_plane0 + plane * run.plane_stride + b * plan.part_bytes;
        const uint64_t seed = run.file == files_[0] ? 0 : 1;
        if (!HasPattern(parts[i], plan.part_bytes, offset, seed)) return false;
      }
    }
    return i == parts.size();
  }

 private:
  TempFolder folder_;
  std::vector<std::shared_ptr<SpillFile>> files_;
};

int64_t NumBlocks(const StreamPlan& plan) {
  int64_t num_blocks = 0;
  for (const ColdRun& run : plan.runs) num_blocks += run.num_blocks;
  return num_blocks;
}

// One pass as a forward pass would make it, with random timing of Start and releases. Some end in
// the middle. Returns the first error.
absl::Status RunPass(const Files& files, const StreamPlan& plan, bool two_planes, KvStream* stream,
                     std::mt19937* random) {
  std::vector<const uint8_t*> parts(static_cast<size_t>(NumBlocks(plan)));
  absl::Status first_error;
  if (Pick(random, 0, 1) == 0) stream->Start();
  const int layers_end =
      Pick(random, 0, 3) == 0 ? Pick(random, 0, plan.num_planes - 1) : plan.num_planes;
  int num_released = 0;
  for (int plane = 0; plane < layers_end; ++plane) {
    if (num_released < plane && (!two_planes || Pick(random, 0, 1) == 0)) {
      stream->ReleasePlane(num_released++);
    }
    const absl::Status status = stream->WaitPlane(plane, parts.data());
    if (num_released < plane) stream->ReleasePlane(num_released++);
    EXPECT_TRUE(first_error.ok() || status == first_error) << "an error must stay: " << status;
    if (status.ok()) {
      EXPECT_TRUE(files.HasPlane(plan, plane, parts)) << "plane " << plane;
      EXPECT_GE(stream->planes_ready(), plane + 1);
    } else {
      first_error = status;
      // Memory that may be read all the same, and that nobody writes to (ASan, TSan).
      uint64_t sum = 0;
      for (const uint8_t* part : parts) sum += part[0] + part[plan.part_bytes - 1];
      EXPECT_LE(sum, parts.size() * 510);
    }
  }
  return first_error;
}

class KvStreamTest : public testing::TestWithParam<ReadBackend> {
 protected:
  std::unique_ptr<ReadQueue> MakeQueue(ReadQueueOptions options) {
    options.backend = GetParam();
    auto queue = MakeReadQueue(options);
    EXPECT_TRUE(queue.ok()) << queue.status();
    return *std::move(queue);
  }
  Files files_;
};

// `num_planes` planes of two runs of 5 and 7 blocks, parts of one page.
StreamPlan SmallPlan(const Files& files, int num_planes) {
  StreamPlan plan;
  plan.num_planes = num_planes;
  plan.part_bytes = kPage;
  plan.runs.push_back({files.file(0), 0, 5, 0, 5 * kPage});
  plan.runs.push_back({files.file(1), 6, 7, 100 * kPage, 16 * kPage});
  return plan;
}

TEST_P(KvStreamTest, DeliversRandomPlans) {
  int num_errors = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const StreamPlan plan = files_.RandomPlan(&random, 4);
    const size_t slot_bytes = plan.part_bytes * Pick(&random, 1, 5) + kPage * Pick(&random, 0, 1);
    const size_t plane_slots =
        KvStream::SlotsPerPlane(NumBlocks(plan), plan.part_bytes, slot_bytes);
    const size_t num_slots = plane_slots + Pick(&random, 0, 2 * static_cast<int>(plane_slots));
    auto pool = *StagingPool::Create(num_slots + 2, slot_bytes);
    ReadQueueOptions options;
    options.depth = Pick(&random, 1, 6);
    options.read_bytes = kPage * Pick(&random, 1, 6);
    options.staging = pool->memory();
    options.staging_bytes = pool->num_bytes();
    const bool faulty = seed % 3 == 0;
    options.faults =
        std::make_shared<FaultPlan>(FaultOptions{.seed = seed,
                                                 .short_reads_per_1000 = 200,
                                                 .delays_per_1000 = 100,
                                                 .delay_us_max = 200,
                                                 .eio_at_read = faulty ? Pick(&random, 1, 60) : 0});
    const auto queue = MakeQueue(options);
    auto slots = *pool->Reserve(num_slots);
    for (int pass = 0; pass < 2; ++pass) {  // the second with the slots of the first
      auto stream = *KvStream::Create(plan, std::move(slots), queue.get());
      const bool two_planes = num_slots >= 2 * plane_slots;
      const absl::Status status = RunPass(files_, plan, two_planes, stream.get(), &random);
      EXPECT_TRUE(status.ok() || (faulty && absl::IsDataLoss(status))) << status;
      num_errors += !status.ok();
      slots = KvStream::Close(std::move(stream));
      EXPECT_EQ(slots.num_slots(), num_slots);
    }
    slots = {};
    EXPECT_EQ(pool->num_free(), pool->num_slots());
  }
  EXPECT_GT(num_errors, 5) << "the faults were never met";
}

TEST_P(KvStreamTest, ManyStreamsShareOnePoolAndQueue) {
  constexpr size_t kSlotBytes = 6 * kPage;
  auto pool = *StagingPool::Create(60, kSlotBytes);
  ReadQueueOptions options;
  options.read_bytes = 4 * kPage;
  options.staging = pool->memory();
  options.staging_bytes = pool->num_bytes();
  options.faults = std::make_shared<FaultPlan>(FaultOptions{.seed = 1,
                                                            .short_reads_per_1000 = 100,
                                                            .read_errors_per_1000 = 5,
                                                            .delays_per_1000 = 50,
                                                            .delay_us_max = 200});
  const auto queue = MakeQueue(options);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(1000 + t);
      for (int i = 0; i < 40; ++i) {
        const StreamPlan plan = files_.RandomPlan(&random, 3);
        const size_t plane_slots =
            KvStream::SlotsPerPlane(NumBlocks(plan), plan.part_bytes, kSlotBytes);
        const size_t num_slots = plane_slots + Pick(&random, 0, 9);
        auto slots = pool->Reserve(num_slots);
        if (!slots.ok()) continue;  // the others hold them
        auto stream = KvStream::Create(plan, *std::move(slots), queue.get());
        ASSERT_TRUE(stream.ok()) << stream.status();
        const bool two_planes = num_slots >= 2 * plane_slots;
        const absl::Status status = RunPass(files_, plan, two_planes, stream->get(), &random);
        EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->num_free(), 60u);
}

TEST_P(KvStreamTest, ReadsAheadAsFarAsTheReservationHolds) {
  const StreamPlan plan = SmallPlan(files_, 4);
  auto pool = *StagingPool::Create(12, 4 * kPage);  // 12 blocks: 3 slots a plane
  const auto queue = MakeQueue({});
  std::vector<const uint8_t*> parts(12);
  for (const size_t num_slots : {3, 5, 6, 12}) {
    auto stream = *KvStream::Create(plan, *pool->Reserve(num_slots), queue.get());
    EXPECT_EQ(stream->stats().bytes, 0);
    EXPECT_EQ(stream->stats().first_submit_ns, 0);
    stream->Start();
    stream->Start();
    EXPECT_EQ(stream->stats().bytes, static_cast<int64_t>(num_slots * 4 * kPage));
    const int planes = static_cast<int>(num_slots) / 3;
    while (stream->planes_ready() < planes) std::this_thread::yield();
    EXPECT_EQ(stream->planes_ready(), planes);
    for (int plane = 0; plane < 4; ++plane) {
      ASSERT_TRUE(stream->WaitPlane(plane, parts.data()).ok());
      EXPECT_TRUE(files_.HasPlane(plan, plane, parts));
      stream->ReleasePlane(plane);
    }
    EXPECT_EQ(stream->planes_ready(), 4);
    EXPECT_EQ(stream->stats().bytes, static_cast<int64_t>(4 * 12 * kPage));
    EXPECT_GE(stream->stats().last_complete_ns, stream->stats().first_submit_ns);
    EXPECT_GT(stream->stats().first_submit_ns, 0);
  }
}

TEST_P(KvStreamTest, WaitingForStagingIsNoTransferTime) {
  const StreamPlan plan = SmallPlan(files_, 4);
  auto pool = *StagingPool::Create(12, 4 * kPage);
  const auto queue = MakeQueue({});
  std::vector<const uint8_t*> parts(12);
  auto stream = *KvStream::Create(plan, *pool->Reserve(3), queue.get());  // one plane
  constexpr auto kPause = std::chrono::milliseconds(5);
  for (int plane = 0; plane < 4; ++plane) {
    ASSERT_TRUE(stream->WaitPlane(plane, parts.data()).ok());
    std::this_thread::sleep_for(kPause);
    stream->ReleasePlane(plane);
  }
  const StreamStats stats = stream->stats();
  EXPECT_GT(stats.busy_ns, 0);
  // Between one plane's end and the next one's beginning there was a pause, three times.
  EXPECT_LE(stats.busy_ns, stats.last_complete_ns - stats.first_submit_ns -
                               3 * std::chrono::nanoseconds(kPause).count());
}

TEST_P(KvStreamTest, ReadsWholeSlotsAtOnce) {
  const StreamPlan plan = SmallPlan(files_, 1);
  auto pool = *StagingPool::Create(3, 4 * kPage);
  const auto queue = MakeQueue({});
  auto stream = *KvStream::Create(plan, *pool->Reserve(3), queue.get());
  std::vector<const uint8_t*> parts(12);
  ASSERT_TRUE(stream->WaitPlane(0, parts.data()).ok());
  // Slots 0-3, 4-7 and 8-11; the runs meet at block 5: one slot of two reads.
  EXPECT_EQ(queue->stats().num_reads, 4);
  EXPECT_EQ(parts[3], parts[0] + 3 * kPage);
}

TEST_P(KvStreamTest, APlaneMustBeReleasedWhereTwoDoNotFit) {
  const StreamPlan plan = SmallPlan(files_, 3);
  auto pool = *StagingPool::Create(5, 4 * kPage);
  const auto queue = MakeQueue({});
  auto stream = *KvStream::Create(plan, *pool->Reserve(5), queue.get());
  std::vector<const uint8_t*> parts(12);
  ASSERT_TRUE(stream->WaitPlane(0, parts.data()).ok());
  EXPECT_EQ(stream->WaitPlane(1, parts.data()).code(), absl::StatusCode::kFailedPrecondition);
  stream->ReleasePlane(0);
  EXPECT_TRUE(stream->WaitPlane(1, parts.data()).ok());
  EXPECT_TRUE(files_.HasPlane(plan, 1, parts));
}

TEST_P(KvStreamTest, EndsPromptlyInMidFlightAndLeavesOthersAlone) {
  auto pool = *StagingPool::Create(12, 4 * kPage);
  ReadQueueOptions options;
  options.bytes_per_second = 40'000;
  options.read_bytes = kPage;
  const auto queue = MakeQueue(options);
  StreamPlan one_block;
  one_block.num_planes = 1;
  one_block.part_bytes = kPage;
  one_block.runs.push_back({files_.file(1), 3, 1, 50 * kPage, 0});
  auto other = *KvStream::Create(one_block, *pool->Reserve(1), queue.get());
  {
    auto stream = *KvStream::Create(SmallPlan(files_, 4), *pool->Reserve(11), queue.get());
    stream->Start();
    other->Start();
  }
  EXPECT_EQ(pool->num_free(), 11u);
  const uint8_t* part = nullptr;
  ASSERT_TRUE(other->WaitPlane(0, &part).ok());
  EXPECT_TRUE(files_.HasPlane(one_block, 0, {part}));
  EXPECT_LT(queue->stats().num_reads, 20) << "the stream of 44 reads was not taken back";
}

TEST_P(KvStreamTest, AFileThatIsTooShortFailsTheStream) {
  StreamPlan plan = SmallPlan(files_, 3);
  plan.runs[1].offset_of_plane0 = (kFilePages - 16) * kPage;  // plane 1 is beyond the end
  auto pool = *StagingPool::Create(6, 4 * kPage);
  const auto queue = MakeQueue({});
  auto stream = *KvStream::Create(plan, *pool->Reserve(6), queue.get());
  std::vector<const uint8_t*> parts(12);
  ASSERT_TRUE(stream->WaitPlane(0, parts.data()).ok());
  stream->ReleasePlane(0);
  const absl::Status status = stream->WaitPlane(1, parts.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  stream->ReleasePlane(1);
  EXPECT_EQ(stream->WaitPlane(2, parts.data()), status);
}

INSTANTIATE_TEST_SUITE_P(Backends, KvStreamTest,
                         testing::Values(ReadBackend::kAuto, ReadBackend::kPread),
                         [](const auto& info) {
                           return info.param == ReadBackend::kAuto ? "Auto" : "Pread";
                         });

TEST(KvStream, WithoutColdBlocksReadsNothing) {
  const auto queue = *MakeReadQueue({});
  StreamPlan plan;
  plan.num_planes = 2;
  plan.part_bytes = kPage;
  auto stream = KvStream::Create(plan, {}, queue.get());
  ASSERT_TRUE(stream.ok()) << stream.status();
  (*stream)->Start();
  EXPECT_EQ((*stream)->planes_ready(), 2);
  for (int plane = 0; plane < 2; ++plane) {
    EXPECT_TRUE((*stream)->WaitPlane(plane, nullptr).ok());
    (*stream)->ReleasePlane(plane);
  }
  EXPECT_EQ(queue->stats().num_reads, 0);
}

TEST(KvStream, RefusesWhatContradictsItself) {
  const Files files;
  const auto queue = *MakeReadQueue({});
  auto pool = *StagingPool::Create(6, 4 * kPage);
  const StreamPlan good = SmallPlan(files, 3);
  const auto code = [&](const StreamPlan& plan, size_t num_slots) {
    return KvStream::Create(plan, *pool->Reserve(num_slots), queue.get()).status().code();
  };
  EXPECT_EQ(code(good, 3), absl::StatusCode::kOk);
  EXPECT_EQ(code(good, 2), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code(good, 0), absl::StatusCode::kResourceExhausted);
  std::vector<StreamPlan> bad(11, good);
  bad[0].num_planes = 0;
  bad[1].part_bytes = 1000;
  bad[2].part_bytes = 5 * kPage;  // larger than a slot
  bad[3].runs[0].file = nullptr;
  bad[4].runs[1].first_block = 4;  // overlaps the first run
  bad[5].runs[0].num_blocks = 0;
  bad[6].runs[0].plane_stride = 4 * kPage;  // planes overlap
  bad[7].runs[0].offset_of_plane0 = 100;
  bad[8].runs[0].plane_stride = UINT64_MAX / kPage * kPage;  // wraps around
  bad[9].runs[0].num_blocks = INT64_MAX;
  bad[10].runs[0].first_block = -1;
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(code(bad[i], 6), absl::StatusCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(pool->num_free(), 6u);
}

}  // namespace
}  // namespace vericache
