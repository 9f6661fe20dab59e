// A request that a service has taken: checked, with its prompt in tokens and its sequences made.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "api/choice_stream.h"
#include "api/engine_impl.h"
#include "api/request_loop.h"
#include "engine/prefix_loader.h"
#include "vericache/serving.h"

namespace vericache {

struct ServeJob;

// One choice of a request, from when it is taken to its end.
struct ServeChoice {
  std::shared_ptr<ServeJob> job;
  int index = 0;
  std::unique_ptr<Sequence> sequence;  // null once it runs
  std::shared_ptr<PrefixLoad> load;    // of its prefix, before it runs here
  double load_s = 0;                   // when that began, or how long it took
  std::optional<ChoiceStream> stream;
  // While it runs.
  RequestId loop_id = 0;
  int64_t remote_id = 0;     // > 0: a verifier elsewhere has its full KV
  bool handed_over = false;  // it was so
  DraftSpec local_spec;      // of one that may be handed over
  RemoteStats remote;        // of one that was
  int64_t known_tokens = 0;  // rows that a prefix or another choice gave it
  int64_t prompt_done = 0;   // rows of the prompt
  bool answering = false;    // its first token is there
  size_t rounds_counted = 0;
  int64_t emitted_counted = 0;
  DraftChoiceStats choice_stats;
};

struct ServeJob {
  ServeId id = 0;
  Request request;  // of choice 0, without its prompt
  std::vector<TokenId> prompt;
  int num_choices = 1;
  bool needs_logits = false;  // here: no verifier can serve it
  std::shared_ptr<ServeSink> sink;
  DraftSizes sizes;
  double virtual_arrival_s = 0;  // the scheduler's order (scheduler/scheduler.h)
  // What follows belongs to the service's thread.
  bool cancelled = false;
  bool prompt_over = false;    // choice 0 has computed it, or has ended
  int64_t cached_tokens = 0;   // of the prompt, by the prefix cache
  int choices_to_start = 0;    // that may begin with what follows
  std::optional<FullKv> full;  // the prompt's first rows
  std::optional<DraftKv> draft;
  std::shared_ptr<const KeyScores> scores;
};

// `logprobs`: scratch of the thread that will run the sequences; only its address is taken here.
// THREADS: safe beside a running loop. COST: template and tokenizer.
// ERRORS: those of CompletionService::Submit.
absl::StatusOr<std::vector<std::unique_ptr<ServeChoice>>> MakeServeJob(
    EngineAccess::Impl* engine, const RequestLoop& loop, LogprobMaker* logprobs, ServeId id,
    ServeRequest request, std::shared_ptr<ServeSink> sink);

}  // namespace vericache
