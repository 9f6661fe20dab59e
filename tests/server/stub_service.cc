// Members of the script:
//   context, max_running, max_waiting, pool (tokens; 0: no limit), generation_prompt,
//   refuse_system (template), template_without_tools, freeze_file (while it exists nothing moves)
//   rules: [{match: "text in the prompt", tokens: ["a", [226, 130], ...], run: 1, delay_ms: 0,
//            chunk: 512, chunk_ms: 0, nan_at: -1, draft: false, repeat: 1}, ...]
// The first rule that matches counts; "" matches all. A pass emits `run` tokens after `delay_ms`,
// or computes `chunk` tokens of the prompt in `chunk_ms`. At token `nan_at` the request fails.
#include "tests/server/stub_service.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace vericache {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr int32_t kEos = 0;
constexpr int64_t kVocabSize = 1000000;

// Texts and their ids, given out as they come.
class Vocab {
 public:
  Vocab() { IdOf("<eos>"); }
  int32_t IdOf(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto [it, is_new] = ids_.emplace(text, static_cast<int32_t>(texts_.size()));
    if (is_new) texts_.push_back(text);
    return it->second;
  }
  std::string TextOf(int32_t id) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return id >= 0 && id < static_cast<int32_t>(texts_.size()) ? texts_[id] : "";
  }
  // Words with the blank before them.
  std::vector<int32_t> Encode(const std::string& text) {
    std::vector<int32_t> ids;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(' ', begin + 1), text.size());
      ids.push_back(IdOf(text.substr(begin, end - begin)));
      begin = end;
    }
    return ids;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int32_t> ids_;
  std::vector<std::string> texts_;
};

size_t IncompleteUtf8(const std::string& text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto c = static_cast<unsigned char>(text[text.size() - back]);
    if (c < 0x80) return 0;
    if (c >= 0xC0) {
      const size_t wanted = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
      return wanted > back ? back : 0;
    }
  }
  return 0;
}

// What can be told of a growing text: cut at stop strings, held back where one may have begun.
class StopWatch {
 public:
  explicit StopWatch(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Adds a token's text; true if a stop string is whole.
  bool Push(const std::string& text) {
    all_ += text;
    for (const std::string& stop : stops_) {
      const size_t at = all_.find(stop, told_);
      if (at != all_.npos && (stop_.empty() || at + stop.size() < cut_ + stop_.size())) {
        cut_ = at;
        stop_ = stop;
      }
    }
    return !stop_.empty();
  }
  std::string Take(bool last) {
    size_t end = all_.size();
    if (!stop_.empty()) {
      end = cut_;
    } else if (!last) {
      end -= IncompleteUtf8(all_);
      size_t held = 0;
      for (const std::string& stop : stops_)
        for (size_t n = 1; n < stop.size() && n <= end - told_; ++n)
          if (all_.compare(end - n, n, stop, 0, n) == 0) held = std::max(held, n);
      end -= held;
    }
    const std::string text = all_.substr(told_, end - told_);
    told_ = end;
    return text;
  }
  const std::string& stop() const { return stop_; }
  std::string told() const { return all_.substr(0, told_); }

 private:
  std::vector<std::string> stops_;
  std::string all_, stop_;
  size_t told_ = 0, cut_ = 0;
};

struct Job {
  ServeId id = 0;
  int choice = 0;
  ServeRequest request;
  std::shared_ptr<ServeSink> sink;
  std::vector<int32_t> prompt, script;
  Json rule;
  int64_t prefilled = 0;
  std::vector<int32_t> emitted;
  std::vector<RoundRecord> rounds;
  StopWatch text{{}};
  Clock::time_point ready;
  bool cancelled = false;
};

class StubService : public CompletionService {
 public:
  explicit StubService(const nlohmann::json& script) : script_(script) {
    info_.path = "/models/stub.gguf";
    info_.name = "stub";
    info_.architecture = "stub";
    info_.context_length = script_.value("context", 4096);
    info_.vocab_size = kVocabSize;
    info_.has_chat_template = true;
    thread_ = std::thread([this] { Loop(); });
  }
  ~StubService() override { Stop(0); }

