// Completions by the request loop: one of them, or many in shared passes.
#include "vericache/batch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "api/answer_stream.h"
#include "api/completion_stats.h"
#include "api/engine_impl.h"
#include "api/prefix_arrival.h"
#include "api/request_loop.h"
#include "api/warm_up.h"
#include "base/common_tokens.h"
#include "base/status_macros.h"
#include "engine/prefix_loader.h"

namespace vericache {
namespace {

// Between two looks at what is loaded, where there is nothing to compute.
constexpr auto kLoadTick = std::chrono::milliseconds(5);

// What a completion's K/V took under a budget.
class MemoryWatch {
 public:
  explicit MemoryWatch(const Sequence& s) : before_(s.full.stream_totals()) {}
  // From here on reads count as those of decoding.
  void StartDecoding(const Sequence& s) { before_ = s.full.stream_totals(); }
  // peak_bytes: BatchReport::peak_kv_bytes of its loop.
  KvMemoryStats Finish(const Sequence& s, uint64_t peak_bytes) const {
    KvMemoryStats stats;
    if (!s.memory.has_value()) return stats;
    stats.budget_bytes = s.memory->budget + s.small_bytes;
    stats.planned_bytes = s.memory->decode_bytes() + s.small_bytes;
    stats.peak_bytes = peak_bytes;
    stats.staging_bytes = s.memory->staging_bytes;
    stats.hot_bytes = s.memory->hot_blocks * s.memory->block_bytes;
    stats.spilled_bytes = s.full.num_cold_blocks() * s.full.block_bytes();
    const StreamTotals& now = s.full.stream_totals();
    stats.streamed_bytes = now.bytes - before_.bytes;
    stats.stream_s = static_cast<double>(now.transfer_ns - before_.transfer_ns) * 1e-9;
    stats.stream_wait_s = static_cast<double>(now.wait_ns - before_.wait_ns) * 1e-9;
    return stats;
  }

 private:
  StreamTotals before_;
};

absl::Status EndStatus(const Sequence& s) {
  return s.finish == FinishReason::kError ? s.error : absl::OkStatus();
}

}  // namespace

const std::shared_ptr<Experience>& Engine::Impl::Learned() {
  if (experience == nullptr)
    experience =
        NewExperience(*model, pool->num_threads(), static_cast<double>(options.kv_read_limit));
  return experience;
}

LoopParts Engine::Impl::MakeLoopParts() {
  return {model.get(), forward.get(), pool.get(), tier.get(), small.get(), Learned()};
}

absl::StatusOr<Completion> Engine::Generate(const Request& request, Session* session,
                                            const Callbacks& callbacks) {
  Impl& impl = *impl_;
  VC_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> s, impl.MakeSequence(request, session));
  const int64_t lent = s->full.num_tokens();
  AnswerStream stream(*impl.tokenizer, callbacks);
  stream.Watch(s.get());
  const double asked_s = NowSeconds();
  PrefixArrivalStats arrival;
  VC_RETURN_IF_ERROR(PrefixArrival(&impl, request, callbacks, s.get(), &arrival).Run());
  const double waited_s = NowSeconds() - asked_s;  // for its prefix, before the loop has it
  const int64_t cached = s->full.num_tokens();
  VC_RETURN_IF_ERROR(impl.ShrinkSession(*s, session));
  LoopOptions options;
  options.planned_memory = true;
  options.max_pass_rows = impl.MakePrefillOptions(callbacks, s.get()).chunk_rows;
  if (s->memory.has_value()) options.staging_bytes = s->memory->staging_bytes;
  RequestLoop loop(impl.MakeLoopParts(), options);
  MemoryWatch memory(*s);
  std::unique_ptr<Sequence> ended;
  RequestTimes times;
  DraftChoiceStats choice;
  bool decoding = false;
  LoopHooks hooks;
  hooks.on_prefill = callbacks.on_prefill;
  RequestId id = 0;
  hooks.on_step = [&](const Sequence& sequence) {
    DescribeChoice(loop.LastChoice(id), &choice);
    if (!decoding && sequence.num_emitted() > 0) {
      memory.StartDecoding(sequence);
      impl.KeepPrefix(request, sequence, cached);
      decoding = true;
    }
    return stream.Push(sequence);
  };
  hooks.on_end = [&](std::unique_ptr<Sequence> sequence, const RequestTimes& t) {
    ended = std::move(sequence);
    times = t;
    AddWait(waited_s, &times);
  };
  const DraftSizes sizes = impl.FitDraft(request, loop, 1, s.get());
  VC_ASSIGN_OR_RETURN(id, loop.Add(std::move(s), sizes, std::move(hooks)));
  while (loop.Step()) {
  }
  // A session keeps the blocks that its request had; else there is room for them in the cache.
  if (session == nullptr) impl.LimitPrefixes(impl.options.kv_memory);
  // Rows computed before a user gave up hold all the same: the next try goes on from them.
  if (absl::IsCancelled(ended->error)) {
    ended->finish = FinishReason::kNone;
    impl.KeepPrefix(request, *ended, cached);
    return ended->error;
  }
  VC_RETURN_IF_ERROR(EndStatus(*ended));
  stream.Push(*ended);
  Completion completion = impl.Finish(*ended, cached, times.prefill_s);
  completion.stats.memory = memory.Finish(*ended, loop.report().peak_kv_bytes);
  for (const RoundStats& round : ended->rounds)
    if (std::string_view(round.mode) == "arrival") arrival.accepted = round.accepted;
  completion.stats.arrival = std::move(arrival);
  completion.stats.times = times;
  CountRounds(*ended, &choice);
  completion.stats.choice = choice;
  impl.KeepPrefix(request, *ended, decoding ? ended->num_prompt : cached);
  impl.Store(ended.get(), lent, session);
  return completion;
}

