// What passes cost and how often drafts agree is learned once an engine, whatever asks for it.
#include "api/engine_impl.h"
#include "api/warm_up.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

EngineOptions SmallModel() {
  EngineOptions options;
  options.model_path = "tests/golden/model/qwen2_untied.gguf";
  options.num_threads = 2;
  return options;
}

Request Question() {
  Request request;
  for (int i = 0; i < 80; ++i) request.prompt_token_ids.push_back(i * 7 % 50);
  request.max_tokens = 12;
  request.ignore_eos = true;
  return request;
}

TEST(Experience, IsTheEnginesAndNotOneCalls) {
  EngineOptions options = SmallModel();
  options.num_threads = 1;
  const auto engine = Engine::Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Request request = Question();
  request.draft = "int4";
  request.draft_len = 3;
  ASSERT_TRUE((*engine)->Generate(request).ok());
  const std::shared_ptr<Experience> first = EngineAccess::Of(engine->get())->experience;
  ASSERT_NE(first, nullptr);
  EXPECT_TRUE(first->acceptance.Tried(DraftMode::kDraftKv));
  const double error = first->costs.relative_error();
  EXPECT_GT(error, 0);
  ASSERT_TRUE((*engine)->GenerateBatch({&request, 1})[0].ok());
  EXPECT_EQ(EngineAccess::Of(engine->get())->experience, first);
  EXPECT_NE(first->costs.relative_error(), error);  // the second call has taught it, too
}

// Times of a few passes and nothing else stays, with and without a budget.
TEST(Experience, WarmingUpTeachesCostsAndLeavesNothing) {
  for (const uint64_t kv_memory : {uint64_t{0}, uint64_t{1} << 20}) {
    EngineOptions options = SmallModel();
    options.kv_memory = kv_memory;
    options.kv_dir = testing::TempDir();
    const auto cold = Engine::Load(options), warm = Engine::Load(options);
    ASSERT_TRUE(cold.ok()) << cold.status();
    ASSERT_TRUE(warm.ok()) << warm.status();
    EngineAccess::Impl* impl = EngineAccess::Of(warm->get());
    const PassGuess guess = GuessPass(*impl->model, 2);
    ASSERT_TRUE(WarmUp(impl).ok());
    EXPECT_GE(impl->Learned()->costs.num_passes(), 1);
    EXPECT_FALSE(impl->Learned()->acceptance.Tried(DraftMode::kPlain));
    PassShape step;
    step.AddFull(1, 64, 1);
    EXPECT_NE(impl->Learned()->costs.PassSeconds(step), CostModel(guess, 1e9).PassSeconds(step));
    const auto a = (*cold)->Generate(Question()), b = (*warm)->Generate(Question());
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(a->token_ids, b->token_ids);
    EXPECT_EQ(a->logits_hash, b->logits_hash);
    EXPECT_EQ(a->stats.memory.streamed_bytes, b->stats.memory.streamed_bytes);
  }
}

// Fewer tokens than a block, and than the passes have rows.
TEST(Experience, WarmingUpWithASmallContext) {
  EngineOptions options = SmallModel();
  options.context_length = 16;
  const auto engine = Engine::Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EngineAccess::Impl* impl = EngineAccess::Of(engine->get());
  WarmUpOnce(impl);
  const int64_t passes = impl->Learned()->costs.num_passes();
  EXPECT_GE(passes, 1);
  WarmUpOnce(impl);  // it has timed some: nothing to do
  EXPECT_EQ(impl->Learned()->costs.num_passes(), passes);
}

}  // namespace
}  // namespace vericache
