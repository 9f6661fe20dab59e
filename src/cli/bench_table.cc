#include "cli/bench_table.h"

#include <fmt/format.h>

#include "cli/progress.h"

namespace vericache::cli {
namespace {

// "43.5 (42.1-44.0)", or "-" for what was left out.
std::string Cell(const Metrics& metrics, const std::string& name, int digits) {
  const Series* s = metrics.Find(name);
  if (s == nullptr) return "-";
  return fmt::format("{:.{}f} ({:.{}f}-{:.{}f})", s->Median(), digits, s->Low(), digits, s->High(),
                     digits);
}

std::string Plain(const Metrics& metrics, const std::string& name, int digits) {
  const Series* s = metrics.Find(name);
  return s == nullptr ? "-" : fmt::format("{:.{}f}", s->Median(), digits);
}

void AddDecode(const BenchOptions& o, const ModelInfo& info, const Metrics& m, std::string* out) {
  *out += fmt::format("\n{:>7}  {:<22}  {:>9}  {}\n", "depth", "decode tok/s", "MB a step",
                      "share of the plain read");
  for (int64_t depth : o.depths)
    *out += fmt::format(
        "{:>7}  {:<22}  {:>9.1f}  {}\n", depth, Cell(m, DepthName("decode_tps", depth), 1),
        BytesPerStep(o, info, depth) / 1e6, Cell(m, DepthName("decode_read_share", depth), 2));
}

void AddPrefill(const BenchOptions& o, const Metrics& m, std::string* out) {
  *out += fmt::format("\n{:>7}  prefill of {} tokens, tok/s\n", "depth", o.prefill);
  *out += fmt::format("{:>7}  {}\n", 0, Cell(m, "prefill_tps", 1));
  if (!o.prefill_depths) return;
  for (int64_t depth : o.depths)
    if (depth > 0)
      *out += fmt::format("{:>7}  {}\n", depth, Cell(m, DepthName("prefill_tps", depth), 1));
}

void AddVerify(const BenchOptions& o, const Metrics& m, std::string* out) {
  if (o.widths.empty()) return;
  *out += fmt::format("\n{:>7}  {:>5}  {:<26}  {}\n", "depth", "width", "verification ms",
                      "ms a position");
  for (int64_t depth : o.depths)
    for (int width : o.widths)
      *out += fmt::format("{:>7}  {:>5}  {:<26}  {}\n", depth, width,
                          Cell(m, WidthName("verify_ms", depth, width), 2),
                          Plain(m, WidthName("verify_ms_per_position", depth, width), 2));
}

void AddDraft(const BenchOptions& o, const Metrics& m, std::string* out) {
  if (o.draft_specs.empty() || o.depths.back() == 0) return;
  *out += fmt::format("\n{:>7}  {:<18}  {:>13}  {:<24}  {}\n", "depth", "draft", "kept_fraction",
                      "draft step ms", "x plain step at depth 0");
  for (int64_t depth : o.depths) {
    if (depth == 0) continue;
    for (const std::string& spec : o.draft_specs)
      *out += fmt::format("{:>7}  {:<18}  {:>13}  {:<24}  {}\n", depth, spec,
                          Plain(m, DraftName("draft_kept_fraction", depth, spec), 3),
                          Cell(m, DraftName("draft_step_ms", depth, spec), 2),
                          Cell(m, DraftName("draft_step_ratio", depth, spec), 2));
  }
}

void AddReplay(const BenchOptions& o, const Metrics& m, std::string* out) {
  if (o.traces.empty() || o.depths.back() == 0) return;
  *out += fmt::format("\n{:>7}  {:<18}  {:<22}  {:<22}  {}\n", "depth", "trace", "plain tok/s",
                      "replayed tok/s", "speedup");
  for (int64_t depth : o.depths) {
    if (depth == 0) continue;
    for (const ReplayTrace& trace : o.traces)
      *out += fmt::format("{:>7}  {:<18}  {:<22}  {:<22}  {}\n", depth, trace.name,
                          Cell(m, DepthName("replay_plain_tps", depth), 1),
                          Cell(m, DraftName("replay_tps", depth, trace.name), 1),
                          Cell(m, DraftName("replay_speedup", depth, trace.name), 2));
  }
}

}  // namespace

std::string BenchTable(const BenchOptions& o, const ModelInfo& info, const Metrics& m) {
  std::string out =
      fmt::format("Medians of {} round{} (lowest-highest); K/V at a depth are synthetic.\n\n",
                  o.repeat, o.repeat == 1 ? "" : "s");
  const Series* rss = m.Find("rss_bytes");
  out += fmt::format("load         {} s, resident {}, file {}\n", Plain(m, "load_s", 2),
                     rss == nullptr ? "-" : FormatBytes(static_cast<uint64_t>(rss->Median())),
                     FormatBytes(info.file_bytes));
  out += fmt::format("plain read   {} GB/s\n", Cell(m, "read_gbps", 1));
  AddPrefill(o, m, &out);
  AddDecode(o, info, m, &out);
  AddVerify(o, m, &out);
  AddDraft(o, m, &out);
  AddReplay(o, m, &out);
  return out;
}

}  // namespace vericache::cli
