#include "cli/compare_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/errors.h"
#include "cli/progress.h"
#include "cli/terminal.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kIdColumns = 12;

std::string ShortId(const std::string& id) {
  const std::string safe = SafeForTerminal(id);
  if (safe.size() <= kIdColumns) return safe;
  return safe.substr(0, kIdColumns - 1) + "~";
}

// On one line, cut to what a table can hold.
std::string Quoted(const std::string& text) {
  constexpr int kColumnsMax = 18;
  const std::string safe = SafeForTerminal(text);
  std::string quoted = "\"";
  int columns = 0;
  for (size_t pos = 0; pos < safe.size();) {
    const Glyph glyph = GlyphAt(safe, pos);
    if ((columns += glyph.columns) > kColumnsMax) return quoted + "...\"";
    const char c = safe[pos];
    quoted += c == '\n' ? "\\n" : c == '\t' ? "\\t" : safe.substr(pos, glyph.num_bytes);
    pos += glyph.num_bytes;
  }
  return quoted + "\"";
}

// "yes" or the reason: "token 7", "tokens same, hash not".
std::string UnverifiedVerdict(const CompareRow& row) {
  return row.UnverifiedIdentical() ? "yes" : fmt::format("no, at {}", row.first_divergence);
}

std::string VerifiedVerdict(const CompareRow& row) {
  if (row.VerifiedIdentical()) return "yes";
  return row.same_tokens ? "NO: hash" : "NO: tokens";
}

// What a parser says of full KV's answer and of the unverified one: "yes/no".
std::string ParseVerdict(const CompareRow& row) {
  if (row.question.kind == "json") {
    std::string verdict =
        fmt::format("{}/{}", ParseStateName(row.full_json), ParseStateName(row.unverified_json));
    const bool both =
        row.full_json == ParseState::kParses && row.unverified_json == ParseState::kParses;
    return both && !row.same_json ? verdict + " !=" : verdict;
  }
  if (row.full_python == ParseState::kNone && row.unverified_python == ParseState::kNone) return "";
  return fmt::format("{}/{}", ParseStateName(row.full_python),
                     ParseStateName(row.unverified_python));
}

std::string ModelName(const ModelInfo& model) {
  return model.name.empty() ? model.path : model.name;
}

struct Totals {
  double full_s = 0, unverified_s = 0, verified_s = 0;
  int64_t full_decoded = 0, unverified_decoded = 0, verified_decoded = 0, full_tokens = 0;
  int64_t rounds = 0, round_tokens = 0;
  uint64_t full_bytes = 0, draft_bytes = 0;  // largest of any row
  double kept_fraction = 0;                  // mean of the rows
  int num_slower = 0;                        // rows where VeriCache lost to full KV

  static double PerSecond(int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  }
  double Full() const { return PerSecond(full_decoded, full_s); }
  double Unverified() const { return PerSecond(unverified_decoded, unverified_s); }
  double Verified() const { return PerSecond(verified_decoded, verified_s); }
  double Ratio() const { return Full() > 0 ? Verified() / Full() : 0; }
  double RunLength() const {
    return rounds > 0 ? static_cast<double>(round_tokens) / static_cast<double>(rounds) : 1;
  }
};

Totals TotalsOf(const CompareReport& report) {
  Totals t;
  for (const CompareRow& row : report.rows) {
    const CompletionStats& stats = row.verified.completion.stats;
    t.full_s += row.full.decode_s;
    t.unverified_s += row.unverified.decode_s;
    t.verified_s += row.verified.decode_s;
    t.full_tokens += static_cast<int64_t>(row.full.completion.token_ids.size());
    t.full_decoded += row.full.NumDecoded();
    t.unverified_decoded += row.unverified.NumDecoded();
    t.verified_decoded += row.verified.NumDecoded();
    t.rounds += stats.rounds;
    for (const RoundRecord& record : stats.records) t.round_tokens += record.emitted;
    t.full_bytes = std::max(t.full_bytes, stats.full_bytes);
    t.draft_bytes = std::max(t.draft_bytes, stats.draft_bytes);
    t.kept_fraction += stats.kept_fraction / static_cast<double>(report.rows.size());
    t.num_slower += row.SpeedRatio() > 0 && row.SpeedRatio() < 1;
  }
  return t;
}

