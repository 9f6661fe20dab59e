// A verifier under a KV budget, staggered and in lock-step: answers a second, and how much of the
// time of reading spilled K/V passes did not wait for.
//
//   verifier_bench MODEL.gguf FOLDER [SESSIONS [PROMPT_TOKENS [BUDGET_MIB [THINK_MS [REPEATS]]]]]
//
// All sessions share a prefix and ask at once; each thinks THINK_MS (the serving node's draft and
// the way there and back) before a question of 16 drafted tokens, one of which is wrong. Spilled
// K/V are read at 1 GB a second at most. BUDGET_MIB: a quarter of all K/V. FOLDER is emptied.
// Every answer is compared with that of full KV in RAM.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "api/verifier_host.h"
#include "base/check.h"

namespace vericache {
namespace {

constexpr int64_t kSuffixTokens = 32, kAnswerTokens = 65;
constexpr int kDrafted = 16, kRunLength = 9;
constexpr uint64_t kReadLimit = 1000000000;

struct Bench {
  EngineOptions options;
  int sessions = 8, repeats = 3;
  int64_t prompt_tokens = 4096;
  uint64_t budget = 0;
  int think_ms = 30;
  RemoteIdentity identity;
  std::vector<Request> requests;
  std::vector<Completion> want;

  std::unique_ptr<Engine> Load(uint64_t kv_memory) const {
    EngineOptions with = options;
    with.kv_memory = kv_memory;
    with.kv_read_limit = kv_memory > 0 ? kReadLimit : 0;
    auto engine = Engine::Load(with);
    if (!engine.ok()) std::fprintf(stderr, "%s\n", std::string(engine.status().message()).c_str());
    VC_CHECK(engine.ok());
    return *std::move(engine);
  }

  void Prepare() {
    const std::unique_ptr<Engine> engine = Load(0);
    VC_CHECK(engine->ModelDigest().ok());
    identity = RemoteIdentityOf(*EngineAccess::Of(engine.get()));
    uint64_t state = 1, tokens = 0;
    const auto next = [&state] {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return static_cast<int32_t>((state >> 33) % 20000) + 100;
    };
    std::vector<int32_t> prefix;
    for (int64_t i = 0; i < prompt_tokens - kSuffixTokens; ++i) prefix.push_back(next());
    for (int i = 0; i < sessions; ++i) {
      Request request;
      request.prompt_token_ids = prefix;
      for (int64_t k = 0; k < kSuffixTokens; ++k) request.prompt_token_ids.push_back(next());
      request.max_tokens = kAnswerTokens;
      request.ignore_eos = true;
      request.draft = "off";
      const auto answer = engine->Generate(request);
      VC_CHECK(answer.ok());
      want.push_back(*answer);
      tokens += request.prompt_token_ids.size() + request.max_tokens;
      requests.push_back(std::move(request));
    }
    engine->WaitForPrefixWrites();
    if (budget == 0) budget = tokens * engine->info().kv_bytes_per_token / 4;
  }

  std::string Open(int i, VerifierHost* host) const {
    RemoteOpen open;
    open.identity = identity;
    open.prompt_ids = requests[i].prompt_token_ids;
    open.max_tokens = requests[i].max_tokens;
    open.ignore_eos = true;
    const auto name = host->Open(open);
    if (!name.ok()) std::fprintf(stderr, "%s\n", std::string(name.status().message()).c_str());
    VC_CHECK(name.ok());
    return *name;
  }

  // One question more: the first `known` tokens of the answer are there.
  int64_t AskOnce(int i, const std::string& name, int64_t known, int drafted,
                  VerifierHost* host) const {
    const std::vector<int32_t>& ids = want[i].token_ids;
    RemoteVerify question;
    question.session = name;
    question.num_known = known;
    const int64_t length = std::min<int64_t>(drafted, std::ssize(ids) - known);
    question.drafted.assign(ids.begin() + known, ids.begin() + known + length);
    if (length > kRunLength) question.drafted[kRunLength] ^= 1;
    for (;;) {
      const auto reply = host->Verify(question);
      VC_CHECK(reply.ok());
      if (!reply->ready) continue;
      for (const int32_t id : reply->emitted) VC_CHECK(id == ids[known++]);
      return known;
    }
  }

