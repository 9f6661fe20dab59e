// `vericache batch`: many requests from a file, answered in shared passes.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "cli/args.h"
#include "cli/batch_jobs.h"
#include "cli/batch_output.h"
#include "cli/batch_report.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/files.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/progress.h"
#include "vericache/engine.h"

namespace vericache::cli {
namespace {

// All requests are held at once.
constexpr uint64_t kRequestsBytesMax = uint64_t{4} << 30;
constexpr int kMaxRunningMax = 1024;
constexpr int64_t kMaxBurstMsMax = 24 * 3600 * 1000;

struct Settings {
  ModelFlags model;
  PrefixFlags prefix;
  DecodingFlags decoding;
  std::string requests, output, timeline, stats;
  int64_t max_tokens = Request().max_tokens;
  int64_t max_burst_ms = 0;
  int max_running = BatchOptions().max_running;
  bool lock_step = false, ignore_eos = false, no_warmup = false;
};

absl::Status CheckSettings(const Settings& s) {
  if (s.requests.empty()) return UsageError("give the requests with -f FILE: a JSON object a line");
  if (s.output.empty()) return UsageError("give the file for the answers with -o FILE");
  if (s.output == "-" || !IsFileOrNothing(s.output))
    return UsageError("-o must be a file: finished answers are kept in it from run to run");
  VC_RETURN_IF_ERROR(CheckWritable("-o", s.output));
  if (!s.timeline.empty()) VC_RETURN_IF_ERROR(CheckWritable("--timeline", s.timeline));
  if (!s.stats.empty()) VC_RETURN_IF_ERROR(CheckWritable("--stats", s.stats));
  return FindModel(s.model.model).status();
}

// The lines' defaults. A seed of its own each time would make every answer a new one, and nothing
// of an earlier run could be kept: 0 where none is given.
Request DefaultsOf(const Settings& s) {
  Request request;
  request.max_tokens = s.max_tokens;
  request.draft = s.decoding.draft;
  request.draft_len = s.decoding.draft_len;
  request.propose = s.decoding.propose;
  request.ignore_eos = s.ignore_eos;
  request.sampling = s.decoding.sampling;
  request.sampling.seed = s.decoding.seed.value_or(0);
  return request;
}

absl::StatusOr<std::vector<BatchJob>> ReadRequests(const Settings& s) {
  VC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(s.requests, kRequestsBytesMax));
  const std::string name = s.requests == "-" ? "standard input" : s.requests;
  std::string unused;
  std::vector<BatchJob> jobs = ReadJobs(text, DefaultsOf(s), &unused);
  if (jobs.empty()) return absl::InvalidArgumentError(name + " holds no request");
  if (!unused.empty()) Notice(fmt::format("{}:{} is no member that batch reads", name, unused));
  return jobs;
}

// Computes what is not there yet.
class BatchRun {
 public:
  BatchRun(const Settings& settings, std::vector<BatchJob>* jobs, BatchOutput* output)
      : settings_(settings), jobs_(*jobs), output_(*output), progress_(WishOf(settings.model)) {}

  absl::Status Run(Engine* engine) {
    std::vector<Request> requests;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      BatchJob& job = jobs_[i];
      if (!job.error.ok()) SetAnswer(job.error, &job);
      if (!job.answer.empty()) continue;
      todo_.push_back(i);
      requests.push_back(std::move(job.request));
    }
    if (requests.empty()) return absl::OkStatus();
    BatchOptions options;
    options.lock_step = settings_.lock_step;
    options.warm_up = !settings_.no_warmup;
    options.timeline = !settings_.timeline.empty();
    options.max_running = settings_.max_running;
    options.max_burst_s = static_cast<double>(settings_.max_burst_ms) * 1e-3;
    options.on_progress = [this](int64_t num_emitted) { return OnProgress(num_emitted); };
    options.on_finished = [this](size_t i, const absl::StatusOr<Completion>& result) {
      return OnFinished(&jobs_[todo_[i]], result);
    };
    engine->GenerateBatch(requests, options, &report_);
    progress_.Clear();
    for (TimelineEvent& event : report_.timeline)
      if (event.lane != TimelineEvent::Lane::kPass)
        event.request = static_cast<int64_t>(todo_[event.request]);
    return failure_;
  }

