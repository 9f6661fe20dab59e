#include "api/serve_loop.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "api/completion_stats.h"
#include "base/common_tokens.h"
#include "engine/scorers.h"
#include "scheduler/step_plan.h"

namespace vericache {
namespace {

LoopOptions OptionsOf(EngineAccess::Impl* engine, const ServiceOptions& options) {
  LoopOptions loop = engine->MakeServiceLoopOptions();
  loop.on_cache_room = [engine](int64_t bytes) { engine->LimitPrefixes(bytes); };
  loop.max_running = options.max_running;
  return loop;
}

RemoteLoopOptions RemoteOptionsOf(const EngineAccess::Impl& engine, const ServiceOptions& options,
                                  std::function<void()> on_event) {
  RemoteLoopOptions loop;
  loop.remote = options.remote;
  loop.max_pass_rows = engine.options.prefill_chunk;
  // Others wait for a pass: one of provisional rows is kept to half of what a stream may pause.
  if (options.max_burst_s > 0) {
    const PassGuess pass = GuessPass(*engine.model, engine.pool->num_threads());
    const double rows = options.max_burst_s / 2 / std::max(1e-9, pass.row_s);
    loop.max_pass_rows =
        static_cast<int64_t>(std::clamp<double>(rows, 16, static_cast<double>(loop.max_pass_rows)));
  }
  loop.max_calls = options.max_running + 1;
  loop.max_burst_s = options.max_burst_s;
  loop.draft_memory = options.remote_draft_memory;
  loop.interrupts = true;
  const auto pause = std::chrono::milliseconds(
      std::max<int64_t>(1, static_cast<int64_t>(options.verifier_pause_s * 1e3)));
  loop.breaker = {1, pause, 60 * pause};
  loop.on_event = std::move(on_event);
  return loop;
}

constexpr double kPrefixStatsSeconds = 0.5;

}  // namespace

ServeLoop::ServeLoop(Engine* engine, const ServiceOptions& options,
                     std::function<void(const ServiceStats&)> publish,
                     std::function<bool(ServeId)> wants_cancel, std::function<void()> on_event)
    : engine_(engine),
      impl_(EngineAccess::Of(engine)),
      options_(options),
      publish_(std::move(publish)),
      wants_cancel_(std::move(wants_cancel)),
      on_event_(std::move(on_event)),
      logprobs_(impl_->model->kernels, impl_->model->config.vocab_size,
                impl_->tokenizer->vocab_size()),
      loop_(impl_->MakeLoopParts(), OptionsOf(impl_, options)),
      loader_(std::make_unique<PrefixLoader>(impl_->MostLoads())) {
  std::vector<RemoteVerifier*> verifiers;
  for (const auto& verifier : options_.verifiers) verifiers.push_back(verifier.get());
  if (verifiers.empty()) return;
  RemoteLoopOptions remote = RemoteOptionsOf(*impl_, options_, on_event_);
  remote.work_here = [this] { return work_here(); };
  remote_ = std::make_unique<RemoteLoop>(impl_, std::move(verifiers), std::move(remote));
}

size_t ServeLoop::num_here() const {
  return std::count_if(active_.begin(), active_.end(), [](const auto& choice) {
    return choice->remote_id == 0 && choice->load == nullptr;
  });
}

WorkHere ServeLoop::work_here() const {
  WorkHere work;
  for (const auto& choice : active_) {
    if (choice->remote_id != 0) continue;
    ++work.requests;
    work.prompt_rows += std::max<int64_t>(0, std::ssize(choice->job->prompt) - choice->prompt_done);
  }
  return work;
}

bool ServeLoop::ready() const {
  return (changed_ && !waiting_.empty()) || num_here() > 0 || HasLoaded() ||
         (remote_ != nullptr && remote_->ready());
}

absl::StatusOr<ServeChoices> ServeLoop::MakeChoices(ServeId id, ServeRequest request,
                                                    std::shared_ptr<ServeSink> sink) {
  return MakeServeJob(impl_, loop_, &logprobs_, id, std::move(request), std::move(sink));
}

void ServeLoop::Take(ServeChoices choices) {
  for (std::unique_ptr<ServeChoice>& choice : choices) {
    const double arrival_s = choice->job->virtual_arrival_s;
    const auto at = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& other) {
      return other->job->virtual_arrival_s > arrival_s;
    });
    waiting_.insert(at, std::move(choice));
  }
  changed_ = true;
}