// `text` in lines of at most 96 columns, each with its line break.
std::string Wrapped(std::string_view text) {
  constexpr size_t kColumnsMax = 96;
  std::string lines;
  while (text.size() > kColumnsMax) {
    const size_t blank = text.rfind(' ', kColumnsMax);
    if (blank == std::string_view::npos) break;
    lines += std::string(text.substr(0, blank)) + "\n";
    text.remove_prefix(blank + 1);
  }
  return lines + std::string(text) + "\n";
}

// Why VeriCache may lose here. Says what holds for this model, not what would sound best.
std::string WhySlower(const CompareReport& report, const Totals& totals) {
  const int group =
      report.model.num_kv_heads > 0 ? report.model.num_heads / report.model.num_kv_heads : 1;
  const std::string rule =
      group >= 6 ? "With one request, all KV in RAM and GQA of 6 or more, VeriCache is not faster "
                   "than plain decoding on a CPU"
                 : "With one request and all KV in RAM the gain is small at best, and short runs "
                   "lose it";
  return Wrapped(fmt::format(
      "VeriCache was slower than full KV in {} of {} rows. {} (this model has {} query heads on a "
      "KV head): a check reads the full KV once for all its positions but does the arithmetic of "
      "each. It pays where reading the full KV is the slow part: on disk, on another machine, on "
      "GPUs.",
      totals.num_slower, report.rows.size(), rule, group));
}

Json AnswerJson(const TimedAnswer& answer) {
  const Completion& c = answer.completion;
  return {{"text", c.text},
          {"token_ids", c.token_ids},
          {"finish_reason", c.finish_reason},
          {"logits_hash", c.logits_hash},
          {"prompt_tokens", c.usage.prompt_tokens},
          {"cached_tokens", c.usage.cached_tokens},
          {"prefill_s", c.stats.prefill_s},
          {"decode_s", answer.decode_s},
          {"tokens_per_s", answer.TokensPerSecond()}};
}

Json RowJson(const CompareRow& row) {
  const CompletionStats& stats = row.verified.completion.stats;
  Json unverified = AnswerJson(row.unverified);
  unverified.erase("logits_hash");  // it has none: its logits are not those of the full KV
  unverified["identical"] = row.UnverifiedIdentical();
  unverified["first_divergence"] = row.first_divergence;
  unverified["token_f1"] = row.token_f1;
  Json verified = AnswerJson(row.verified);
  verified["identical"] = row.VerifiedIdentical();
  verified["same_token_ids"] = row.same_tokens;
  verified["same_logits_hash"] = row.same_hash;
  verified["ratio"] = row.SpeedRatio();
  verified["rounds"] = stats.rounds;
  verified["drafted"] = stats.drafted;
  verified["accepted"] = stats.accepted;
  verified["mean_run_length"] = stats.mean_run_length;
  verified["kept_fraction"] = stats.kept_fraction;
  verified["draft_bytes"] = stats.draft_bytes;
  verified["full_bytes"] = stats.full_bytes;
  Json json = {{"id", row.question.id},
               {"kind", row.question.kind},
               {"max_tokens", row.request.max_tokens},
               {"full", AnswerJson(row.full)},
               {"unverified", std::move(unverified)},
               {"vericache", std::move(verified)}};
  if (row.question.kind == "json") {
    json["json"] = {{"full", ParseStateName(row.full_json)},
                    {"unverified", ParseStateName(row.unverified_json)},
                    {"same_value", row.same_json}};
  } else {
    json["python"] = {{"full", ParseStateName(row.full_python)},
                      {"unverified", ParseStateName(row.unverified_python)}};
  }
  return json;
}

}  // namespace

std::string CompareSetup(const CompareReport& report) {
  return fmt::format("{}, {} thread{}, {}; draft KV {}, draft length {}",
                     OneLine(ModelName(report.model)), report.model.num_threads,
                     report.model.num_threads == 1 ? "" : "s", report.model.isa, report.draft,
                     report.draft_len > 0 ? std::to_string(report.draft_len) : "auto");
}