  const ModelInfo& info() const override { return info_; }

  absl::StatusOr<RenderedPrompt> RenderPrompt(const Request& request) override {
    RenderedPrompt rendered;
    if (!request.prompt_token_ids.empty()) {
      rendered.token_ids = request.prompt_token_ids;
      return rendered;
    }
    rendered.text = request.prompt;
    if (!request.messages_json.empty()) {
      const absl::Status status = RenderChat(request, &rendered.text);
      if (!status.ok()) return status;
    }
    rendered.token_ids = vocab_.Encode(rendered.text);
    return rendered;
  }
  std::string Detokenize(absl::Span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text += vocab_.TextOf(id);
    return text;
  }
  std::string TokenBytes(int32_t id) const override { return vocab_.TextOf(id); }

  absl::StatusOr<ServeId> Submit(ServeRequest request, std::shared_ptr<ServeSink> sink) override {
    const absl::StatusOr<RenderedPrompt> prompt = RenderPrompt(request.request);
    if (!prompt.ok()) return prompt.status();
    const int64_t num_prompt = static_cast<int64_t>(prompt->token_ids.size());
    if (num_prompt >= info_.context_length)
      return absl::OutOfRangeError("the prompt has " + std::to_string(num_prompt) +
                                   " tokens and leaves no room in a context of " +
                                   std::to_string(info_.context_length));
    const int64_t pool = script_.value("pool", 0);
    const int64_t needed = num_prompt + request.request.max_tokens;
    if (pool > 0 && needed > pool)
      return absl::ResourceExhaustedError("needs K/V of " + std::to_string(needed) +
                                          " tokens, there is room for " + std::to_string(pool));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return absl::UnavailableError("the server is stopping");
    if (static_cast<int>(waiting_.size()) + request.num_choices >
        script_.value("max_waiting", 1024))
      return absl::ResourceExhaustedError("the queue is full");
    const ServeId id = ++last_id_;
    for (int i = 0; i < request.num_choices; ++i) {
      auto job = std::make_shared<Job>();
      job->id = id;
      job->choice = i;
      job->request = request;
      job->request.request.max_tokens =
          std::min(request.request.max_tokens, info_.context_length - num_prompt);
      job->sink = sink;
      job->prompt = prompt->token_ids;
      job->text = StopWatch(request.stop);
      ChooseRule(job.get());
      waiting_.push_back(std::move(job));
      ++stats_.submitted;
    }
    wake_.notify_all();
    return id;
  }