void ServeLoop::Cancel(ServeId id) {
  for (const auto& choice : active_) {
    if (choice->job->id != id) continue;
    choice->job->cancelled = true;
    if (choice->load != nullptr) continue;
    if (choice->remote_id > 0) {
      remote_->Cancel(choice->remote_id);
    } else {
      loop_.Cancel(choice->loop_id);
    }
  }
  CancelLoads(id);
  ServeChoices ended;
  for (std::unique_ptr<ServeChoice>& choice : waiting_)
    if (choice->job->id == id) ended.push_back(std::move(choice));
  std::erase(waiting_, nullptr);
  for (std::unique_ptr<ServeChoice>& choice : ended) {
    choice->job->cancelled = true;
    EndUnstarted(std::move(choice), absl::CancelledError("cancelled"));
  }
}

void ServeLoop::CancelAll() {
  std::vector<ServeId> ids;
  for (const ServeChoices* choices : {&waiting_, &active_})
    for (const auto& choice : *choices) ids.push_back(choice->job->id);
  for (const ServeId id : ids) Cancel(id);
}

// Where there is a prefix cache, who begins like one whose prompt is being computed waits for it if
// that is sooner than both computing the same rows side by side.
bool ServeLoop::AwaitsPrompt(const ServeChoice& choice) const {
  const ServeJob& job = *choice.job;
  if (impl_->prefixes == nullptr || !job.request.use_prefix_cache || choice.index > 0) return false;
  for (const auto& other : active_) {
    if (other->answering || other->remote_id > 0 || !other->job->request.use_prefix_cache ||
        other->job->request.prefix_salt != job.request.prefix_salt)
      continue;
    const std::vector<TokenId>& theirs = other->job->prompt;
    const int64_t common = CommonTokens(theirs, job.prompt);
    const int64_t left = static_cast<int64_t>(theirs.size()) - other->prompt_done;
    if (common >= kBlockTokens && left <= static_cast<int64_t>(job.prompt.size()) + common)
      return true;
  }
  return false;
}

bool ServeLoop::MayStart(const ServeChoice& choice) const {
  if (choice.index > 0 && !choice.job->prompt_over) return false;
  return GoesToVerifier(choice) || !AwaitsPrompt(choice);
}

void ServeLoop::StartReady() {
  while (changed_) {
    changed_ = false;
    for (size_t i = 0;
         i < waiting_.size() && active_.size() < static_cast<size_t>(options_.max_running);) {
      if (!MayStart(*waiting_[i])) {
        ++i;
        continue;
      }
      std::unique_ptr<ServeChoice> choice = std::move(waiting_[i]);
      waiting_.erase(waiting_.begin() + i);
      Start(std::move(choice));
    }
  }
}

// With what choice 0 has computed. False: the prefix cache is to be asked.
bool ServeLoop::BeginWithPrompt(ServeChoice* choice) {
  ServeJob& job = *choice->job;
  Sequence* s = choice->sequence.get();
  if (choice->index == 0 || !job.full.has_value()) return false;
  s->full = job.full->Fork();
  if (job.draft.has_value()) s->draft.emplace(job.draft->Copy());
  if (job.scores != nullptr && !HasScores(*s)) SetScores(s, job.scores);
  choice->known_tokens = choice->prompt_done = s->full.num_tokens();
  return true;
}

void ServeLoop::ChoiceBegins(ServeJob* job) {
  if (--job->choices_to_start > 0) return;
  job->full.reset();
  job->draft.reset();
  job->scores.reset();
}

LoopHooks ServeLoop::MakeHooks(ServeChoice* choice) {
  LoopHooks hooks;
  // A chunk's end, or a part of the scores that a spec wants, which take more than one pass.
  hooks.on_prefill = [this, choice](int64_t done, int64_t total) {
    choice->prompt_done = done;
    // One that answers computes it again: after a preemption, or a verifier began the answer.
    if (!choice->answering && choice->index == 0) choice->stream->SendPrefill(done, total);
    return !wants_cancel_(choice->job->id);
  };
  hooks.on_step = [this, choice](const Sequence& s) { return OnStep(choice, s); };
  hooks.on_end = [this, choice](std::unique_ptr<Sequence> s, const RequestTimes& times) {
    // Rows computed before a user gave up hold all the same: the next try goes on from them.
    if (absl::IsCancelled(s->error)) s->finish = FinishReason::kNone;
    RequestTimes all = times;
    AddWait(choice->load_s, &all);
    OnEnd(choice, *s, all);
  };
  return hooks;
}