std::string CompareLine(const CompareRow& row) {
  std::string line = fmt::format("  {:<12} VeriCache {}; unverified ", ShortId(row.question.id),
                                 row.VerifiedIdentical() ? "identical" : "DIFFERENT");
  if (row.UnverifiedIdentical()) return line + "identical";
  return line + fmt::format("differs at {}: {}, not {}", row.first_divergence,
                            Quoted(row.unverified_quote), Quoted(row.full_quote));
}

std::string CompareTable(const CompareReport& report) {
  // 100 columns: a question, then full KV, unverified draft KV and VeriCache.
  std::string table = fmt::format("{:<12} {:>13} | {:<35} | {:<32}\n", "", "full KV",
                                  "unverified draft KV", "VeriCache");
  table += fmt::format(
      "{:<12} {:>6} {:>6} | {:<11} {:>4} {:<10} {:>7} | {:<5} {:>6} {:>6} {:>5} {:>6}\n", "prompt",
      "tokens", "tok/s", "identical", "F1", "parses", "tok/s", "ident", "tok/s", "ratio", "run",
      "kept");
  for (const CompareRow& row : report.rows) {
    const CompletionStats& stats = row.verified.completion.stats;
    table += fmt::format(
        "{:<12} {:>6} {:>6.1f} | {:<11} {:>4.2f} {:<10} {:>7.1f} | {:<5} {:>6.1f} {:>5.2f}x "
        "{:>5.1f} "
        "{:>6.3f}\n",
        ShortId(row.question.id), row.full.completion.token_ids.size(), row.full.TokensPerSecond(),
        UnverifiedVerdict(row), row.token_f1, ParseVerdict(row), row.unverified.TokensPerSecond(),
        VerifiedVerdict(row), row.verified.TokensPerSecond(), row.SpeedRatio(),
        stats.mean_run_length, stats.kept_fraction);
  }
  const Totals t = TotalsOf(report);
  table += fmt::format(
      "{:<12} {:>6} {:>6.1f} | {:<27} {:>7.1f} | {:<5} {:>6.1f} {:>5.2f}x {:>5.1f} {:>6.3f}\n",
      "all", t.full_tokens, t.Full(), "", t.Unverified(), "", t.Verified(), t.Ratio(),
      t.RunLength(), t.kept_fraction);
  return table;
}

std::string CompareSummary(const CompareReport& report) {
  const Totals t = TotalsOf(report);
  std::string summary = fmt::format(
      "unverified draft KV: {} of {} identical to full KV\n"
      "VeriCache: {} of {} identical (token ids and logits hash)\n",
      report.NumUnverifiedIdentical(), report.rows.size(), report.NumVerifiedIdentical(),
      report.rows.size());
  summary += fmt::format("KV of the longest request: full {}, draft {}; kept_fraction {:.3f}\n",
                         FormatBytes(t.full_bytes), FormatBytes(t.draft_bytes), t.kept_fraction);
  if (t.num_slower > 0) summary += WhySlower(report, t);
  return summary;
}

std::string CompareJson(const CompareReport& report) {
  const Totals t = TotalsOf(report);
  Json rows = Json::array();
  for (const CompareRow& row : report.rows) rows.push_back(RowJson(row));
  const Json json = {{"model", {{"name", report.model.name}, {"path", report.model.path}}},
                     {"num_threads", report.model.num_threads},
                     {"isa", report.model.isa},
                     {"draft", report.draft},
                     {"draft_len", report.draft_len},
                     {"document",
                      {{"path", report.document_path},
                       {"tokens", report.document_tokens},
                       {"prefill_s", report.document_prefill_s}}},
                     {"rows", std::move(rows)},
                     {"summary",
                      {{"prompts", report.rows.size()},
                       {"unverified_identical", report.NumUnverifiedIdentical()},
                       {"vericache_identical", report.NumVerifiedIdentical()},
                       {"full_tokens_per_s", t.Full()},
                       {"unverified_tokens_per_s", t.Unverified()},
                       {"vericache_tokens_per_s", t.Verified()},
                       {"ratio", t.Ratio()},
                       {"slower_than_full", t.num_slower},
                       {"mean_run_length", t.RunLength()},
                       {"kept_fraction", t.kept_fraction},
                       {"full_bytes", t.full_bytes},
                       {"draft_bytes", t.draft_bytes}}}};
  // Invalid UTF-8 becomes U+FFFD instead of an exception.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace vericache::cli
