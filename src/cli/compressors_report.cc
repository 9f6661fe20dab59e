#include "cli/compressors_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/terminal.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::ordered_json;

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

// The value below which `share` of the sorted values lie; the lower of two.
double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t idx = static_cast<size_t>(share * static_cast<double>(values.size() - 1));
  return values[idx];
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

int64_t NumDecoded(const Completion& completion) {
  return std::max<int64_t>(0, static_cast<int64_t>(completion.token_ids.size()) - 1);
}

bool HoldsCode(const ParsedAnswer& parsed) {
  return parsed.json.state == ParseState::kParses || parsed.python == ParseState::kParses;
}

// Adds what the decoded prompts tell.
void SummarizeRuns(const CompressorsReport& report, const StudiedSpec& spec,
                   const std::string& kind, SpecSummary* s) {
  std::vector<double> divergences;
  double f1 = 0, verified_s = 0, full_s = 0;
  int64_t tokens = 0;
  for (size_t i = 0; i < spec.runs.size(); ++i) {
    const StudiedPrompt& prompt = report.prompts[i];
    if (!spec.runs[i].has_value() || (!kind.empty() && prompt.question.kind != kind)) continue;
    const StudiedRun& run = *spec.runs[i];
    ++s->num_decoded;
    s->num_identical += run.identical;
    divergences.push_back(run.first_divergence >= 0
                              ? static_cast<double>(run.first_divergence)
                              : static_cast<double>(prompt.full.token_ids.size()));
    f1 += run.token_f1;
    verified_s += run.verified_decode_s;
    full_s += prompt.full_decode_s;
    tokens += NumDecoded(prompt.full);
    if (!HoldsCode(prompt.parsed)) continue;
    ++s->num_parsed;
    s->num_still_parsing += HoldsCode(run.parsed);
    s->num_same += run.same_json || run.same_python;
  }
  s->first_divergence = Median(divergences);
  s->token_f1 = Ratio(f1, s->num_decoded);
  s->verified_tok_s = Ratio(static_cast<double>(tokens), verified_s);
  s->full_tok_s = Ratio(static_cast<double>(tokens), full_s);
}

Json SummaryJson(const SpecSummary& s) {
  Json json;
  json["num_prompts"] = s.num_prompts;
  json["num_rounds"] = s.num_rounds;
  json["kept_fraction"] = s.kept_fraction;
  json["read_fraction"] = s.read_fraction;
  json["mean_run_length"] = s.mean_run;
  json["median_run_length"] = s.median_run;
  json["p10_run_length"] = s.p10_run;
  json["agreement"] = s.agreement;
  if (!std::isnan(s.mean_kl)) json["mean_kl"] = s.mean_kl;
  json["num_decoded"] = s.num_decoded;
  if (s.num_decoded == 0) return json;
  json["num_identical"] = s.num_identical;
  json["first_divergence_median"] = s.first_divergence;
  json["token_f1"] = s.token_f1;
  json["num_parsed"] = s.num_parsed;
  json["num_still_parsing"] = s.num_still_parsing;
  json["num_same"] = s.num_same;
  json["verified_tok_s"] = s.verified_tok_s;
  json["full_tok_s"] = s.full_tok_s;
  return json;
}

Json PromptJson(const StudiedPrompt& prompt, const DraftReplayReport& replay,
                const std::optional<StudiedRun>& run) {
  Json json;
  json["custom_id"] = prompt.question.id;
  json["kind"] = prompt.question.kind;
  json["prompt_tokens"] = prompt.full.usage.prompt_tokens;
  json["answer_tokens"] = prompt.full.token_ids.size();
  json["finish_reason"] = prompt.full.finish_reason;
  json["runs"] = replay.run_lengths;
  json["num_compared"] = replay.num_compared;
  json["agreement"] = replay.agreement;
  if (!std::isnan(replay.mean_kl)) json["mean_kl"] = replay.mean_kl;
  json["kept_fraction"] = replay.kept_fraction;
  json["read_fraction"] = replay.read_fraction;
  if (!run.has_value()) return json;
  json["identical"] = run->identical;
  json["first_divergence"] = run->first_divergence;
  json["token_f1"] = run->token_f1;
  json["verified_decode_s"] = run->verified_decode_s;
  json["full_decode_s"] = prompt.full_decode_s;
  json["verified_runs"] = Json::array();
  for (const RoundRecord& record : run->verified.stats.records)
    json["verified_runs"].push_back(record.emitted);
  return json;
}