void ServeLoop::Start(std::unique_ptr<ServeChoice> choice) {
  if (GoesToVerifier(*choice)) return StartRemote(std::move(choice));
  const bool begun = BeginWithPrompt(choice.get());
  ChoiceBegins(choice->job.get());
  active_.push_back(std::move(choice));
  if (begun) return AddHere(active_.back().get());
  FindPrefix(active_.back().get());
}

void ServeLoop::AddHere(ServeChoice* choice) {
  const ServeJob& job = *choice->job;
  const absl::StatusOr<RequestId> id =
      loop_.Add(std::move(choice->sequence), job.sizes, MakeHooks(choice), job.request.priority,
                options_.max_burst_s);
  if (!id.ok()) return EndUnstarted(Release(choice), id.status());
  choice->loop_id = *id;
}

void ServeLoop::Step() {
  TakeLoaded();
  StartReady();
  if (remote_ != nullptr) remote_->Step();
  if (num_here() > 0) loop_.Step();
  if (NowSeconds() - prefix_stats_s_ > kPrefixStatsSeconds || !has_work()) RefreshPrefixStats();
  Publish();
}

bool ServeLoop::OnStep(ServeChoice* choice, const Sequence& s) {
  if (!choice->answering && s.num_emitted() > 0) {
    choice->answering = true;
    impl_->KeepPrefix(choice->job->request, s, choice->known_tokens);
    PromptIsOver(choice, s);
  }
  DescribeChoice(loop_.LastChoice(choice->loop_id), &choice->choice_stats);
  Count(choice, s);
  choice->stream->SendDelta();
  return true;
}

void ServeLoop::PromptIsOver(ServeChoice* choice, const Sequence& s) {
  changed_ = true;
  ServeJob& job = *choice->job;
  if (choice->index > 0 || job.prompt_over) return;
  job.prompt_over = true;
  if (job.choices_to_start > 0 && !job.cancelled && s.finish != FinishReason::kError)
    LendPrompt(&job, s);
}

// The rows of the prompt for the other choices; they compute the last one, whose logits each
// chooses its own first token by. A spec that asks the newest queries gets them computed again,
// unless the draft KV of the prompt can be lent as well.
void ServeLoop::LendPrompt(ServeJob* job, const Sequence& s) {
  const bool has_draft =
      impl_->tier == nullptr && s.draft.has_value() && s.draft->num_tokens() == s.num_prompt;
  const int64_t again =
      s.spec.uses_queries() && !has_draft ? std::max(1, QueryRowsWanted(s.spec)) : 1;
  const int64_t lent = std::min(s.num_prompt - again, s.full.num_tokens());
  if (lent <= 0) return;
  FullKv full = s.full.Fork(lent);
  if (impl_->tier != nullptr) {
    // Nobody's budget has these blocks. Without room on the disk each choice computes its own.
    full.set_hot_blocks(0);
    if (!full.Spill().ok()) return;
  }
  job->full.emplace(std::move(full));
  if (has_draft) job->draft.emplace(s.draft->Copy());
  job->scores = s.scores;
}

void ServeLoop::Count(ServeChoice* choice, const Sequence& s) {
  stats_.emitted_tokens += s.num_emitted() - choice->emitted_counted;
  choice->emitted_counted = s.num_emitted();
  for (; choice->rounds_counted < s.rounds.size(); ++choice->rounds_counted) {
    stats_.drafted_tokens += s.rounds[choice->rounds_counted].drafted;
    stats_.accepted_tokens += s.rounds[choice->rounds_counted].accepted;
  }
}

std::unique_ptr<ServeChoice> ServeLoop::Release(ServeChoice* choice) {
  const auto at = std::find_if(active_.begin(), active_.end(),
                               [&](const auto& other) { return other.get() == choice; });
  std::unique_ptr<ServeChoice> released = std::move(*at);
  active_.erase(at);
  return released;
}