  const BatchReport& report() const { return report_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool OnProgress(int64_t num_emitted) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    progress_.Show(num_finished_, static_cast<int64_t>(todo_.size()),
                   fmt::format("{} tokens, {:.1f} tok/s", num_emitted,
                               static_cast<double>(num_emitted) / seconds));
    return failure_.ok() && !Interrupted();
  }

  bool OnFinished(BatchJob* job, const absl::StatusOr<Completion>& result) {
    ++num_finished_;
    SetAnswer(result, job);
    // What failed is tried again by the next run.
    if (result.ok() && failure_.ok()) failure_ = output_.Append(job->answer);
    return failure_.ok() && !Interrupted();
  }

  const Settings& settings_;
  std::vector<BatchJob>& jobs_;
  BatchOutput& output_;
  StepProgress progress_;
  const Clock::time_point start_ = Clock::now();
  std::vector<size_t> todo_;  // index into jobs
  int64_t num_finished_ = 0;
  absl::Status failure_;  // of the side file
  BatchReport report_;
};

BatchCounts CountOf(const std::vector<BatchJob>& jobs) {
  BatchCounts counts;
  counts.requests = jobs.size();
  for (const BatchJob& job : jobs) {
    counts.kept += job.kept;
    counts.failed += job.failed;
    counts.computed += !job.answer.empty() && !job.kept && !job.failed;
  }
  return counts;
}

absl::Status WriteExtras(const Settings& s, const BatchRun& run,
                         const std::vector<BatchJob>& jobs) {
  if (!s.stats.empty())
    VC_RETURN_IF_ERROR(WriteFileAtomic(s.stats, BatchStatsJson(CountOf(jobs), run.report())));
  if (s.timeline.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  for (const BatchJob& job : jobs)
    names.push_back(job.id.empty() ? fmt::format("line {}", job.line) : job.id);
  return WriteFileAtomic(s.timeline, ChromeTrace(run.report().timeline, names));
}

absl::Status WriteAnswers(const Settings& s, const std::vector<BatchJob>& jobs,
                          BatchOutput* output) {
  const BatchCounts counts = CountOf(jobs);
  const size_t num_answers = counts.kept + counts.computed;
  std::string content;
  for (const BatchJob& job : jobs) {
    if (job.answer.empty())
      return absl::CancelledError(
          fmt::format("stopped: {} of {} answers are there and kept in {}; the same command again "
                      "goes on from them",
                      num_answers, jobs.size(), output->side_path()));
    content += job.answer + "\n";
  }
  VC_RETURN_IF_ERROR(output->Finish(content));
  if (counts.failed == 0) return absl::OkStatus();
  return absl::UnavailableError(fmt::format("{} of {} requests failed; \"error\" in {} says why",
                                            counts.failed, jobs.size(), s.output));
}

absl::Status Run(const Settings& s) {
  VC_RETURN_IF_ERROR(CheckSettings(s));
  VC_ASSIGN_OR_RETURN(std::vector<BatchJob> jobs, ReadRequests(s));
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      LoadEngine(s.model, s.prefix, s.decoding.draft_model));
  InstallStopHandler();
  VC_ASSIGN_OR_RETURN(const std::string digest, engine->ModelDigest());
  SetDigests(digest, engine->info().rope, &jobs);
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<BatchOutput> output, BatchOutput::Open(s.output));
  {
    OldAnswers old;
    VC_ASSIGN_OR_RETURN(const std::string text, output->ReadOld());
    AddOldAnswers(text, &old);
    const size_t others = TakeOldAnswers(old, &jobs);
    if (others > 0)
      Notice(
          fmt::format("{} of the {} answers in {} are to other requests or settings, and will "
                      "be gone",
                      others, old.size(), s.output));
  }
  BatchRun run(s, &jobs, output.get());
  VC_RETURN_IF_ERROR(run.Run(engine.get()));
  const absl::Status written = WriteAnswers(s, jobs, output.get());
  fmt::print(stderr, "{}{}", BatchSummary(CountOf(jobs), run.report()),
             PrefixSummary(engine.get()));
  VC_RETURN_IF_ERROR(WriteExtras(s, run, jobs));
  return written;
}

