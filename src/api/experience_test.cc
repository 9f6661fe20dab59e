// What passes cost and how often drafts agree is learned once an engine, whatever asks for it.
#include "api/engine_impl.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

TEST(Experience, IsTheEnginesAndNotOneCalls) {
  EngineOptions options;
  options.model_path = "tests/golden/model/qwen2_untied.gguf";
  options.num_threads = 1;
  const auto engine = Engine::Load(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Request request;
  for (int i = 0; i < 80; ++i) request.prompt_token_ids.push_back(i * 7 % 50);
  request.max_tokens = 12;
  request.ignore_eos = true;
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

}  // namespace
}  // namespace vericache