void ServeLoop::OnEnd(ServeChoice* running, const Sequence& s, const RequestTimes& times) {
  const std::unique_ptr<ServeChoice> choice = Release(running);
  const ServeJob& job = *choice->job;
  Count(choice.get(), s);
  PromptIsOver(choice.get(), s);
  const bool kept_prompt = choice->answering && !choice->handed_over;
  if (choice->remote_id == 0)
    impl_->KeepPrefix(job.request, s, kept_prompt ? s.num_prompt : choice->known_tokens);
  ServeEnd end;
  if (s.finish == FinishReason::kError) {
    end.status = s.error;
  } else if (!s.done()) {
    end.status = absl::CancelledError("cancelled");
  }
  if (end.status.ok()) {
    choice->stream->Finish();
  } else {
    choice->stream->SendDelta();
  }
  end.completion = impl_->Finish(s, job.cached_tokens, times.prefill_s);
  Completion& completion = end.completion;
  completion.text = choice->stream->text();
  end.stop_string = choice->stream->stop();
  if (choice->stream->stopped() && end.status.ok())
    completion.finish_reason = FinishName(FinishReason::kStop);
  completion.stats.times = times;
  CountRounds(s, &choice->choice_stats);
  completion.stats.choice = choice->choice_stats;
  const StreamTotals& totals = s.full.stream_totals();
  KvMemoryStats& memory = completion.stats.memory;
  memory.budget_bytes = impl_->options.kv_memory;
  memory.spilled_bytes = s.full.num_cold_blocks() * s.full.block_bytes();
  memory.streamed_bytes = totals.bytes;
  memory.stream_s = static_cast<double>(totals.transfer_ns) * 1e-9;
  memory.stream_wait_s = static_cast<double>(totals.wait_ns) * 1e-9;
  if (choice->remote_id > 0)
    completion.stats.full_bytes =
        impl_->model->config.kv_shape().bytes_per_token() * (s.tokens.size() - 1);
  completion.stats.remote = std::move(choice->remote);
  if (choice->handed_over && !job.request.ignore_eos)
    remote_->ObserveAnswer(s.num_emitted(), s.finish == FinishReason::kStop);
  if (choice->handed_over)
    completion.stats.remote.local_tokens = s.num_emitted() - completion.stats.remote.remote_tokens;
  if (choice->index == 0 && (s.full.num_tokens() >= s.num_prompt || s.num_emitted() > 0))
    stats_.prompt_tokens += s.num_prompt;
  SendEnd(choice.get(), std::move(end));
}

void ServeLoop::EndUnstarted(std::unique_ptr<ServeChoice> choice, absl::Status status) {
  changed_ = true;
  if (choice->index == 0) choice->job->prompt_over = true;
  ServeEnd end;
  end.status = std::move(status);
  end.completion.finish_reason = FinishName(FinishReason::kNone);
  end.completion.prompt_token_ids = choice->job->prompt;
  end.completion.usage.prompt_tokens = static_cast<int64_t>(choice->job->prompt.size());
  SendEnd(choice.get(), std::move(end));
}

void ServeLoop::SendEnd(ServeChoice* choice, ServeEnd end) {
  if (end.status.ok()) {
    ++stats_.finished;
  } else {
    ++(absl::IsCancelled(end.status) ? stats_.cancelled : stats_.failed);
  }
  Publish();
  choice->stream->SendEnd(std::move(end));
}

void ServeLoop::RefreshPrefixStats() {
  if (impl_->prefixes == nullptr) return;
  prefix_stats_s_ = NowSeconds();
  stats_.prefix = engine_->prefix_stats();
}

void ServeLoop::Publish() {
  // A store's folder is not listed each time.
  if (impl_->options.prefix_store.empty()) RefreshPrefixStats();
  const BatchReport& report = loop_.report();
  stats_.running = static_cast<int64_t>(active_.size());
  stats_.num_passes = report.num_passes;
  stats_.preempted = report.num_preempted;
  stats_.pass_s = report.pass_s;
  stats_.stall_s = report.stall_s;
  stats_.fetched_bytes = report.fetched_bytes;
  const KvBytes bytes = loop_.kv_bytes();
  stats_.kv_ram_bytes = bytes.ram;
  stats_.kv_spilled_bytes = bytes.spilled;
  PublishRemote();
  publish_(stats_);
}

}  // namespace vericache
