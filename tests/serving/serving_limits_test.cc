// Public bug reports about what a service bears, replayed by number: 40, 43, 53, 55, 56; and a full
// queue. Nothing here looks at a clock: a sink that waits stands for a pass that takes long.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/serving/serving_test_util.h"

namespace vericache {
namespace {

std::shared_ptr<Collector> NewSink(int num_choices = 1) {
  return std::make_shared<Collector>(num_choices);
}

EngineOptions WithContext(int64_t context) {
  EngineOptions options = ServingOptions();
  options.context_length = context;
  return options;
}

// Case 40: a prompt that leaves no room is refused with both numbers before anything is made; one
// that leaves some is answered up to the limit.
TEST(ServingLimits, Case40ContextOverflow) {
  const auto alone = LoadServingEngine(WithContext(256));
  const auto service = StartTestService(WithContext(256));
  for (const int64_t size : {256, 257, 50000}) {
    auto sink = NewSink();
    const auto id = service->Submit(Ask(TestPrompt(size, 1), 10), sink);
    EXPECT_EQ(id.status().code(), absl::StatusCode::kOutOfRange) << id.status();
    for (const std::string& number : {std::to_string(size), std::string("256")})
      EXPECT_NE(id.status().message().find(number), absl::string_view::npos) << id.status();
    EXPECT_FALSE(sink->ended());
  }
  for (const int64_t size : {225, 254, 255}) {
    ServeRequest request = Ask(TestPrompt(size, 1), 128);
    request.request.ignore_eos = true;
    request.request.draft_len = 8;
    auto sink = NewSink();
    ASSERT_TRUE(service->Submit(request, sink).ok());
    const Collector::Choice& got = sink->Wait();
    ExpectAnswer(got, Oracle(alone.get(), request), std::to_string(size));
    EXPECT_EQ(static_cast<int64_t>(got.ids.size()), 256 - size);
    EXPECT_EQ(got.end->completion.finish_reason, "length");
    EXPECT_EQ(got.end->completion.usage.prompt_tokens, size);
  }
}

// Cancels itself in the first call of a kind. The service's thread is in that call, so that the
// next thing it does is to look at what was cancelled.
struct SelfCancel {
  std::shared_ptr<Collector> sink = NewSink();
  std::atomic<ServeId> id{0};
  Gate submitted;

