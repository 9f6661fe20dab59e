// A sink that collects, and tiny models, for tests of the service.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/mixed_requests.h"
#include "vericache/engine.h"
#include "vericache/serving.h"

namespace vericache {

// Keeps all that a sink is told and checks the order of calls. THREADS: safe.
class Collector : public ServeSink {
 public:
  struct Choice {
    std::string text;
    std::vector<int32_t> ids;
    std::vector<PositionLogprobs> logprobs;
    std::vector<std::string> drafts;
    std::optional<ServeEnd> end;
  };
  explicit Collector(int num_choices = 1) : choices_(num_choices) {}

  // Called from the service's thread, without a lock, after the call was noted. May be empty.
  std::function<void(const ServeDelta&)> on_delta;
  std::function<void(int64_t done, int64_t total)> on_prefill;
  std::function<void(int choice)> on_draft;
  std::function<void(const ServeEnd&)> on_end;

  void OnDelta(const ServeDelta& delta) override;
  void OnEnd(ServeEnd end) override;
  void OnDraft(int choice, std::string_view text) override;
  void OnPrefill(int64_t done, int64_t total) override;

  // Returns when the choice has ended.
  const Choice& Wait(int choice = 0);
  bool ended(int choice = 0);
  int64_t num_prefills();
  int64_t num_deltas();

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  std::vector<Choice> choices_;
  int64_t num_prefills_ = 0, num_deltas_ = 0;
};

// One thread waits, another opens.
class Gate {
 public:
  void Open();
  void Wait();

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

inline constexpr char kServingModel[] = "tests/golden/model/qwen2_untied.gguf";
// Open blocks, staging and a rebuild's layer of this model, whatever the requests.
inline constexpr uint64_t kLeastBudget = 640 << 10;

EngineOptions ServingOptions(uint64_t kv_memory = 0, uint64_t prefix_memory = 0);
std::unique_ptr<Engine> LoadServingEngine(const EngineOptions& options);
std::unique_ptr<CompletionService> StartTestService(const EngineOptions& options,
                                                    const ServiceOptions& service = {});

ServeRequest Ask(std::vector<int32_t> prompt, int64_t max_tokens);

// What the answer to `request` must be: Engine::Generate() token by token, up to the first stop
// string. The text of `stop` must not hold U+FFFD.
struct Expected {
  std::vector<int32_t> ids;
  std::string text, finish_reason, stop_string, logits_hash;
};
Expected Oracle(Engine* engine, const ServeRequest& request, int choice = 0);
void ExpectAnswer(const Collector::Choice& got, const Expected& want, const std::string& what);
// Piece of `text` of about `size` bytes at about `at`, whole characters without U+FFFD; "" if there
// is none.
std::string PieceOf(const std::string& text, size_t at, size_t size);

bool SameLogprobs(const std::vector<PositionLogprobs>& a, const std::vector<PositionLogprobs>& b);

// Copies of the model: with a chat template; with a NaN in the embedding of one token.
std::string ModelWithTemplate(const std::string& source, const std::string& name);
std::string ModelWithBadToken(int32_t token, const std::string& name);

}  // namespace vericache
