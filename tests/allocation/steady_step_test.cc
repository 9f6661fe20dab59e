// A steady step allocates nothing: buffers live in the objects that own the work, so the time of a
// step does not hang on the allocator, and memory does not creep.
//
// What may allocate: a KV block every 64 positions, partial sums every 1,024, vectors that grow by
// doubling (draft KV at a commit). The tests stay between these events.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"

// Sanitizers bring an allocator of their own, which cannot be replaced a second time.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
#define VC_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VC_SANITIZED 1
#endif

#if defined(__GLIBC__) && !defined(VC_SANITIZED)
#define VC_COUNTS_ALLOCATIONS 1
#else
#define VC_COUNTS_ALLOCATIONS 0
#endif

namespace {
std::atomic<int64_t> g_num_allocations{0};
}  // namespace

#if VC_COUNTS_ALLOCATIONS
// glibc lets a program replace these; operator new and OpenSSL's allocator end here, too.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* p, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) noexcept {
  g_num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) noexcept {
  g_num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
void* realloc(void* p, size_t size) noexcept {
  g_num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(p, size);
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  g_num_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}
}
#endif

namespace vericache {
namespace {

// Past one segment of 1,024 positions, so that attention is cut among threads; 52 positions before
// the next KV block.
constexpr int64_t kPromptTokens = 1100;
constexpr int kWarmUp = 3, kSteps = 20;

struct Case {
  TensorType type;
  int num_threads;
  SamplingParams sampling;
  const char* name;
};

std::vector<Case> Cases() {
  SamplingParams sampled;
  sampled.temperature = 0.8f;
  sampled.top_k = 40;
  sampled.top_p = 0.9f;
  sampled.min_p = 0.01f;
  SamplingParams penalties;
  penalties.repetition_penalty = 1.1f;
  penalties.frequency_penalty = 0.1f;
  penalties.logit_bias = {{3, 1.0f}};
  return {{TensorType::kF32, 1, {}, "f32, greedy"},
          {TensorType::kQ4_K, 2, {}, "q4_k, greedy"},
          {TensorType::kQ8_0, 2, sampled, "q8_0, sampled"},
          {TensorType::kF16, 2, penalties, "f16, penalties"}};
}

// An engine that stands behind a prompt.
struct Prepared {
  Harness harness;
  std::unique_ptr<Sequence> sequence;