  void Submit(CompletionService* service, const ServeRequest& request) {
    const absl::StatusOr<ServeId> taken = service->Submit(request, sink);
    ASSERT_TRUE(taken.ok()) << taken.status();
    id = *taken;
    submitted.Open();
  }
  void Cancel(CompletionService* service) {
    submitted.Wait();
    service->Cancel(id);
  }
};

// Case 43: within one step, wherever the request is: in its prefill, in a draft, in an answer.
TEST(ServingLimits, Case43CancelTakesEffectWithinOneStep) {
  EngineOptions options = ServingOptions();
  options.prefill_chunk = 32;
  const auto service = StartTestService(options);
  ServeRequest request = Ask(TestPrompt(600, 2), 400);
  request.request.ignore_eos = true;
  request.request.draft = "int8";
  request.request.draft_len = 6;
  request.drafts = true;

  SelfCancel prefill;
  prefill.sink->on_prefill = [&](int64_t, int64_t) { prefill.Cancel(service.get()); };
  prefill.Submit(service.get(), request);
  const Collector::Choice& at_once = prefill.sink->Wait();
  EXPECT_EQ(at_once.end->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(prefill.sink->num_prefills(), 1);
  EXPECT_TRUE(at_once.ids.empty());

  // Scores of a prompt take passes of their own, all in one step.
  SelfCancel scoring;
  std::vector<int64_t> totals;
  scoring.sink->on_prefill = [&](int64_t done, int64_t total) {
    totals.push_back(total);
    if (done == total || totals.size() > 30) scoring.Cancel(service.get());
  };
  ServeRequest scored = request;
  scored.request.draft = "kvzip:0.3,chunk=64,window=8";
  scoring.Submit(service.get(), scored);
  EXPECT_EQ(scoring.sink->Wait().end->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(totals.size(), 19u) << "600 rows, 32 a pass, and nothing of ten chunks repeated";
  EXPECT_TRUE(scoring.sink->Wait().ids.empty());

  SelfCancel answer;
  answer.sink->on_delta = [&](const ServeDelta&) { answer.Cancel(service.get()); };
  answer.Submit(service.get(), request);
  EXPECT_EQ(answer.sink->Wait().end->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(answer.sink->num_deltas(), 1);

  SelfCancel draft;
  draft.sink->on_draft = [&](int) { draft.Cancel(service.get()); };
  draft.Submit(service.get(), request);
  const Collector::Choice& drafted = draft.sink->Wait();
  EXPECT_EQ(drafted.end->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(drafted.drafts.size(), 1u);
  EXPECT_EQ(draft.sink->num_deltas(), 1) << "the prompt's own token";

  // In a verification: the draft is whole, the pass that checks it is the next one.
  SelfCancel verification;
  int count = 0;
  verification.sink->on_draft = [&](int) {
    if (++count == 6) verification.Cancel(service.get());
  };
  verification.Submit(service.get(), request);
  EXPECT_EQ(verification.sink->Wait().end->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(verification.sink->num_deltas(), 1);

  const ServiceStats stats = service->stats();
  EXPECT_EQ(stats.cancelled, 5);
  EXPECT_EQ(stats.running + stats.waiting, 0);
}

// Case 43: queued work never starts; what runs beside it does not change; unknown ids are nothing.
TEST(ServingLimits, Case43QueuedRequestsEndUnstarted) {
  const auto alone = LoadServingEngine(ServingOptions());
  ServiceOptions options;
  options.max_running = 1;
  const auto service = StartTestService(ServingOptions(), options);
  ServeRequest request = Ask(TestPrompt(50, 3), 30);
  request.request.ignore_eos = true;
  SelfCancel queued;
  auto runs = NewSink();
  Gate queued_now;
  runs->on_prefill = [&](int64_t, int64_t) {
    queued_now.Wait();
    queued.Cancel(service.get());
  };
  ASSERT_TRUE(service->Submit(request, runs).ok());
  ServeRequest three = request;
  three.num_choices = 3;
  queued.sink = NewSink(3);
  queued.Submit(service.get(), three);
  queued_now.Open();
  for (int choice = 0; choice < 3; ++choice) {
    const Collector::Choice& got = queued.sink->Wait(choice);
    EXPECT_EQ(got.end->status.code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(got.ids.empty());
  }
  EXPECT_EQ(queued.sink->num_prefills(), 0);
  ExpectAnswer(runs->Wait(), Oracle(alone.get(), request), "beside it");
  service->Cancel(queued.id);
  service->Cancel(12345);
  auto next = NewSink();
  ASSERT_TRUE(service->Submit(request, next).ok());
  ExpectAnswer(next->Wait(), Oracle(alone.get(), request), "afterwards");
  EXPECT_EQ(service->stats().cancelled, 3);
}

// The first choice's end, whatever it is, leaves no other waiting for its prompt.
TEST(ServingLimits, Case43AllChoicesOfARequestEnd) {
  const auto service = StartTestService(ServingOptions());
  for (const bool in_prefill : {true, false}) {
    ServeRequest request = Ask(TestPrompt(50, 3), 200);
    request.request.ignore_eos = true;
    request.num_choices = 5;
    SelfCancel cancel;
    cancel.sink = NewSink(5);
    cancel.sink->on_prefill = [&](int64_t, int64_t) {
      if (in_prefill) cancel.Cancel(service.get());
    };
    cancel.sink->on_delta = [&](const ServeDelta&) { cancel.Cancel(service.get()); };
    cancel.Submit(service.get(), request);
    for (int choice = 0; choice < 5; ++choice)
      EXPECT_EQ(cancel.sink->Wait(choice).end->status.code(), absl::StatusCode::kCancelled);
  }
  EXPECT_EQ(service->stats().cancelled, 10);
}

// Case 53: what can never fit is refused alone and at once, with numbers.
TEST(ServingLimits, Case53AnImpossibleRequestFailsAlone) {
  const auto alone = LoadServingEngine(ServingOptions());
  const auto service = StartTestService(ServingOptions(400 << 10));
  std::vector<ServeRequest> requests;
  std::vector<std::shared_ptr<Collector>> sinks;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(Ask(TestPrompt(40 + 20 * i, 60 + i), 20));
    sinks.push_back(NewSink());
    ASSERT_TRUE(service->Submit(requests.back(), sinks.back()).ok());
    if (i != 2) continue;
    auto refused = NewSink();
    const auto id = service->Submit(Ask(TestPrompt(900, 7), 100000), refused);
    EXPECT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted) << id.status();
    EXPECT_NE(id.status().message().find("--kv-memory"), absl::string_view::npos) << id.status();
    EXPECT_EQ(id.status().message().find("queue"), absl::string_view::npos)
        << "nobody should try it again later";
    EXPECT_FALSE(refused->ended());
  }
  for (size_t i = 0; i < sinks.size(); ++i)
    ExpectAnswer(sinks[i]->Wait(), Oracle(alone.get(), requests[i]), std::to_string(i));
}

// Case 55: a stop in the middle of a prefill: new requests are refused, the others have a last call
// with a reason, and it returns.
TEST(ServingLimits, Case55StopEndsEverything) {
  EngineOptions options = ServingOptions(0, 8 << 20);
  options.prefill_chunk = 16;
  ServiceOptions serving;
  serving.max_running = 2;
  const auto service = StartTestService(options, serving);
  Gate in_prefill, stopping;
  std::vector<std::shared_ptr<Collector>> sinks;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(NewSink());
    if (i == 0) {
      sinks[i]->on_prefill = [&](int64_t, int64_t) {
        in_prefill.Open();
        stopping.Wait();
      };
    }
    ServeRequest request = Ask(TestPrompt(2000, 70 + i), 2000);
    request.request.ignore_eos = true;
    ASSERT_TRUE(service->Submit(request, sinks[i]).ok());
  }
  in_prefill.Wait();
  std::thread stop([&] { service->Stop(0); });
  // Refused from when the stop has begun.
  while (service->Submit(Ask({1, 2}, 1), NewSink()).ok()) std::this_thread::yield();
  const auto refused = service->Submit(Ask({1, 2}, 1), NewSink());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable) << refused.status();
  stopping.Open();
  stop.join();
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->ended()) << "Stop() returned before";
    EXPECT_EQ(sink->Wait().end->status.code(), absl::StatusCode::kCancelled);
  }
  EXPECT_LE(sinks[0]->num_prefills(), 1);
  service->Stop(0);  // once more is nothing
}

// Case 55: with time to end, answers end well; a second stop cuts the first one's patience short.
TEST(ServingLimits, Case55GraceAndASecondStop) {
  const auto alone = LoadServingEngine(ServingOptions());
  ServeRequest request = Ask(TestPrompt(60, 8), 20);
  {
    const auto service = StartTestService(ServingOptions());
    auto sink = NewSink();
    ASSERT_TRUE(service->Submit(request, sink).ok());
    service->Stop(1e9);
    ASSERT_TRUE(sink->ended());
    ExpectAnswer(sink->Wait(), Oracle(alone.get(), request), "in grace");
  }
  const auto service = StartTestService(ServingOptions());
  request.request.max_tokens = 7000;
  request.request.ignore_eos = true;
  auto sink = NewSink();
  Gate first_delta, second_stop;
  sink->on_delta = [&](const ServeDelta&) {
    first_delta.Open();
    second_stop.Wait();
  };
  ASSERT_TRUE(service->Submit(request, sink).ok());
  first_delta.Wait();
  std::thread patient([&] { service->Stop(1e9); });
  std::thread urgent([&] { service->Stop(0); });
  while (service->Submit(Ask({1, 2}, 1), NewSink()).ok()) std::this_thread::yield();
  second_stop.Open();
  patient.join();
  urgent.join();
  EXPECT_EQ(sink->Wait().end->status.code(), absl::StatusCode::kCancelled);
  // Idle, and destroyed while something runs.
  StartTestService(ServingOptions())->Stop(5);
  auto last = NewSink();
  {
    const auto dying = StartTestService(ServingOptions());
    ASSERT_TRUE(dying->Submit(request, last).ok());
  }
  EXPECT_TRUE(last->ended());
}

// Case 55: what was to be written to the prefix store when the service stopped is there, whole.
TEST(ServingLimits, Case55AStoppedServiceLeavesASoundStore) {
  EngineOptions options = ServingOptions();
  options.prefix_store = testing::TempDir() + "/serving_store";
  std::filesystem::remove_all(options.prefix_store);
  const auto alone = LoadServingEngine(ServingOptions());
  const ServeRequest request = Ask(TestPrompt(400, 12), 10);
  for (const bool again : {false, true}) {
    const auto service = StartTestService(options);
    auto sink = NewSink(), cancelled = NewSink();
    ASSERT_TRUE(service->Submit(request, sink).ok());
    ExpectAnswer(sink->Wait(), Oracle(alone.get(), request), "stored or not");
    EXPECT_EQ(sink->Wait().end->completion.usage.cached_tokens >= 320, again);
    ServeRequest endless = Ask(TestPrompt(300, 13), 7000);
    endless.request.ignore_eos = true;
    ASSERT_TRUE(service->Submit(endless, cancelled).ok());
    service->Stop(0);
    EXPECT_EQ(service->stats().prefix.damaged, 0);
    EXPECT_EQ(service->stats().prefix.store_hits > 0, again);
  }
}

// Case 56: counters and new requests do not wait for a pass that never ends.
TEST(ServingLimits, Case56NothingWaitsForAPass) {
  ServiceOptions options;
  options.max_running = 1;
  options.max_waiting = 3;
  const auto service = StartTestService(ServingOptions(), options);
  EXPECT_EQ(service->stats().since_progress_s, 0);
  Gate frozen, thaw;
  auto first = NewSink();
  first->on_prefill = [&](int64_t, int64_t) {
    frozen.Open();
    thaw.Wait();
  };
  const ServeRequest request = Ask(TestPrompt(30, 9), 4);
  ASSERT_TRUE(service->Submit(request, first).ok());
  frozen.Wait();
  auto two = NewSink(2), one = NewSink();
  ServeRequest choices = request;
  choices.num_choices = 2;
  ASSERT_TRUE(service->Submit(choices, two).ok());
  ASSERT_TRUE(service->Submit(request, one).ok());
  const auto full = service->Submit(request, NewSink());
  EXPECT_EQ(full.status().code(), absl::StatusCode::kResourceExhausted) << full.status();
  EXPECT_NE(full.status().message().find("queue is full"), absl::string_view::npos);
  ServiceStats stats = service->stats();
  EXPECT_EQ(stats.submitted, 4);
  EXPECT_EQ(stats.running + stats.waiting, 4);
  EXPECT_GT(stats.since_progress_s, 0);
  const double before = stats.since_progress_s;
  while (service->stats().since_progress_s < before + 0.02) std::this_thread::yield();
  EXPECT_TRUE(service->RenderPrompt(request.request).ok());
  thaw.Open();
  EXPECT_TRUE(first->Wait().end->status.ok());
  for (int choice = 0; choice < 2; ++choice) EXPECT_TRUE(two->Wait(choice).end->status.ok());
  EXPECT_TRUE(one->Wait().end->status.ok());
  auto again = NewSink();
  ASSERT_TRUE(service->Submit(request, again).ok());
  again->Wait();
  stats = service->stats();
  EXPECT_EQ(stats.finished, 5);
  EXPECT_EQ(stats.emitted_tokens,
            static_cast<int64_t>(first->Wait().ids.size() + two->Wait(0).ids.size() +
                                 two->Wait(1).ids.size() + one->Wait().ids.size() +
                                 again->Wait().ids.size()));
  EXPECT_EQ(stats.prompt_tokens, 4 * 30);
  EXPECT_GT(stats.num_passes, 0);
}

// A higher priority overtakes what waits; none overtakes what runs.
TEST(ServingLimits, PriorityDecidesWhoIsNext) {
  ServiceOptions options;
  options.max_running = 1;
  const auto service = StartTestService(ServingOptions(), options);
  Gate frozen, thaw;
  std::vector<int> order;
  std::vector<std::shared_ptr<Collector>> sinks;
  for (int i = 0; i < 4; ++i) {
    sinks.push_back(NewSink());
    sinks[i]->on_end = [&order, i](const ServeEnd&) { order.push_back(i); };
    if (i == 0) {
      sinks[i]->on_prefill = [&](int64_t, int64_t) {
        frozen.Open();
        thaw.Wait();
      };
    }
    ServeRequest request = Ask(TestPrompt(20, i), 2);
    request.request.priority = i == 2 ? 100 : 0;
    ASSERT_TRUE(service->Submit(request, sinks[i]).ok());
    if (i == 0) frozen.Wait();
  }
  thaw.Open();
  for (const auto& sink : sinks) sink->Wait();
  EXPECT_EQ(order, (std::vector<int>{0, 2, 1, 3}));
}

TEST(ServingLimits, SenselessOptionsAreRefused) {
  EXPECT_EQ(StartService(nullptr, {}).status().code(), absl::StatusCode::kInvalidArgument);
  for (const ServiceOptions& options :
       {ServiceOptions{0, 1, 0}, ServiceOptions{1, -1, 0}, ServiceOptions{1, 1, -1}}) {
    EXPECT_EQ(StartService(LoadServingEngine(ServingOptions()), options).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace vericache