  void Cancel(ServeId id) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto* jobs : {&waiting_, &running_})
      for (const auto& job : *jobs)
        if (job->id == id) job->cancelled = true;
    wake_.notify_all();
  }

  ServiceStats stats() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ServiceStats stats = stats_;
    stats.remote.ways = {{"remote", 0}};  // as a service with a verifier begins
    stats.waiting = static_cast<int64_t>(waiting_.size());
    stats.running = static_cast<int64_t>(running_.size());
    if (!waiting_.empty() || !running_.empty())
      stats.since_progress_s = std::chrono::duration<double>(Clock::now() - last_progress_).count();
    return stats;
  }

  absl::StatusOr<Receipt> MakeReceipt(const Completion& completion,
                                      const SamplingOptions& sampling) override {
    Receipt receipt;
    receipt.model_name = "stub.gguf";
    receipt.token_ids = completion.token_ids;
    receipt.sampling = sampling;
    return receipt;
  }

  void Stop(double grace_s) override {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      stopping_ = true;
      wake_.notify_all();
      wake_.wait_for(lock, std::chrono::duration<double>(grace_s),
                     [this] { return waiting_.empty() && running_.empty(); });
      for (const auto* jobs : {&waiting_, &running_})
        for (const auto& job : *jobs) job->cancelled = true;
      wake_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  absl::Status RenderChat(const Request& request, std::string* text) {
    const Json messages = Json::parse(request.messages_json);
    if (!request.tools_json.empty() && !script_.value("template_without_tools", false))
      *text += "tools " + request.tools_json + " ";
    for (const Json& message : messages) {
      if (message["role"] == "system" && script_.value("refuse_system", false))
        return absl::InvalidArgumentError("System role not supported");
      *text += message["role"].get<std::string>() + ": " + message["content"].get<std::string>();
      if (message.contains("tool_calls")) *text += message["tool_calls"].dump();
      *text += "\n";
    }
    *text += script_.value("generation_prompt", "assistant:\n");
    const Json kwargs =
        Json::parse(request.template_kwargs_json.empty() ? "{}" : request.template_kwargs_json);
    if (!kwargs.value("enable_thinking", true)) *text += "<think>\n\n</think>\n\n";
    return absl::OkStatus();
  }

  void ChooseRule(Job* job) {
    const std::string prompt = Detokenize(job->prompt);
    for (const auto& rule : script_["rules"]) {
      if (prompt.find(rule.value("match", "")) == prompt.npos) continue;
      job->rule = rule;
      break;
    }
    for (int i = 0; i < job->rule.value("repeat", 1); ++i)
      for (const Json& token : job->rule["tokens"]) {
        std::string text;
        if (token.is_string()) {
          text = token.get<std::string>();
        } else {
          for (const Json& byte : token) text += static_cast<char>(byte.get<int>());
        }
        job->script.push_back(vocab_.IdOf(text));
      }
    job->script.push_back(kEos);
  }

  bool Frozen() const {
    const std::string file = script_.value("freeze_file", "");
    return !file.empty() && access(file.c_str(), F_OK) == 0;
  }

  void Loop() {
    for (;;) {
      std::vector<std::shared_ptr<Job>> jobs, ended;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (waiting_.empty() && running_.empty()) {
          if (stopping_) return;
          wake_.wait(lock);
          last_progress_ = Clock::now();
          continue;
        }
        for (auto it = waiting_.begin(); it != waiting_.end();) {
          const bool admit = static_cast<int>(running_.size()) < script_.value("max_running", 64);
          if ((*it)->cancelled) {
            ended.push_back(*it);
            it = waiting_.erase(it);
          } else if (admit) {
            (*it)->ready = Clock::now() + std::chrono::milliseconds(StepMs(**it));
            running_.push_back(*it);
            it = waiting_.erase(it);
          } else {
            break;
          }
        }
        jobs.assign(running_.begin(), running_.end());
      }
      for (const auto& job : ended) End(job.get(), absl::CancelledError("cancelled"), "");
      for (const auto& job : jobs)
        if (Step(job.get())) {
          const std::lock_guard<std::mutex> lock(mutex_);
          running_.erase(std::find(running_.begin(), running_.end(), job));
        }
      wake_.notify_all();
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  }

  static int StepMs(const Job& job) {
    const bool prefill = job.prefilled < static_cast<int64_t>(job.prompt.size());
    return prefill ? job.rule.value("chunk_ms", 0) : job.rule.value("delay_ms", 0);
  }

  // One pass of a job; true if it has ended.
  bool Step(Job* job) {
    bool cancelled = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      cancelled = job->cancelled;
    }
    if (cancelled) return End(job, absl::CancelledError("cancelled"), "");
    if (Frozen() || Clock::now() < job->ready) return false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      last_progress_ = Clock::now();
      ++stats_.num_passes;
    }
    const int64_t num_prompt = static_cast<int64_t>(job->prompt.size());
    bool ended = false;
    if (job->prefilled < num_prompt) {
      job->prefilled =
          std::min<int64_t>(num_prompt, job->prefilled + job->rule.value("chunk", 512));
      job->sink->OnPrefill(job->prefilled, num_prompt);
      if (job->prefilled == num_prompt && job->request.request.max_tokens == 0)
        ended = End(job, absl::OkStatus(), "length");
    } else {
      ended = Emit(job);
    }
    job->ready = Clock::now() + std::chrono::milliseconds(StepMs(*job));
    return ended;
  }

  PositionLogprobs LogprobsOf(const Job& job, int32_t id, int64_t position) {
    PositionLogprobs logprobs;
    logprobs.chosen = {id, -0.1F - 0.25F * static_cast<float>(position)};
    for (int i = 0; i < job.request.top_logprobs; ++i)
      logprobs.top.push_back(i == 0 ? logprobs.chosen
                                    : TokenLogprob{vocab_.IdOf("other" + std::to_string(i)),
                                                   -20.0F - static_cast<float>(i)});
    return logprobs;
  }

  bool Emit(Job* job) {
    const int run = job->rule.value("run", 1);
    if (job->request.drafts) {
      std::string draft;
      for (int i = 0; i < run && job->emitted.size() + i + 1 < job->script.size(); ++i)
        draft += vocab_.TextOf(job->script[job->emitted.size() + i]);
      job->sink->OnDraft(job->choice, draft);
    }
    std::vector<int32_t> ids;
    std::vector<PositionLogprobs> logprobs;
    std::string finish;
    for (int i = 0; i < run && finish.empty(); ++i) {
      const int64_t position = static_cast<int64_t>(job->emitted.size());
      if (job->rule.value("nan_at", -1) == position)
        return End(job, absl::DataLossError("the logits are not finite"), "");
      const int32_t id = job->script[position];
      job->emitted.push_back(id);
      ids.push_back(id);
      if (job->request.logprobs) logprobs.push_back(LogprobsOf(*job, id, position));
      if (id != kEos && job->text.Push(vocab_.TextOf(id))) finish = "stop";
      if (id == kEos) finish = "stop";
      if (finish.empty() &&
          static_cast<int64_t>(job->emitted.size()) >= job->request.request.max_tokens)
        finish = "length";
    }
    RoundRecord round;
    round.drafted = run - 1;
    round.emitted = static_cast<int>(ids.size());
    round.accepted = round.emitted - 1;
    round.mode = run > 1 ? "draft-kv" : "plain";
    job->rounds.push_back(round);
    const std::string text = job->text.Take(!finish.empty());
    job->sink->OnDelta({job->choice, text, ids, logprobs});
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stats_.emitted_tokens += static_cast<int64_t>(ids.size());
    }
    return !finish.empty() && End(job, absl::OkStatus(), finish);
  }

  bool End(Job* job, const absl::Status& status, const std::string& finish) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++(status.ok()                                     ? stats_.finished
         : status.code() == absl::StatusCode::kCancelled ? stats_.cancelled
                                                         : stats_.failed);
    }
    ServeEnd end;
    end.choice = job->choice;
    end.status = status;
    end.stop_string = job->text.stop();
    Completion* c = &end.completion;
    c->text = job->text.told();
    c->token_ids = job->emitted;
    c->finish_reason = finish;
    c->prompt_token_ids = job->prompt;
    c->usage.prompt_tokens = static_cast<int64_t>(job->prompt.size());
    c->usage.completion_tokens = static_cast<int64_t>(job->emitted.size());
    c->stats.kept_fraction = 1;
    c->stats.records = job->rounds;
    c->stats.rounds = static_cast<int64_t>(job->rounds.size());
    for (const RoundRecord& round : job->rounds) {
      c->stats.drafted += round.drafted;
      c->stats.accepted += round.accepted;
      c->stats.mean_run_length += round.emitted / static_cast<double>(c->stats.rounds);
    }
    if (job->request.prompt_logprobs && job->choice == 0)
      for (size_t i = 1; i < job->prompt.size(); ++i)
        end.prompt_logprobs.push_back(LogprobsOf(*job, job->prompt[i], static_cast<int64_t>(i)));
    job->sink->OnEnd(std::move(end));
    return true;
  }

  const nlohmann::json script_;
  ModelInfo info_;
  Vocab vocab_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Job>> waiting_, running_;
  ServiceStats stats_;
  Clock::time_point last_progress_ = Clock::now();
  ServeId last_id_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<CompletionService> MakeStubService(const nlohmann::json& script) {
  return std::make_shared<StubService>(script);
}

}  // namespace vericache
