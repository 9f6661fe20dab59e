// Public bug reports about what a request gets, replayed by number on the service: 4, 5, 37, 38,
// 46, 49, 50; and prefixes, drafts and templates through it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tests/serving/serving_test_util.h"

namespace vericache {
namespace {

class ServingCases : public testing::Test {
 protected:
  void Start(const EngineOptions& options) { service_ = StartTestService(options); }
  const Collector::Choice& Serve(const ServeRequest& request) {
    sinks_.push_back(std::make_shared<Collector>(request.num_choices));
    const absl::StatusOr<ServeId> id = service_->Submit(request, sinks_.back());
    EXPECT_TRUE(id.ok()) << id.status();
    if (!id.ok()) std::abort();
    return sinks_.back()->Wait();
  }
  absl::Status Refusal(const ServeRequest& request) {
    auto sink = std::make_shared<Collector>();
    const absl::StatusOr<ServeId> id = service_->Submit(request, sink);
    if (id.ok()) {
      sink->Wait();  // not refused
    } else {
      EXPECT_FALSE(sink->ended()) << "a refused request's sink is not called";
    }
    return id.status();
  }
  void ExpectRefused(const ServeRequest& request, const std::string& field) {
    const absl::Status status = Refusal(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field << ": " << status;
    EXPECT_NE(status.message().find(field), absl::string_view::npos) << status;
  }

  std::unique_ptr<Engine> alone_ = LoadServingEngine(ServingOptions());
  std::unique_ptr<CompletionService> service_;
  std::vector<std::shared_ptr<Collector>> sinks_;
};

// Cases 4 and 5: an accepted run with a stop in it, cut by every limit: what is delivered is what
// is counted, and is plain decoding's.
TEST_F(ServingCases, Case4And5DeliveredIsCountedForEveryLimit) {
  Start(ServingOptions());
  ServeRequest request = Ask(TestPrompt(40, 4), 12);
  const std::string text = Oracle(alone_.get(), request).text;
  const std::string stop = PieceOf(text, text.size() / 2, 2);
  ASSERT_FALSE(stop.empty());
  for (const bool stops : {false, true}) {
    if (stops) request.stop = {stop};
    bool stopped = false, cut = false;
    for (int64_t n = 1; n <= 12; ++n) {
      request.request.max_tokens = n;
      request.request.draft = "int8";
      request.request.draft_len = 4;
      request.logprobs = true;
      const Collector::Choice& got = Serve(request);
      ExpectAnswer(got, Oracle(alone_.get(), request), std::to_string(n));
      EXPECT_EQ(got.logprobs.size(), got.ids.size());
      stopped = stopped || got.end->completion.finish_reason == "stop";
      cut = cut || got.end->completion.finish_reason == "length";
    }
    EXPECT_TRUE(cut);
    EXPECT_EQ(stopped, stops);
  }
}

// Case 37: stops that span tokens, at every place of an answer and of every length.
TEST_F(ServingCases, Case37StopsAreCutExactly) {
  Start(ServingOptions());
  ServeRequest request = Ask(TestPrompt(60, 9), 40);
  request.request.draft = "verify:0.25+int4";
  request.request.draft_len = 8;
  const Expected whole = Oracle(alone_.get(), request);
  int spanning = 0;
  for (size_t at = 0; at + 12 < whole.text.size(); at += 5) {
    for (const size_t size : {1, 4, 11}) {
      request.stop = {PieceOf(whole.text, at, size), "never in it", whole.text + "longer"};
      if (request.stop[0].empty()) continue;
      const Collector::Choice& got = Serve(request);
      ExpectAnswer(got, Oracle(alone_.get(), request), request.stop[0]);
      EXPECT_EQ(got.end->stop_string, request.stop[0]);
      spanning += size > 4;
    }
  }
  EXPECT_GT(spanning, 3);
  // What was held back comes at the end.
  request.stop = {whole.text.substr(whole.text.size() - 3) + "x"};
  const Collector::Choice& got = Serve(request);
  EXPECT_EQ(got.text, whole.text);
  EXPECT_EQ(got.end->completion.finish_reason, whole.finish_reason);
  request.stop = {"a", ""};
  ExpectRefused(request, "stop[1]");
  request.stop = {"\xE2\x80"};
  ExpectRefused(request, "stop[0]");
}

// Case 38: logprobs are the verifier's: for any draft, cold or cached; and a scored text has the
// numbers that it had when it was made.
TEST_F(ServingCases, Case38LogprobsAreThoseOfTheFullKv) {
  Start(ServingOptions(0, 32 << 20));
  ServeRequest request = Ask(TestPrompt(200, 12), 30);
  request.request.ignore_eos = true;
  request.logprobs = true;
  request.top_logprobs = 20;
  request.request.draft = "off";
  const std::vector<PositionLogprobs> want = Serve(request).logprobs;
  ASSERT_EQ(want.size(), 30u);
  for (const PositionLogprobs& row : want) {
    ASSERT_EQ(row.top.size(), 20u);
    EXPECT_EQ(row.chosen.id, row.top[0].id) << "greedy";
    double sum = 0;
    for (size_t i = 0; i < row.top.size(); ++i) {
      sum += std::exp(row.top[i].logprob);
      if (i > 0) {
        EXPECT_GE(row.top[i - 1].logprob, row.top[i].logprob);
      }
    }
    EXPECT_LE(sum, 1.0001);
  }
  for (const char* spec : {"int4", "verify:0.25+int4", "sink:0.3"}) {
    request.request.draft = spec;
    const Collector::Choice& got = Serve(request);
    EXPECT_TRUE(SameLogprobs(got.logprobs, want)) << spec;
    EXPECT_GT(got.end->completion.usage.cached_tokens, 0);
  }
  // Scoring: prompt and answer as a prompt, nothing made; the second time its K/V are known.
  ServeRequest score = Ask(request.request.prompt_token_ids, 0);
  std::vector<int32_t>& ids = score.request.prompt_token_ids;
  for (const PositionLogprobs& row : want) ids.push_back(row.chosen.id);
  score.prompt_logprobs = true;
  score.top_logprobs = 20;
  const Collector::Choice& cold = Serve(score);
  EXPECT_EQ(cold.end->completion.finish_reason, "length");
  EXPECT_TRUE(cold.ids.empty());
  const std::vector<PositionLogprobs> scored = cold.end->prompt_logprobs;
  ASSERT_EQ(scored.size(), 229u);
  EXPECT_TRUE(SameLogprobs({scored.begin() + 199, scored.end()}, want));
  for (size_t i = 0; i < scored.size(); ++i) EXPECT_EQ(scored[i].chosen.id, ids[i + 1]);
  EXPECT_TRUE(SameLogprobs(Serve(score).end->prompt_logprobs, scored));
  score.request.max_tokens = 5;
  score.num_choices = 2;
  const Collector::Choice& both = Serve(score);
  EXPECT_TRUE(SameLogprobs(both.end->prompt_logprobs, scored));
  EXPECT_TRUE(sinks_.back()->Wait(1).end->prompt_logprobs.empty());
  ExpectAnswer(both, Oracle(alone_.get(), score), "scored and continued");
}

// The same under a budget, where K/V are spilled and the prompt comes in small chunks.
TEST_F(ServingCases, Case38ScoringUnderABudget) {
  ServeRequest score = Ask(TestPrompt(700, 2), 0);
  score.prompt_logprobs = true;
  score.top_logprobs = 2;
  Start(ServingOptions());
  const std::vector<PositionLogprobs> want = Serve(score).end->prompt_logprobs;
  Start(ServingOptions(kLeastBudget));
  EXPECT_TRUE(SameLogprobs(Serve(score).end->prompt_logprobs, want));
  EXPECT_EQ(want.size(), 699u);
}

// Case 46: non-finite logits end one request with their name; nothing of it is kept, others go on.
TEST_F(ServingCases, Case46NonFiniteLogitsFailOneRequest) {
  ServeRequest good = Ask(TestPrompt(90, 21), 30);
  good.request.ignore_eos = true;
  const Expected want = Oracle(alone_.get(), good);
  // A token that the prompt lacks and the answer has: rows behind it are not finite.
  size_t at = 0;
  const std::vector<int32_t>& prompt = good.request.prompt_token_ids;
  while (at < want.ids.size() &&
         std::find(prompt.begin(), prompt.end(), want.ids[at]) != prompt.end())
    ++at;
  ASSERT_LT(at, want.ids.size());
  const int32_t bad_token = want.ids[at];
  const size_t first = std::find(want.ids.begin(), want.ids.end(), bad_token) - want.ids.begin();
  EngineOptions options = ServingOptions(0, 32 << 20);
  options.model_path = ModelWithBadToken(bad_token, "bad_token.gguf");
  Start(options);
  const auto poisoned = LoadServingEngine([&] {
    EngineOptions plain = ServingOptions();
    plain.model_path = options.model_path;
    return plain;
  }());
  ServeRequest other = Ask(TestPrompt(50, 22), 20);
  for (int32_t& id : other.request.prompt_token_ids)
    if (id == bad_token) id = 7;
  other.request.sampling.logit_bias = {{bad_token, -1000.0f}};
  for (const char* spec : {"off", "int8"}) {
    good.request.draft = spec;
    auto sink = std::make_shared<Collector>();
    ASSERT_TRUE(service_->Submit(good, sink).ok());
    ExpectAnswer(Serve(other), Oracle(poisoned.get(), other), "beside it");
    const Collector::Choice& failed = sink->Wait();
    EXPECT_EQ(failed.end->status.code(), absl::StatusCode::kDataLoss) << failed.end->status;
    EXPECT_NE(failed.end->status.message().find("non-finite"), absl::string_view::npos);
    ASSERT_EQ(failed.ids.size(), first + 1)
        << "the token that spoils the row behind it is verified";
    EXPECT_TRUE(std::equal(failed.ids.begin(), failed.ids.end(), want.ids.begin()));
  }
  // In the prompt, with and without its logits.
  const uint64_t held = service_->stats().prefix.memory_bytes;
  for (const bool scores : {false, true}) {
    ServeRequest in_prompt = other;
    in_prompt.request.prompt_token_ids[20] = bad_token;
    in_prompt.prompt_logprobs = scores;
    for (int i = 0; i < 2; ++i) {
      const Collector::Choice& got = Serve(in_prompt);
      EXPECT_EQ(got.end->status.code(), absl::StatusCode::kDataLoss) << got.end->status;
      EXPECT_TRUE(got.ids.empty());
    }
  }
  EXPECT_EQ(service_->stats().prefix.memory_bytes, held) << "nothing of them is kept";
  ExpectAnswer(Serve(other), Oracle(poisoned.get(), other), "afterwards");
  EXPECT_EQ(service_->stats().failed, 6);
}

// Case 49: ids of logit_bias are checked; a large bias chooses, all the same bias change nothing.
TEST_F(ServingCases, Case49LogitBias) {
  Start(ServingOptions());
  const auto vocab = static_cast<int32_t>(alone_->info().vocab_size);
  ServeRequest request = Ask(TestPrompt(20, 5), 6);
  for (const int32_t id : {-1, vocab, vocab + 1, std::numeric_limits<int32_t>::max()}) {
    request.request.sampling.logit_bias = {{id, 1.0f}};
    ExpectRefused(request, "logit_bias");
  }
  for (const float bias : {NAN, INFINITY, -1e30f}) {
    request.request.sampling.logit_bias = {{3, bias}};
    ExpectRefused(request, "logit_bias");
  }
  request.request.sampling.logit_bias = {{42, 1000.0f}};
  request.logprobs = true;
  const Collector::Choice& got = Serve(request);
  ExpectAnswer(got, Oracle(alone_.get(), request), "biased");
  EXPECT_EQ(got.ids, std::vector<int32_t>(6, 42));
  for (const PositionLogprobs& row : got.logprobs)
    EXPECT_LT(row.chosen.logprob, -0.01) << "before the bias";
}

// Case 50: each number at its edges: a message with the field's name, or an answer.
TEST_F(ServingCases, Case50NumbersOutOfRangeAreNamed) {
  Start(ServingOptions());
  const float nan = NAN, inf = INFINITY, huge = 3e38f;
  const ServeRequest good = Ask(TestPrompt(8, 6), 2);
  const auto with = [&](auto member, auto value) {
    ServeRequest request = good;
    request.request.sampling.*member = value;
    return request;
  };
  using S = SamplingOptions;
  for (const float value : {-1.0f, huge, nan, inf, -inf}) {
    ExpectRefused(with(&S::temperature, value), "temperature");
    ExpectRefused(with(&S::top_p, value), "top_p");
    ExpectRefused(with(&S::min_p, value), "min_p");
    ExpectRefused(with(&S::repetition_penalty, value), "repetition_penalty");
  }
  for (const float value : {-1e5f, huge, nan, inf}) {
    ExpectRefused(with(&S::presence_penalty, value), "presence_penalty");
    ExpectRefused(with(&S::frequency_penalty, value), "frequency_penalty");
  }
  ExpectRefused(with(&S::top_p, 0.0f), "top_p");
  ExpectRefused(with(&S::repetition_penalty, 0.0f), "repetition_penalty");
  ExpectRefused(with(&S::top_k, int64_t{-1}), "top_k");
  ServeRequest request = good;
  for (const auto& [member, name, bad] :
       std::vector<std::tuple<int ServeRequest::*, std::string, std::vector<int>>>{
           {&ServeRequest::num_choices, "num_choices", {-1, 0, 129, 1 << 30}},
           {&ServeRequest::top_logprobs, "top_logprobs", {-1, 21, 1 << 30}}}) {
    for (const int value : bad) {
      request = good;
      request.*member = value;
      ExpectRefused(request, name);
    }
  }
  request = good;
  request.request.max_tokens = -1;
  ExpectRefused(request, "max_tokens");
  request = good;
  request.request.priority = 1 << 30;
  ExpectRefused(request, "priority");
  for (const int value : {-1, 257}) {
    request = good;
    request.request.draft_len = value;
    ExpectRefused(request, "draft length");
  }
  request = good;
  request.request.draft = "nonsense:2";
  ExpectRefused(request, "nonsense");
  request = good;
  request.request.prompt_token_ids = {5, 1 << 20};
  ExpectRefused(request, "prompt token id");
  // Edges that hold.
  for (const ServeRequest& edge :
       {with(&S::temperature, 100.0f), with(&S::temperature, 1e-30f), with(&S::top_k, int64_t{1}),
        with(&S::top_k, int64_t{1} << 40), with(&S::top_p, 1e-8f), with(&S::min_p, 1.0f),
        with(&S::seed, ~uint64_t{0})})
    ExpectAnswer(Serve(edge), Oracle(alone_.get(), edge), "an edge");
}

TEST_F(ServingCases, PrefixesAreReusedBetweenRequests) {
  Start(ServingOptions(0, 32 << 20));
  ServeRequest request = Ask(TestPrompt(300, 31), 10);
  const Collector::Choice& first = Serve(request);
  EXPECT_EQ(first.end->completion.usage.cached_tokens, 0);
  for (int32_t id : first.ids) request.request.prompt_token_ids.push_back(id);
  for (int32_t id : TestPrompt(20, 32)) request.request.prompt_token_ids.push_back(id);
  const Collector::Choice& second = Serve(request);
  EXPECT_GE(second.end->completion.usage.cached_tokens, 300);
  ExpectAnswer(second, Oracle(alone_.get(), request), "warm");
  EXPECT_EQ(service_->stats().prefix.memory_hits, 1);
  EXPECT_GT(service_->stats().prefix.memory_bytes, 0u);
  request.request.prefix_salt = "another tenant";
  EXPECT_EQ(Serve(request).end->completion.usage.cached_tokens, 0);
}

// Ten at once with one prompt: it is computed once.
TEST_F(ServingCases, EqualPromptsAtOnceAreComputedOnce) {
  EngineOptions options = ServingOptions(0, 32 << 20);
  options.prefill_chunk = 32;
  Start(options);
  const ServeRequest request = Ask(TestPrompt(400, 33), 5);
  std::vector<std::shared_ptr<Collector>> sinks;
  Gate all_here;
  for (int i = 0; i < 10; ++i) {
    sinks.push_back(std::make_shared<Collector>());
    if (i == 0) sinks[0]->on_prefill = [&](int64_t, int64_t) { all_here.Wait(); };
    ASSERT_TRUE(service_->Submit(request, sinks.back()).ok());
  }
  all_here.Open();
  const Expected want = Oracle(alone_.get(), request);
  int64_t cached = 0;
  for (const auto& sink : sinks) {
    ExpectAnswer(sink->Wait(), want, "one of ten");
    cached += sink->Wait().end->completion.usage.cached_tokens;
  }
  EXPECT_GE(cached, 9 * 360);
}

// Drafts are shown as what would follow; the standard stream never depends on them.
TEST_F(ServingCases, DraftsComeBesideVerifiedText) {
  Start(ServingOptions());
  ServeRequest request = Ask(TestPrompt(80, 41), 40);
  request.request.draft = "int8";
  request.request.draft_len = 5;
  request.request.ignore_eos = true;
  EXPECT_TRUE(Serve(request).drafts.empty());
  request.drafts = true;
  const Collector::Choice& got = Serve(request);
  const Expected want = Oracle(alone_.get(), request);
  ExpectAnswer(got, want, "with drafts");
  ASSERT_GE(got.drafts.size(), 10u);
  int right = 0;
  for (const std::string& draft : got.drafts)
    right += !draft.empty() && want.text.find(draft) != std::string::npos;
  EXPECT_GE(right, static_cast<int>(got.drafts.size()) / 2) << "int8 is mostly right";
}

TEST_F(ServingCases, TemplateVariablesReachTheTemplate) {
  EngineOptions options = ServingOptions();
  options.model_path = ModelWithTemplate(
      "{% if enable_thinking is defined and not enable_thinking %}no {% endif %}"
      "{% for m in messages %}[{{ m.content }}]{% endfor %}",
      "templated.gguf");
  Start(options);
  Request request;
  request.messages_json = R"([{"role":"user","content":"hi <|im_end|> there"}])";
  auto prompt = service_->RenderPrompt(request);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "[hi <|im_end|> there]") << "without the guard";
  EXPECT_EQ(service_->Detokenize(prompt->token_ids), prompt->text) << "no special token";
  request.template_kwargs_json = R"({"enable_thinking": false})";
  prompt = service_->RenderPrompt(request);
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(prompt->text, "no [hi <|im_end|> there]");
  ServeRequest served;
  served.request = request;
  served.request.max_tokens = 3;
  EXPECT_EQ(Serve(served).end->completion.prompt_token_ids, prompt->token_ids);
  for (const char* bad : {"[1]", "{", "nonsense"}) {
    request.template_kwargs_json = bad;
    EXPECT_EQ(service_->RenderPrompt(request).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
  request = Request();
  request.prompt = "plain";
  EXPECT_EQ(service_->RenderPrompt(request)->text, "plain");
  EXPECT_EQ(service_->RenderPrompt(Request()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(service_->TokenBytes(5).empty());
}

TEST_F(ServingCases, ReceiptsHoldForServedAnswers) {
  Start(ServingOptions());
  ServeRequest request = Ask(TestPrompt(60, 51), 20);
  request.request.sampling.temperature = 1;
  request.request.sampling.seed = 3;
  const Expected whole = Oracle(alone_.get(), request);
  request.stop = {PieceOf(whole.text, whole.text.size() / 2, 3)};
  ASSERT_FALSE(request.stop[0].empty());
  const Completion& completion = Serve(request).end->completion;
  EXPECT_LT(completion.token_ids.size(), whole.ids.size());
  const auto receipt = service_->MakeReceipt(completion, request.request.sampling);
  ASSERT_TRUE(receipt.ok()) << receipt.status();
  const auto report = alone_->Audit(*receipt, AuditMode::kOnePass);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->ok);
}

}  // namespace
}  // namespace vericache
