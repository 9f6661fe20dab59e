#include "cli/compare.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace vericache::cli {
namespace {

// A prompt of its own is prefilled once but for its last tokens: a compressor that scores with the
// prompt's last queries (SnapKV) must see them computed, in each of the three ways alike.
constexpr int64_t kTailTokens = 64;

// Tokens shown of each answer from where they part.
constexpr size_t kQuoted = 5;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

absl::Status WithId(const absl::Status& status, const std::string& id) {
  return absl::Status(status.code(), absl::StrCat("prompt ", id, ": ", status.message()));
}

TimedAnswer Timed(Completion completion, double wall_s) {
  TimedAnswer answer;
  answer.decode_s = std::max(0.0, wall_s - completion.stats.prefill_s);
  answer.completion = std::move(completion);
  return answer;
}

class Runner {
 public:
  Runner(Engine* engine, const CompareOptions& options, const CompareCallbacks& callbacks)
      : engine_(engine), options_(options), callbacks_(callbacks) {}

  absl::Status PrefillDocument(const CompareInput& input, CompareReport* report) {
    VC_ASSIGN_OR_RETURN(document_prompt_, DocumentPrompt::For(engine_, input.document));
    Callbacks progress;
    progress.on_prefill = callbacks_.on_document;
    const double start = Seconds();
    VC_ASSIGN_OR_RETURN(document_, engine_->Prefill(document_prompt_->Ask("?"), progress));
    report->document_prefill_s = Seconds() - start;
    report->document_tokens = static_cast<int64_t>(document_->token_ids().size());
    return absl::OkStatus();
  }

  absl::StatusOr<CompareRow> Run(const CompareQuestion& question, const Callbacks& live) {
    CompareRow row;
    row.question = question;
    VC_ASSIGN_OR_RETURN(const Session start, Start(question, &row.request));
    VC_ASSIGN_OR_RETURN(row.verified, Verified(row.request, start, live));
    Request full = row.request;
    full.draft = "off";
    VC_ASSIGN_OR_RETURN(row.full, Verified(full, start, QuietCallbacks()));
    VC_ASSIGN_OR_RETURN(row.unverified, Unverified(row.request, start));
    if (Cancelled()) return absl::CancelledError("stopped");
    Judge(&row);
    Quote(&row);
    return row;
  }

  // For an answer that nobody watches.
  Callbacks QuietCallbacks() const {
    Callbacks quiet;
    quiet.on_text = [this](std::string_view) { return !Cancelled(); };
    return quiet;
  }

  // For the answer that is watched. Adds the time that showing takes to `shown_s_`.
  Callbacks LiveCallbacks() {
    Callbacks live;
    live.on_text = [this](std::string_view text) {
      const double begin = Seconds();
      const bool more = !callbacks_.live.on_text || callbacks_.live.on_text(text);
      shown_s_ += Seconds() - begin;
      return more && !Cancelled();
    };
    if (!callbacks_.live.on_round) return live;
    live.on_round = [this](const RoundView& view) {
      const double begin = Seconds();
      callbacks_.live.on_round(view);
      shown_s_ += Seconds() - begin;
    };
    return live;
  }

 private:
  // What the two answers say where they part.
  void Quote(CompareRow* row) const {
    if (row->first_divergence < 0) return;
    const auto text_at = [&](const TimedAnswer& answer) {
      const absl::Span<const int32_t> ids = answer.completion.token_ids;
      return engine_->Detokenize(ids.subspan(static_cast<size_t>(row->first_divergence), kQuoted));
    };
    row->full_quote = text_at(row->full);
    row->unverified_quote = text_at(row->unverified);
  }

  bool Cancelled() const { return callbacks_.cancelled && callbacks_.cancelled(); }

  // The request of a question and the prefill that all three ways start from.
  absl::StatusOr<Session> Start(const CompareQuestion& question, Request* request) {
    *request = document_.has_value() ? document_prompt_->Ask(question.text) : RequestOf(question);
    request->use_prefix_cache = false;  // the three ways must have the same to compute
    request->sampling = question.sampling;
    request->draft = options_.draft;
    request->draft_len = options_.draft_len;
    if (question.max_tokens > 0) request->max_tokens = question.max_tokens;
    if (options_.max_tokens > 0) request->max_tokens = options_.max_tokens;
    if (document_.has_value()) return document_->Fork();
    VC_ASSIGN_OR_RETURN(std::vector<int32_t> ids, engine_->TokenizePrompt(*request));
    if (static_cast<int64_t>(ids.size()) <= kTailTokens) return engine_->NewSession();
    ids.resize(ids.size() - kTailTokens);
    Request beginning;
    beginning.prompt_token_ids = std::move(ids);
    return engine_->Prefill(beginning);
  }