constexpr char kExamples[] =
    "  vericache batch -m qwen2.5-coder-0.5b -f requests.jsonl -o answers.jsonl\n"
    "  vericache batch -m model.gguf -f requests.jsonl -o answers.jsonl --kv-memory 512MiB "
    "--timeline t.json\n"
    "\n"
    "A request is a JSON object a line: \"prompt\" (raw text), \"question\" (one user turn) or\n"
    "\"messages\" (a chat, with \"tools\"), and, where it differs from the flags, \"custom_id\",\n"
    "\"max_tokens\", \"temperature\", \"seed\", \"top_k\", \"top_p\", \"min_p\", "
    "\"presence_penalty\",\n"
    "\"frequency_penalty\", \"repetition_penalty\", \"draft\", \"draft_len\", \"priority\" "
    "(higher first).\n"
    "An answer is the line of `run --json` with \"custom_id\", \"error\" (null, or why there is "
    "no\n"
    "answer) and \"request_digest\" (of model, request and settings), in the order of the\n"
    "requests, token for token that of `run`.\n"
    "\n"
    "Answers are appended to OUT.part as they come; OUT is written at the end and OUT.part goes\n"
    "away. The same command again keeps every answer of either file that has the custom_id and\n"
    "digest of a request and no error, and computes the others: stop it by Ctrl-C or kill it, and\n"
    "only unfinished answers are lost. Exit status 1 if a request failed, 130 after Ctrl-C.";

}  // namespace

CommandBody DeclareBatch(Flags* flags) {
  auto settings = std::make_shared<Settings>();
  Settings* s = settings.get();
  flags->Name("-f,--file", "FILE", "Requests, a JSON object a line (-: standard input)",
              &s->requests);
  flags->Name("-o,--output", "OUT", "Answers, a JSON object a line; those there are kept",
              &s->output);
  flags->Integer("-n,--max-tokens", "N", "Tokens an answer at most (default 256)", &s->max_tokens,
                 0, int64_t{1} << 31);
  flags->Switch("--ignore-eos", "Go on after an end token, up to -n tokens", &s->ignore_eos);
  flags->Switch("--no-warmup", "Time no passes before the first request", &s->no_warmup);
  flags->Integer("--max-running", "N", "Requests worked on at once (default 64)", &s->max_running,
                 1, kMaxRunningMax);
  flags->Integer("--max-burst-ms", "MS",
                 "Longest wait for a running request's next tokens aimed at (default 0: none)",
                 &s->max_burst_ms, 0, kMaxBurstMsMax);
  s->model.Declare(flags);
  s->prefix.Declare(flags);
  s->decoding.DeclareDraft(flags);
  s->decoding.DeclareSampling(flags, "0");
  flags->Group("Output");
  flags->Name("--timeline", "FILE", "Write what ran when, for chrome://tracing and Perfetto",
              &s->timeline);
  flags->Name("--stats", "FILE", "Write the batch's numbers as a JSON object", &s->stats);
  flags->Group("");
  flags->Switch("--lock-step", "Verify all at once, to be measured against", &s->lock_step);
  flags->Group("Options");
  flags->Examples(kExamples);
  return [settings] { return Run(*settings); };
}

}  // namespace vericache::cli