std::string KindTable(const CompressorsReport& report, const std::string& kind) {
  size_t width = 12;
  for (const StudiedSpec& spec : report.specs) width = std::max(width, spec.spec.size());
  width = std::min<size_t>(width, 34);
  std::string text = fmt::format("{:<{}}  {:>5} {:>5}  {:>5} {:>6} {:>4}  {:>5} {:>7}", "spec",
                                 width, "kept", "read", "mean", "median", "p10", "agree", "KL");
  const bool decoded = std::any_of(
      report.specs.begin(), report.specs.end(),
      [&](const StudiedSpec& spec) { return Summarize(report, spec, kind).num_decoded > 0; });
  if (decoded) text += fmt::format("  {:>5} {:>5} {:>7} {:>5}", "first", "F1", "parses", "tok/s");
  text += "\n";
  for (const StudiedSpec& spec : report.specs) {
    const SpecSummary s = Summarize(report, spec, kind);
    text += fmt::format("{:<{}}  {:>5.3f} {:>5.3f}  {:>5.1f} {:>6.0f} {:>4.0f}  {:>5.3f} {:>7}",
                        spec.spec, width, s.kept_fraction, s.read_fraction, s.mean_run,
                        s.median_run, s.p10_run, s.agreement,
                        std::isnan(s.mean_kl) ? "-" : fmt::format("{:.4f}", s.mean_kl));
    if (s.num_decoded > 0)
      text += fmt::format(
          "  {:>5.0f} {:>5.2f} {:>7} {:>5.1f}", s.first_divergence, s.token_f1,
          s.num_parsed > 0 ? fmt::format("{}/{}/{}", s.num_still_parsing, s.num_same, s.num_parsed)
                           : "-",
          s.verified_tok_s);
    text += "\n";
  }
  return text;
}

}  // namespace

SpecSummary Summarize(const CompressorsReport& report, const StudiedSpec& spec,
                      const std::string& kind) {
  SpecSummary s;
  std::vector<double> runs;
  double kept = 0, read = 0, agreed = 0, compared = 0, kl = 0, emitted = 0;
  for (size_t i = 0; i < spec.replays.size(); ++i) {
    if (!kind.empty() && report.prompts[i].question.kind != kind) continue;
    const DraftReplayReport& replay = spec.replays[i];
    const double n = static_cast<double>(replay.num_compared);
    ++s.num_prompts;
    kept += replay.kept_fraction;
    read += replay.read_fraction;
    compared += n;
    agreed += replay.agreement * n;
    kl += replay.mean_kl * n;
    for (int run : replay.run_lengths) {
      runs.push_back(run);
      emitted += run;
    }
  }
  s.num_rounds = static_cast<int64_t>(runs.size());
  s.kept_fraction = Ratio(kept, s.num_prompts);
  s.read_fraction = Ratio(read, s.num_prompts);
  s.mean_run = Ratio(emitted, static_cast<double>(runs.size()));
  s.median_run = Median(runs);
  s.p10_run = Quantile(runs, 0.1);
  s.agreement = compared > 0 ? agreed / compared : 1;
  s.mean_kl = Ratio(kl, compared);
  SummarizeRuns(report, spec, kind, &s);
  return s;
}

std::string CompressorsTable(const CompressorsReport& report) {
  std::string text;
  for (const std::string& kind : report.Kinds()) {
    const SpecSummary s =
        report.specs.empty() ? SpecSummary() : Summarize(report, report.specs.front(), kind);
    text += fmt::format("\n{}: {} prompt{}, drafts of at most {}\n", SafeForTerminal(kind),
                        s.num_prompts, s.num_prompts == 1 ? "" : "s", report.draft_len);
    text += KindTable(report, kind);
  }
  text +=
      "\nkept, read: bytes of the draft KV, and bytes a draft step reads, as shares of the full "
      "KV.\n"
      "mean, median, p10: tokens a round emits. agree: drafted tokens that are full KV's. KL: of "
      "the\n"
      "draft's next-token distribution, nats. For the prompts that were decoded: first token at\n"
      "which unverified drafting parts from full KV (median), token F1, parses: answers that "
      "still\n"
      "parse / are the same value / parse with full KV; tok/s of verified decoding.\n";
  return text;
}

std::string CompressorsJson(const CompressorsReport& report) {
  Json json;
  json["model"] = report.model.name;
  json["draft_len"] = report.draft_len;
  json["num_threads"] = report.model.num_threads;
  json["isa"] = report.model.isa;
  json["specs"] = Json::array();
  for (const StudiedSpec& spec : report.specs) {
    Json entry;
    entry["spec"] = spec.spec;
    entry.update(SummaryJson(Summarize(report, spec, "")));
    for (const std::string& kind : report.Kinds())
      entry["by_kind"][kind] = SummaryJson(Summarize(report, spec, kind));
    entry["prompts"] = Json::array();
    for (size_t i = 0; i < spec.replays.size(); ++i)
      entry["prompts"].push_back(PromptJson(report.prompts[i], spec.replays[i], spec.runs[i]));
    json["specs"].push_back(std::move(entry));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string AnswerLine(const StudiedPrompt& prompt, const std::string& spec,
                       const StudiedRun& run) {
  const auto answer = [](const Completion& completion) {
    Json json;
    json["text"] = completion.text;
    json["token_ids"] = completion.token_ids;
    json["finish_reason"] = completion.finish_reason;
    return json;
  };
  Json json;
  json["custom_id"] = prompt.question.id;
  json["kind"] = prompt.question.kind;
  json["spec"] = spec;
  json["full"] = answer(prompt.full);
  json["unverified"] = answer(run.unverified);
  json["verified"] = answer(run.verified);
  json["verified"]["identical"] = run.identical;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace vericache::cli