  absl::StatusOr<TimedAnswer> Verified(const Request& request, const Session& start,
                                       const Callbacks& live) {
    Session session = start.Fork();
    shown_s_ = 0;
    const double begin = Seconds();
    VC_ASSIGN_OR_RETURN(Completion completion, engine_->Generate(request, &session, live));
    return Timed(std::move(completion), Seconds() - begin - shown_s_);
  }

  absl::StatusOr<TimedAnswer> Unverified(const Request& request, const Session& start) {
    Session session = start.Fork();
    const double begin = Seconds();
    VC_ASSIGN_OR_RETURN(Completion completion, engine_->GenerateUnverified(request, &session));
    return Timed(std::move(completion), Seconds() - begin);
  }

  Engine* engine_;
  const CompareOptions& options_;
  const CompareCallbacks& callbacks_;
  std::optional<DocumentPrompt> document_prompt_;
  std::optional<Session> document_;
  double shown_s_ = 0;
};

}  // namespace

AnswerEnd EndOf(const Completion& completion) {
  return completion.finish_reason == "length" ? AnswerEnd::kAtTokenLimit : AnswerEnd::kOwn;
}

int64_t TimedAnswer::NumDecoded() const {
  return std::max<int64_t>(0, static_cast<int64_t>(completion.token_ids.size()) - 1);
}

double TimedAnswer::TokensPerSecond() const {
  return decode_s > 0 ? static_cast<double>(NumDecoded()) / decode_s : 0;
}

double CompareRow::SpeedRatio() const {
  const double base = full.TokensPerSecond();
  return base > 0 ? verified.TokensPerSecond() / base : 0;
}

int CompareReport::NumUnverifiedIdentical() const {
  return static_cast<int>(std::count_if(
      rows.begin(), rows.end(), [](const CompareRow& row) { return row.UnverifiedIdentical(); }));
}

int CompareReport::NumVerifiedIdentical() const {
  return static_cast<int>(std::count_if(
      rows.begin(), rows.end(), [](const CompareRow& row) { return row.VerifiedIdentical(); }));
}

bool CompareReport::AllVerifiedIdentical() const {
  return NumVerifiedIdentical() == static_cast<int>(rows.size());
}

void Judge(CompareRow* row) {
  const Completion& full = row->full.completion;
  const Completion& unverified = row->unverified.completion;
  const Completion& verified = row->verified.completion;
  row->first_divergence = FirstDivergence(full.token_ids, unverified.token_ids);
  row->token_f1 = TokenF1(full.token_ids, unverified.token_ids);
  row->same_tokens = full.token_ids == verified.token_ids;
  // An empty hash would make two failures look like agreement.
  row->same_hash = !full.logits_hash.empty() && full.logits_hash == verified.logits_hash;
  if (row->question.kind == "json") {
    const JsonVerdict a = ParseJsonAnswer(full.text, EndOf(full));
    const JsonVerdict b = ParseJsonAnswer(unverified.text, EndOf(unverified));
    row->full_json = a.state;
    row->unverified_json = b.state;
    row->same_json = a.state == ParseState::kParses && b.state == ParseState::kParses &&
                     a.canonical == b.canonical;
    return;  // a JSON answer is no Python, though Python would take most of it
  }
  row->full_python = ParsePythonAnswer(full.text, EndOf(full));
  // The same answer gives the same verdict: a child process less.
  row->unverified_python = full.text == unverified.text
                               ? row->full_python
                               : ParsePythonAnswer(unverified.text, EndOf(unverified));
}

absl::StatusOr<CompareReport> Compare(Engine* engine, const CompareInput& input,
                                      const CompareOptions& options,
                                      const CompareCallbacks& callbacks) {
  CompareReport report;
  report.model = engine->info();
  VC_ASSIGN_OR_RETURN(report.draft, CanonicalDraftSpec(options.draft));
  report.draft_len = options.draft_len;
  report.document_path = input.document_path;
  Runner runner(engine, options, callbacks);
  if (!input.document_path.empty()) VC_RETURN_IF_ERROR(runner.PrefillDocument(input, &report));
  for (size_t i = 0; i < input.questions.size(); ++i) {
    const CompareQuestion& question = input.questions[i];
    if (callbacks.on_question)
      callbacks.on_question(question, static_cast<int>(i),
                            static_cast<int>(input.questions.size()));
    absl::StatusOr<CompareRow> row =
        runner.Run(question, i == 0 ? runner.LiveCallbacks() : runner.QuietCallbacks());
    if (!row.ok()) return WithId(row.status(), question.id);
    if (callbacks.on_row) callbacks.on_row(*row);
    report.rows.push_back(*std::move(row));
  }
  return report;
}

}  // namespace vericache::cli
