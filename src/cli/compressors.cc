#include "cli/compressors.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/status_macros.h"
#include "cli/compare.h"
#include "cli/errors.h"
#include "cli/other_proposals.h"

namespace vericache::cli {
namespace {

// A shared beginning shorter than this is prefilled with each prompt.
constexpr int64_t kMinShared = 256;
// The name a kind goes by where a prompt gives none.
constexpr char kNoKind[] = "any";

ParsedAnswer Parse(const Completion& completion) {
  ParsedAnswer parsed;
  parsed.python = ParsePythonAnswer(completion.text, EndOf(completion));
  if (parsed.python == ParseState::kNone)
    parsed.json = ParseJsonAnswer(completion.text, EndOf(completion));
  return parsed;
}

std::string PythonOf(const std::string& text) {
  static constexpr std::string_view kLanguages[] = {"python", "py", "python3"};
  const std::optional<CodeBlock> block = FindFencedBlock(text, kLanguages);
  return block.has_value() ? std::string(block->code) : "";
}

int64_t CommonPrefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return ends.first - a.begin();
}

class Study {
 public:
  Study(Engine* engine, const std::vector<CompareQuestion>& questions,
        const CompressorsOptions& options, const CompressorsCallbacks& callbacks)
      : engine_(engine), questions_(questions), options_(options), callbacks_(callbacks) {}

  absl::StatusOr<CompressorsReport> Run() {
    report_.model = engine_->info();
    report_.draft_len = options_.draft_len;
    for (const std::string& spec : options_.specs) report_.specs.push_back({spec, {}, {}});
    report_.specs.push_back({"ngram", {}, {}});
    if (options_.draft_model != nullptr)
      report_.specs.push_back({"model " + options_.draft_model->info().name, {}, {}});
    VC_RETURN_IF_ERROR(Tokenize());
    for (size_t begin = 0; begin < questions_.size();) {
      int64_t shared = 0;
      const size_t end = GroupEnd(begin, &shared);
      VC_RETURN_IF_ERROR(StartGroup(begin, shared));
      for (size_t i = begin; i < end; ++i)
        if (absl::Status status = StudyPrompt(i); !status.ok())
          return absl::Status(
              status.code(),
              fmt::format("{}: {}", questions_[i].id,
                          std::string_view(status.message().data(), status.message().size())));
      begin = end;
    }
    Step("done");
    return std::move(report_);
  }

 private:
  absl::Status Tokenize() {
    for (const CompareQuestion& question : questions_) {
      Request request = RequestOf(question);
      VC_ASSIGN_OR_RETURN(std::vector<int32_t> ids, engine_->TokenizePrompt(request));
      request = Request();
      request.prompt_token_ids = std::move(ids);
      request.sampling = question.sampling;
      if (question.max_tokens > 0) request.max_tokens = question.max_tokens;
      if (options_.max_tokens > 0) request.max_tokens = options_.max_tokens;
      requests_.push_back(std::move(request));
    }
    return absl::OkStatus();
  }

  // Prompts [begin, end) share `*shared` tokens; 0: nothing worth sharing.
  size_t GroupEnd(size_t begin, int64_t* shared) const {
    const auto& first = requests_[begin].prompt_token_ids;
    size_t end = begin + 1;
    *shared = 0;
    while (end < requests_.size()) {
      const int64_t common = CommonPrefix(first, requests_[end].prompt_token_ids);
      if (common < std::max(kMinShared, *shared - *shared / 10)) break;
      *shared = *shared == 0 ? common : std::min(*shared, common);
      ++end;
    }
    return end;
  }

  // Computes what a group's prompts share: K/V, and scores that need no question.
  absl::Status StartGroup(size_t begin, int64_t shared) {
    document_.reset();
    small_document_.reset();
    if (shared == 0) return absl::OkStatus();
    Request prefix;
    const std::vector<int32_t>& ids = requests_[begin].prompt_token_ids;
    prefix.prompt_token_ids.assign(ids.begin(), ids.begin() + shared);
    Callbacks callbacks;
    callbacks.on_prefill = [&](int64_t done, int64_t total) {
      Step(fmt::format("{}: prefill, {} of {} tokens", questions_[begin].id, done, total));
      return KeepGoing();
    };
    VC_ASSIGN_OR_RETURN(Session session, engine_->Prefill(prefix, callbacks));
    for (const std::string& spec : options_.specs) {
      callbacks.on_prefill = [&](int64_t done, int64_t total) {
        Step(fmt::format("{}: scores of {}, {} of {} tokens", questions_[begin].id, spec, done,
                         total));
        return KeepGoing();
      };
      if (absl::Status status = engine_->Score(&session, spec, callbacks); !status.ok())
        return status;
    }
    document_.emplace(std::move(session));
    if (options_.draft_model != nullptr) {
      VC_ASSIGN_OR_RETURN(Session small, options_.draft_model->Prefill(prefix));
      small_document_.emplace(std::move(small));
    }
    return absl::OkStatus();
  }