  double Run(bool lock_step, VerifierStats* stats) const {
    VerifierOptions verifier;
    verifier.lock_step = lock_step;
    auto host = StartVerifier(Load(budget), verifier);
    VC_CHECK(host.ok());
    std::vector<std::string> names;
    for (int i = 0; i < sessions; ++i) names.push_back(Open(i, host->get()));
    // Prompts are not what is measured.
    std::vector<int64_t> known;
    for (int i = 0; i < sessions; ++i) known.push_back(AskOnce(i, names[i], 0, 0, host->get()));
    const VerifierStats before = (*host)->stats();
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> clients;
    for (int i = 0; i < sessions; ++i)
      clients.emplace_back([&, i] {
        while (known[i] < kAnswerTokens) {
          std::this_thread::sleep_for(std::chrono::milliseconds(think_ms));
          known[i] = AskOnce(i, names[i], known[i], kDrafted, host->get());
        }
      });
    for (std::thread& client : clients) client.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    *stats = (*host)->stats();
    stats->passes -= before.passes;
    stats->pass_s -= before.pass_s;
    stats->stall_s -= before.stall_s;
    stats->fetch_s -= before.fetch_s;
    stats->fetched_bytes -= before.fetched_bytes;
    return seconds.count();
  }
};

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr,
                 "verifier_bench MODEL.gguf FOLDER [SESSIONS [PROMPT_TOKENS [BUDGET_MIB "
                 "[THINK_MS [REPEATS]]]]]\n");
    return 2;
  }
  const auto number = [&](int i, int64_t otherwise) {
    return i < argc ? std::max<int64_t>(1, std::atoll(argv[i])) : otherwise;
  };
  Bench bench;
  std::filesystem::remove_all(argv[2]);
  std::filesystem::create_directories(argv[2]);
  bench.options.model_path = argv[1];
  bench.options.num_threads = 2;
  bench.options.kv_dir = argv[2];
  bench.options.prefix_store = std::string(argv[2]) + "/store";
  bench.sessions = static_cast<int>(number(3, 8));
  bench.prompt_tokens = std::max(number(4, 4096), 2 * kSuffixTokens);
  bench.budget = argc > 5 ? static_cast<uint64_t>(number(5, 1)) << 20 : 0;
  bench.think_ms = static_cast<int>(number(6, 30));
  bench.repeats = static_cast<int>(number(7, 3));
  bench.Prepare();
  std::printf("%d sessions of %lld tokens, budget %.1f MiB, think %d ms\n", bench.sessions,
              static_cast<long long>(bench.prompt_tokens),
              static_cast<double>(bench.budget) / (1 << 20), bench.think_ms);
  // The two take turns.
  for (int repeat = 0; repeat < bench.repeats; ++repeat)
    for (const bool lock_step : {repeat % 2 == 1, repeat % 2 == 0}) {
      VerifierStats stats;
      const double seconds = bench.Run(lock_step, &stats);
      std::printf(
          "%-10s %6.2f s %6.2f answers/s %5lld passes of %5.1f ms, read %7.1f MiB in %6.2f "
          "s, waited %6.2f s, hidden %5.1f %%\n",
          lock_step ? "lock-step" : "staggered", seconds, bench.sessions / seconds,
          static_cast<long long>(stats.passes),
          1e3 * stats.pass_s / static_cast<double>(std::max<int64_t>(1, stats.passes)),
          static_cast<double>(stats.fetched_bytes) / (1 << 20), stats.fetch_s, stats.stall_s,
          100 * (1 - stats.stall_s / std::max(1e-9, stats.fetch_s)));
      std::fflush(stdout);
    }
  return 0;
}

}  // namespace
}  // namespace vericache

int main(int argc, char** argv) { return vericache::Main(argc, argv); }
