// Runs the requests of a service on one thread: who is next, shared prompts, what sinks are told.
//
//   loop.Take(choices);  loop.Cancel(id);     // between steps
//   while (loop.has_work()) loop.Step();      // one pass each; ready(): without waiting
//
// The request loop below shares passes and memory out; here requests wait for a place in it, so
// that a prefix is looked up as late as possible and waiting costs no K/V.
// THREADS: none but MakeChoices(); one owner calls. Sinks may not call back into it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "api/engine_impl.h"
#include "api/remote_loop.h"
#include "api/request_loop.h"
#include "api/serve_job.h"
#include "engine/prefix_loader.h"
#include "vericache/serving.h"

namespace vericache {

using ServeChoices = std::vector<std::unique_ptr<ServeChoice>>;

class ServeLoop {
 public:
  // publish: gets the counters before each last call of a sink and after each step.
  // wants_cancel: asked within steps that take long; true if Cancel() will be called with the id.
  // on_event: from any thread: a verifier has answered, or a prefix has been loaded; ready() may
  // be true now.
  ServeLoop(Engine* engine, const ServiceOptions& options,
            std::function<void(const ServiceStats&)> publish,
            std::function<bool(ServeId)> wants_cancel, std::function<void()> on_event);

  // THREADS: safe beside everything else. ERRORS: those of CompletionService::Submit.
  absl::StatusOr<ServeChoices> MakeChoices(ServeId id, ServeRequest request,
                                           std::shared_ptr<ServeSink> sink);

  void Take(ServeChoices choices);
  // Those that wait end at once, the others with the next step, before its pass.
  void Cancel(ServeId id);
  void CancelAll();
  bool has_work() const { return !waiting_.empty() || !active_.empty(); }
  // Step() would do something; else what there is to do waits for a verifier or a store.
  bool ready() const;
  // At most one pass here, and one that drafts for verifiers.
  void Step();
  // Ends the calls to verifiers and stores. REQUIRES: !has_work(), for good.
  void Close();
  // Reads what the prefix cache has done into the published counters.
  void RefreshPrefixStats();

 private:
  void StartReady();
  bool MayStart(const ServeChoice& choice) const;
  bool AwaitsPrompt(const ServeChoice& choice) const;
  void Start(std::unique_ptr<ServeChoice> choice);
  bool BeginWithPrompt(ServeChoice* choice);
  // --- Prefixes, which a store may take long over (serve_prefix.cc) ---
  // The choice begins here with what the prefix cache has; where a store is asked, once that has
  // answered.
  void FindPrefix(ServeChoice* choice);
  void TakePrefix(std::unique_ptr<PrefixLookup> lookup, ServeChoice* choice);
  void TakeLoaded();
  bool HasLoaded() const;
  // Those of `id` whose prefix is on its way end at once.
  void CancelLoads(ServeId id);
  LoopHooks MakeHooks(ServeChoice* choice);
  bool OnStep(ServeChoice* choice, const Sequence& s);
  void OnEnd(ServeChoice* choice, const Sequence& s, const RequestTimes& times);
  void PromptIsOver(ServeChoice* choice, const Sequence& s);
  void LendPrompt(ServeJob* job, const Sequence& s);
  void Count(ServeChoice* choice, const Sequence& s);
  std::unique_ptr<ServeChoice> Release(ServeChoice* choice);
  void EndUnstarted(std::unique_ptr<ServeChoice> choice, absl::Status status);
  void SendEnd(ServeChoice* choice, ServeEnd end);
  void Publish();
  // --- Those that a verifier elsewhere has (serve_remote.cc) ---
  bool GoesToVerifier(const ServeChoice& choice) const;
  void StartRemote(std::unique_ptr<ServeChoice> choice);
  void OnRemoteEnd(ServeChoice* choice, RemoteEnd end);
  bool FitsHere(const Sequence& s) const;
  void GoOnHere(ServeChoice* choice, RemoteEnd end);
  void ChoiceBegins(ServeJob* job);
  void PublishRemote();
  // REQUIRES: choice->sequence.
  void AddHere(ServeChoice* choice);
  // In the request loop.
  size_t num_here() const;
  WorkHere work_here() const;

  Engine* const engine_;
  EngineAccess::Impl* const impl_;
  const ServiceOptions options_;
  const std::function<void(const ServiceStats&)> publish_;
  const std::function<bool(ServeId)> wants_cancel_;
  const std::function<void()> on_event_;
  LogprobMaker logprobs_;
  RequestLoop loop_;
  std::unique_ptr<RemoteLoop> remote_;  // null: there are no verifiers
  ServeChoices waiting_;                // by virtual arrival
  ServeChoices active_;                 // in one of the loops, or their prefix is being loaded
  bool changed_ = false;                // who may start
  ServiceStats stats_;
  double prefix_stats_s_ = 0;             // when they were read
  std::unique_ptr<PrefixLoader> loader_;  // goes before what it tells
};

}  // namespace vericache