// One call of GenerateBatch.
class BatchRun {
 public:
  BatchRun(Engine::Impl* impl, absl::Span<const Request> requests, const BatchOptions& options);
  void Run();
  std::vector<absl::StatusOr<Completion>> TakeResults() { return std::move(results_); }
  RequestLoop& loop() { return *loop_; }

 private:
  enum class Phase : uint8_t { kWaiting, kLoading, kPrompt, kAnswer, kEnded };
  // A request whose prefix a store is asked for, beside the passes of others.
  struct Loading {
    size_t idx;
    std::unique_ptr<Sequence> sequence;
    DraftSizes sizes;
    std::shared_ptr<PrefixLoad> load;
  };
  // Adds those that need not wait for another's prompt.
  void AddReady();
  bool SharesUnfinishedPrompt(size_t idx) const;
  void Add(size_t idx);
  void AddToLoop(size_t idx, const DraftSizes& sizes, std::unique_ptr<Sequence> s);
  void TakeLoaded();
  // False: nothing is loading.
  bool AwaitLoad();
  void Stop();
  bool OnStep(size_t idx, int64_t cached, const Sequence& s);
  void OnEnd(size_t idx, int64_t cached, const Sequence& s, const RequestTimes& times);
  // A result that is not a stopped batch's.
  void Tell(size_t idx) {
    if (options_.on_finished && !options_.on_finished(idx, results_[idx])) more_ = false;
  }

  Engine::Impl* impl_;
  const absl::Span<const Request> requests_;
  const BatchOptions& options_;
  std::vector<absl::StatusOr<std::unique_ptr<Sequence>>> sequences_;
  std::vector<absl::StatusOr<Completion>> results_;
  std::vector<std::vector<TokenId>> prompts_;
  std::vector<Phase> phases_;
  std::vector<RequestId> ids_;  // 0: not in the loop yet, or never
  std::vector<DraftChoiceStats> choices_;
  std::unique_ptr<RequestLoop> loop_;
  bool more_ = true;
  bool changed_ = true;  // a phase, since requests were added last
  std::vector<Loading> loading_;
  PrefixLoader loader_;
};

BatchRun::BatchRun(Engine::Impl* impl, absl::Span<const Request> requests,
                   const BatchOptions& options)
    : impl_(impl),
      requests_(requests),
      options_(options),
      results_(requests.size(), absl::CancelledError("stopped before its end")),
      prompts_(requests.size()),
      phases_(requests.size(), Phase::kWaiting),
      ids_(requests.size()),
      choices_(requests.size()),
      loader_(impl->MostLoads()) {
  for (size_t i = 0; i < requests.size(); ++i) {
    sequences_.push_back(impl_->MakeSequence(requests[i], nullptr));
    if (sequences_[i].ok()) prompts_[i] = (*sequences_[i])->tokens;
  }
  LoopOptions loop = impl_->MakeBatchLoopOptions(sequences_);
  loop.stagger = options.lock_step ? StaggerPolicy::kLockStep : StaggerPolicy::kStaggered;
  loop.timeline = options.timeline;
  loop.max_running = options.max_running;
  loop.on_cache_room = [impl](int64_t bytes) { impl->LimitPrefixes(bytes); };
  loop_ = std::make_unique<RequestLoop>(impl_->MakeLoopParts(), loop);
}

// Where there is a prefix cache, who begins like one whose prompt is being computed waits for it:
// the rows are computed once.
bool BatchRun::SharesUnfinishedPrompt(size_t idx) const {
  if (impl_->prefixes == nullptr || !requests_[idx].use_prefix_cache) return false;
  for (size_t i = 0; i < idx; ++i) {
    if (phases_[i] == Phase::kAnswer || phases_[i] == Phase::kEnded) continue;
    if (!requests_[i].use_prefix_cache || requests_[i].prefix_salt != requests_[idx].prefix_salt)
      continue;
    if (CommonTokens(prompts_[i], prompts_[idx]) >= kBlockTokens) return true;
  }
  return false;
}

void BatchRun::AddReady() {
  if (!changed_) return;  // nobody's prompt has ended since
  changed_ = false;
  for (size_t i = 0; i < requests_.size(); ++i)
    if (phases_[i] == Phase::kWaiting && more_ && !SharesUnfinishedPrompt(i)) Add(i);
}