  Prepared(const Case& c, const std::string& draft)
      : harness(OpenBytes(TinyModelBytes({.num_heads = 8, .type = c.type})), "", c.num_threads) {
    RunTask task;
    task.prompt = RandomPrompt(kPromptTokens, 320, 5);
    task.max_tokens = 200;
    task.sampling = c.sampling;
    RunKnobs knobs;
    knobs.draft = draft;
    sequence = harness.MakeSequence(task, knobs);
    Prefill prefill(&harness.model(), &harness.forward(), &harness.pool());
    EXPECT_TRUE(prefill.Run(sequence.get(), {}).ok());
    // As Engine::Generate does.
    sequence->tokens.reserve(kPromptTokens + task.max_tokens);
    sequence->rounds.reserve(task.max_tokens);
  }
};

class SteadyStep : public testing::Test {
 protected:
  void SetUp() override {
    if (!VC_COUNTS_ALLOCATIONS)
      GTEST_SKIP() << "allocations are counted with glibc only, and not "
                      "under sanitizers";
  }
};

TEST_F(SteadyStep, TheCounterCounts) {
  const int64_t before = g_num_allocations.load();
  std::vector<int>* volatile v = new std::vector<int>(100);
  void* volatile p = std::aligned_alloc(64, 64);
  EXPECT_EQ(g_num_allocations.load() - before, 3);
  std::free(p);
  delete v;
}

TEST_F(SteadyStep, PlainDecodingAllocatesNothing) {
  for (const Case& c : Cases()) {
    Prepared prepared(c, "off");
    Sequence* sequence = prepared.sequence.get();
    RoundRunner runner(&prepared.harness.model(), &prepared.harness.forward(),
                       &prepared.harness.pool());
    for (int i = 0; i < kWarmUp; ++i) runner.Run({&sequence, 1});
    const int64_t before = g_num_allocations.load();
    for (int i = 0; i < kSteps; ++i) runner.Run({&sequence, 1});
    EXPECT_EQ(g_num_allocations.load() - before, 0) << c.name;
    EXPECT_EQ(sequence->num_emitted(), 1 + kWarmUp + kSteps) << c.name;
  }
}

TEST_F(SteadyStep, DraftingAllocatesNothing) {
  for (const Case& c : Cases()) {
    for (const char* spec : {"f16", "sink:0.25+int4", "int8"}) {
      Prepared prepared(c, spec);
      Sequence* sequence = prepared.sequence.get();
      Drafter drafter(&prepared.harness.model(), &prepared.harness.forward());
      // The first draft makes room in the f16 tail for as many provisional rows.
      const int num_tokens = kWarmUp + kSteps;
      drafter.Draft({&sequence, 1}, {&num_tokens, 1});
      const std::vector<DraftToken> first = sequence->drafted;
      sequence->draft->Rollback();
      const int64_t before = g_num_allocations.load();
      drafter.Draft({&sequence, 1}, {&num_tokens, 1});
      EXPECT_EQ(g_num_allocations.load() - before, 0) << c.name << ", " << spec;
      ASSERT_EQ(sequence->drafted.size(), first.size());
      EXPECT_EQ(sequence->drafted.back().id, first.back().id) << c.name << ", " << spec;
    }
  }
}

// Query-time reading ranks and picks groups of keys in every layer of every step.
TEST_F(SteadyStep, ReadingSomeGroupsAllocatesNothing) {
  const Case c = Cases()[1];
  Prepared prepared(c, "int4");
  Sequence* sequence = prepared.sequence.get();
  const Model& model = prepared.harness.model();
  DraftKv draft(model.config.kv_shape(), DraftCodec(), model.kernels);
  draft.SetQueryTimeReads(0.2, 0);
  std::vector<int32_t> all(sequence->full.num_tokens());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  KeptSet kept;
  kept.positions.assign(model.config.num_layers * model.config.num_kv_heads, all);
  draft.Rebuild(sequence->full, kept, &prepared.harness.pool());
  sequence->draft.emplace(std::move(draft));
  Drafter drafter(&model, &prepared.harness.forward());
  const int num_tokens = kWarmUp + kSteps;
  drafter.Draft({&sequence, 1}, {&num_tokens, 1});
  ASSERT_GT(sequence->draft->Layer(0).draft[0].num_selected, 0);
  sequence->draft->Rollback();
  const int64_t before = g_num_allocations.load();
  drafter.Draft({&sequence, 1}, {&num_tokens, 1});
  EXPECT_EQ(g_num_allocations.load() - before, 0);
}

// Draft, verification and commit. A draft KV in f16 without a selector only grows its tail, which
// has room here for all of it.
TEST_F(SteadyStep, RoundsAllocateNothing) {
  for (const Case& c : Cases()) {
    Prepared prepared(c, "f16");
    Sequence* sequence = prepared.sequence.get();
    sequence->draft_length = DraftLength::Fixed(4);
    RoundRunner runner(&prepared.harness.model(), &prepared.harness.forward(),
                       &prepared.harness.pool());
    ASSERT_TRUE(sequence->full.Reserve(100).ok());
    sequence->draft->ReserveRows(100);
    for (int i = 0; i < 6; ++i) runner.Run({&sequence, 1});
    const int64_t before = g_num_allocations.load();
    for (int i = 0; i < 8; ++i) runner.Run({&sequence, 1});
    EXPECT_EQ(g_num_allocations.load() - before, 0) << c.name;
    EXPECT_EQ(sequence->rounds.size(), 14u) << c.name;
  }
}

}  // namespace
}  // namespace vericache
