#include "api/service.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "api/remote_loop.h"
#include "api/warm_up.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

// How often a stop looks at the clock while verifiers or stores are waited for.
constexpr auto kStopLook = std::chrono::milliseconds(50);

}  // namespace

Service::Service(std::unique_ptr<Engine> engine, const ServiceOptions& options)
    : engine_(std::move(engine)),
      options_(options),
      loop_(
          engine_.get(), options, [this](const ServiceStats& stats) { Publish(stats); },
          [this](ServeId id) { return WantsCancel(id); },
          [this] {
            { const std::lock_guard<std::mutex> lock(mutex_); }
            wake_.notify_one();
          }),
      deadline_s_(std::numeric_limits<double>::infinity()) {
  thread_ = std::thread([this] { Run(); });
}

Service::~Service() {
  Stop(0);
  thread_.join();
}

absl::StatusOr<CompletionService::RenderedPrompt> Service::RenderPrompt(const Request& request) {
  EngineAccess::Impl& impl = *EngineAccess::Of(engine_.get());
  RenderedPrompt prompt;
  const bool messages =
      !request.messages_json.empty() && request.prompt.empty() && request.prompt_token_ids.empty();
  if (messages) {
    VC_ASSIGN_OR_RETURN(prompt.token_ids, impl.TemplateTokens(request, &prompt.text));
  } else {
    VC_ASSIGN_OR_RETURN(prompt.token_ids, impl.PromptTokens(request));
    prompt.text = request.prompt;
  }
  return prompt;
}

std::string Service::Detokenize(absl::Span<const int32_t> token_ids) const {
  return engine_->Detokenize(token_ids);
}

std::string Service::TokenBytes(int32_t id) const {
  return std::string(EngineAccess::Of(engine_.get())->tokenizer->TokenBytes(id));
}

absl::StatusOr<Receipt> Service::MakeReceipt(const Completion& completion,
                                             const SamplingOptions& sampling) {
  // The model's digest is computed once; nothing else of the engine is written.
  const std::lock_guard<std::mutex> lock(digest_mutex_);
  return engine_->MakeReceipt(completion, sampling);
}

// REQUIRES: the lock.
absl::Status Service::CheckRoom(int num_choices) const {
  if (stopping_) return absl::UnavailableError("the service is stopping: no new requests");
  const int64_t limit = static_cast<int64_t>(options_.max_running) + options_.max_waiting;
  if (num_open_ + num_choices <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("the queue is full: ", num_open_,
                                             " choices run or wait, at most ", limit,
                                             " may: try again later"));
}

absl::StatusOr<ServeId> Service::Submit(ServeRequest request, std::shared_ptr<ServeSink> sink) {
  if (sink == nullptr) return absl::InvalidArgumentError("a request needs a sink");
  const int num_choices = request.num_choices;
  ServeId id = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    VC_RETURN_IF_ERROR(CheckRoom(1));  // before the work of a rendering
    id = next_id_++;
  }
  VC_ASSIGN_OR_RETURN(ServeChoices choices,
                      loop_.MakeChoices(id, std::move(request), std::move(sink)));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    VC_RETURN_IF_ERROR(CheckRoom(num_choices));
    const double now = NowSeconds();
    ServeJob& job = *choices[0]->job;
    job.virtual_arrival_s = now - job.request.priority * Limits().aging_s;
    if (num_open_ == 0) progress_s_ = now;
    num_submitted_ += num_choices;
    num_open_ += num_choices;
    inbox_.push_back(std::move(choices));
  }
  wake_.notify_one();
  return id;
}

void Service::Cancel(ServeId id) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancels_.push_back(id);
  }
  wake_.notify_one();
}

ServiceStats Service::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  ServiceStats stats = stats_;
  stats.submitted = num_submitted_;
  stats.running = std::min(stats.running, num_open_);
  stats.waiting = num_open_ - stats.running;
  if (num_open_ > 0) stats.since_progress_s = std::max(0.0, NowSeconds() - progress_s_);
  return stats;
}

// The service's thread: before each last call of a sink and after each step.
void Service::Publish(const ServiceStats& stats) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t ended = stats.finished + stats.cancelled + stats.failed;
  num_open_ = num_submitted_ - ended;
  if (stats.num_passes != stats_.num_passes || stats.remote.replies != stats_.remote.replies)
    progress_s_ = NowSeconds();
  stats_ = stats;
}

bool Service::WantsCancel(ServeId id) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::find(cancels_.begin(), cancels_.end(), id) != cancels_.end() ||
         (stopping_ && NowSeconds() >= deadline_s_);
}

// False: there is nothing to do and nothing will come.
bool Service::TakeInbox() {
  std::vector<ServeChoices> arrived;
  std::vector<ServeId> cancels;
  bool too_late = false;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto ready = [&] {
      return loop_.ready() || !inbox_.empty() || !cancels_.empty() ||
             (stopping_ && (!loop_.has_work() || NowSeconds() >= deadline_s_));
    };
    while (!ready()) {
      if (stopping_) {
        wake_.wait_for(lock, kStopLook);
      } else {
        wake_.wait(lock);
      }
    }
    if (stopping_ && !loop_.has_work() && inbox_.empty()) return false;
    arrived.swap(inbox_);
    cancels.swap(cancels_);
    too_late = stopping_ && NowSeconds() >= deadline_s_;
  }
  for (ServeChoices& choices : arrived) loop_.Take(std::move(choices));
  for (const ServeId id : cancels) loop_.Cancel(id);
  if (too_late) loop_.CancelAll();
  return true;
}

void Service::Run() {
  while (TakeInbox()) loop_.Step();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    has_ended_ = true;
  }
  ended_.notify_all();
  // Its calls wake this thread's owner: they end before that goes.
  loop_.Close();
}

void Service::Stop(double grace_s) {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  deadline_s_ = std::min(deadline_s_, NowSeconds() + std::max(0.0, grace_s));
  wake_.notify_one();
  ended_.wait(lock, [&] { return has_ended_; });
}

absl::StatusOr<std::unique_ptr<CompletionService>> StartService(std::unique_ptr<Engine> engine,
                                                                const ServiceOptions& options) {
  if (engine == nullptr) return absl::InvalidArgumentError("a service needs an engine");
  if (options.max_running < 1)
    return absl::InvalidArgumentError(
        StrCat("max_running is ", options.max_running, ", expected 1 or more"));
  if (options.max_waiting < 0)
    return absl::InvalidArgumentError(
        StrCat("max_waiting is ", options.max_waiting, ", expected 0 or more"));
  if (!(options.max_burst_s >= 0) || options.max_burst_s > 1e9)
    return absl::InvalidArgumentError(
        StrCat("max_burst_s is ", options.max_burst_s, ", expected 0 or more"));
  for (const auto& verifier : options.verifiers)
    if (verifier == nullptr) return absl::InvalidArgumentError("a verifier is null");
  if (!options.verifiers.empty()) VC_RETURN_IF_ERROR(engine->ModelDigest().status());
  if (!(options.verifier_pause_s > 0) || options.verifier_pause_s > 1e6)
    return absl::InvalidArgumentError("verifier_pause_s must be above 0");
  VC_RETURN_IF_ERROR(CheckRemoteOptions(options.remote));
  if (options.warm_up) WarmUpOnce(EngineAccess::Of(engine.get()));
  return std::make_unique<Service>(std::move(engine), options);
}

}  // namespace vericache