void BatchRun::Add(size_t idx) {
  phases_[idx] = Phase::kEnded;
  if (!sequences_[idx].ok()) {
    results_[idx] = sequences_[idx].status();
    Tell(idx);
    return;
  }
  std::unique_ptr<Sequence> s = *std::move(sequences_[idx]);
  const DraftSizes sizes =
      impl_->FitDraft(requests_[idx], *loop_, static_cast<int>(requests_.size()), s.get());
  std::unique_ptr<PrefixLookup> lookup = impl_->PlanPrefix(requests_[idx], *s, PrefixUse::kShared);
  if (std::shared_ptr<PrefixLoad> load = loader_.StartOrLoad(&lookup, {}); load != nullptr) {
    phases_[idx] = Phase::kLoading;
    loading_.push_back({idx, std::move(s), sizes, std::move(load)});
    return;
  }
  if (lookup != nullptr) impl_->TakePrefix(std::move(lookup), PrefixUse::kShared, s.get());
  AddToLoop(idx, sizes, std::move(s));
}

void BatchRun::AddToLoop(size_t idx, const DraftSizes& sizes, std::unique_ptr<Sequence> s) {
  phases_[idx] = Phase::kEnded;
  const int64_t cached = s->full.num_tokens();
  LoopHooks hooks;
  hooks.index = static_cast<int64_t>(idx);
  hooks.on_prefill = [this](int64_t, int64_t) { return more_; };
  hooks.on_step = [this, idx, cached](const Sequence& s) { return OnStep(idx, cached, s); };
  hooks.on_end = [this, idx, cached](std::unique_ptr<Sequence> s, const RequestTimes& times) {
    OnEnd(idx, cached, *s, times);
  };
  const absl::StatusOr<RequestId> id = loop_->Add(std::move(s), sizes, std::move(hooks),
                                                  requests_[idx].priority, options_.max_burst_s);
  if (id.ok()) {
    phases_[idx] = Phase::kPrompt;
    ids_[idx] = *id;
  } else {
    results_[idx] = id.status();
    Tell(idx);
  }
}

bool BatchRun::OnStep(size_t idx, int64_t cached, const Sequence& s) {
  if (phases_[idx] == Phase::kPrompt && s.num_emitted() > 0) {
    phases_[idx] = Phase::kAnswer;
    changed_ = true;
    impl_->KeepPrefix(requests_[idx], s, cached);
  }
  DescribeChoice(loop_->LastChoice(ids_[idx]), &choices_[idx]);
  return more_;
}

void BatchRun::OnEnd(size_t idx, int64_t cached, const Sequence& s, const RequestTimes& times) {
  if (!EndStatus(s).ok()) {
    results_[idx] = EndStatus(s);
  } else if (s.done()) {
    impl_->KeepPrefix(requests_[idx], s, phases_[idx] == Phase::kAnswer ? s.num_prompt : cached);
    results_[idx] = impl_->Finish(s, cached, times.prefill_s);
    results_[idx]->stats.times = times;
    CountRounds(s, &choices_[idx]);
    results_[idx]->stats.choice = choices_[idx];
  }
  phases_[idx] = Phase::kEnded;
  changed_ = true;
  if (!absl::IsCancelled(results_[idx].status())) Tell(idx);
}

void BatchRun::TakeLoaded() {
  std::vector<Loading> loaded;
  std::erase_if(loading_, [&](Loading& loading) {
    const bool done = loading.load->done();
    if (done) loaded.push_back(std::move(loading));
    return done;
  });
  for (Loading& loading : loaded) {
    impl_->TakePrefix(loading.load->Take(), PrefixUse::kShared, loading.sequence.get());
    AddToLoop(loading.idx, loading.sizes, std::move(loading.sequence));
    changed_ = true;
  }
}

bool BatchRun::AwaitLoad() {
  if (loading_.empty()) return false;
  loading_.front().load->WaitFor(kLoadTick);
  return true;
}

void BatchRun::Stop() {
  for (const Loading& loading : loading_) loading.load->Cancel();
  loading_.clear();
  for (const RequestId id : ids_)  // those that wait, too
    if (id > 0) loop_->Cancel(id);
}

void BatchRun::Run() {
  for (AddReady(); loop_->Step() || AwaitLoad(); AddReady()) {
    if (options_.on_progress && !options_.on_progress(loop_->report().num_emitted)) more_ = false;
    if (more_) TakeLoaded();
    if (!more_) Stop();
  }
}

std::vector<absl::StatusOr<Completion>> Engine::GenerateBatch(absl::Span<const Request> requests,
                                                              const BatchOptions& options,
                                                              BatchReport* report) {
  const double start = NowSeconds();
  if (options.warm_up) WarmUpOnce(impl_.get());
  BatchRun run(impl_.get(), requests, options);
  run.Run();
  impl_->LimitPrefixes(impl_->options.kv_memory);
  if (report != nullptr) {
    *report = run.loop().report();
    report->seconds = NowSeconds() - start;
    report->timeline = run.loop().TakeTimeline();
  }
  return run.TakeResults();
}

std::vector<absl::StatusOr<Completion>> Engine::GenerateBatch(absl::Span<const Request> requests) {
  return GenerateBatch(requests, BatchOptions(), nullptr);
}

}  // namespace vericache