  absl::Status StudyPrompt(size_t i) {
    StudiedPrompt prompt;
    prompt.question = questions_[i];
    if (prompt.question.kind.empty()) prompt.question.kind = kNoKind;
    StudyOptions options;
    options.specs = options_.specs;
    options.keep_going = [this] { return KeepGoing(); };
    options.on_prefill = [this](int64_t, int64_t) { return KeepGoing(); };
    Step(prompt.question.id + ": full KV");
    VC_ASSIGN_OR_RETURN(
        PromptStudy study,
        PromptStudy::Create(engine_, requests_[i], document_.has_value() ? &*document_ : nullptr,
                            options));
    prompt.full = study.full();
    prompt.full_decode_s = study.full_decode_s();
    prompt.parsed = Parse(prompt.full);
    const bool decodes = num_decoded_[prompt.question.kind]++ < options_.runs_per_kind;
    report_.prompts.push_back(std::move(prompt));
    for (size_t k = 0; k < options_.specs.size(); ++k) {
      StudiedSpec& spec = report_.specs[k];
      Step(fmt::format("{}: {}", questions_[i].id, spec.spec));
      VC_ASSIGN_OR_RETURN(DraftReplayReport replay, study.Replay(spec.spec, options_.draft_len));
      spec.replays.push_back(std::move(replay));
      spec.runs.emplace_back();
      if (decodes) VC_RETURN_IF_ERROR(Decode(&study, &spec));
      ++done_;
      if (callbacks_.on_studied) callbacks_.on_studied(report_.prompts.back(), spec);
    }
    return StudyOthers(i);
  }

  // The rows that need no draft KV.
  absl::Status StudyOthers(size_t i) {
    const std::vector<int32_t>& prompt = requests_[i].prompt_token_ids;
    const std::vector<int32_t>& answer = report_.prompts.back().full.token_ids;
    StudiedSpec* other = &report_.specs[options_.specs.size()];
    other->replays.push_back(NgramRounds(prompt, answer, options_.draft_len));
    other->runs.emplace_back();
    if (options_.draft_model == nullptr) return absl::OkStatus();
    ++other;
    Step(questions_[i].id + ": " + other->spec);
    VC_ASSIGN_OR_RETURN(const std::vector<bool> hits,
                        NextTokenHits(options_.draft_model, prompt, answer,
                                      small_document_.has_value() ? &*small_document_ : nullptr));
    DraftReplayReport rounds = RoundsOfHits(hits, options_.draft_len);
    rounds.kept_fraction = rounds.read_fraction =
        static_cast<double>(options_.draft_model->info().kv_bytes_per_token) /
        static_cast<double>(report_.model.kv_bytes_per_token);
    other->replays.push_back(std::move(rounds));
    other->runs.emplace_back();
    return absl::OkStatus();
  }

  absl::Status Decode(PromptStudy* study, StudiedSpec* spec) {
    const StudiedPrompt& prompt = report_.prompts.back();
    StudiedRun run;
    VC_ASSIGN_OR_RETURN(PromptStudy::Timed verified,
                        study->Verified(spec->spec, options_.draft_len));
    if (!KeepGoing()) return absl::CancelledError("stopped");
    VC_ASSIGN_OR_RETURN(PromptStudy::Timed unverified, study->Unverified(spec->spec));
    run.verified = std::move(verified.completion);
    run.verified_decode_s = verified.decode_s;
    run.unverified = std::move(unverified.completion);
    run.identical = run.verified.token_ids == prompt.full.token_ids &&
                    !prompt.full.logits_hash.empty() &&
                    run.verified.logits_hash == prompt.full.logits_hash;
    run.first_divergence = FirstDivergence(prompt.full.token_ids, run.unverified.token_ids);
    run.token_f1 = TokenF1(prompt.full.token_ids, run.unverified.token_ids);
    run.parsed = run.first_divergence < 0 ? prompt.parsed : Parse(run.unverified);
    run.same_json = prompt.parsed.json.state == ParseState::kParses &&
                    run.parsed.json.state == ParseState::kParses &&
                    prompt.parsed.json.canonical == run.parsed.json.canonical;
    run.same_python = prompt.parsed.python == ParseState::kParses &&
                      run.parsed.python == ParseState::kParses &&
                      PythonOf(prompt.full.text) == PythonOf(run.unverified.text);
    spec->runs.back() = std::move(run);
    return absl::OkStatus();
  }

  bool KeepGoing() const { return !callbacks_.cancelled || !callbacks_.cancelled(); }
  void Step(const std::string& what) const {
    if (callbacks_.on_step)
      callbacks_.on_step(done_, static_cast<int64_t>(questions_.size() * options_.specs.size()),
                         what);
  }

  Engine* engine_;
  const std::vector<CompareQuestion>& questions_;
  const CompressorsOptions& options_;
  const CompressorsCallbacks& callbacks_;
  std::vector<Request> requests_;
  std::optional<Session> document_, small_document_;  // of the group; of the draft model
  std::map<std::string, int> num_decoded_;            // by kind
  CompressorsReport report_;
  int64_t done_ = 0;
};

}  // namespace

std::vector<std::string> CompressorsReport::Kinds() const {
  std::vector<std::string> kinds;
  for (const StudiedPrompt& prompt : prompts)
    if (std::find(kinds.begin(), kinds.end(), prompt.question.kind) == kinds.end())
      kinds.push_back(prompt.question.kind);
  return kinds;
}

bool CompressorsReport::AllIdentical() const {
  for (const StudiedSpec& spec : specs)
    for (const std::optional<StudiedRun>& run : spec.runs)
      if (run.has_value() && !run->identical) return false;
  return true;
}

absl::StatusOr<CompressorsReport> StudyCompressors(Engine* engine,
                                                   const std::vector<CompareQuestion>& questions,
                                                   const CompressorsOptions& options,
                                                   const CompressorsCallbacks& callbacks) {
  return Study(engine, questions, options, callbacks).Run();
}

}  // namespace vericache::cli
