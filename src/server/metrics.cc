#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>

namespace vericache::server {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

const Buckets kLongSeconds = {0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
const Buckets kShortSeconds = {0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5};
const Buckets kTokens = {0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

// A counter that follows a total kept elsewhere.
void Follow(Counter* counter, double total) {
  if (total > counter->Value()) counter->Increment(total - counter->Value());
}

double ResidentBytes() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  long all = 0, resident = 0;
  const bool good = std::fscanf(file, "%ld %ld", &all, &resident) == 2;
  std::fclose(file);
  return good ? static_cast<double>(resident) * static_cast<double>(sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

std::string SelectorOf(const std::string& draft) {
  const std::string selector = draft.substr(0, draft.find_first_of(":+,"));
  const bool plain = !selector.empty() && selector.size() <= 16 &&
                     std::all_of(selector.begin(), selector.end(),
                                 [](unsigned char c) { return std::isalnum(c) != 0; });
  return plain ? selector : "other";
}

struct Metrics::Families {
  prometheus::Registry registry;
  std::mutex mutex;  // of Text(), whose counters follow

  Family<Counter>& NewCounter(const char* name, const char* help) {
    return BuildCounter().Name(name).Help(help).Register(registry);
  }
  Family<Gauge>& NewGauge(const char* name, const char* help) {
    return BuildGauge().Name(name).Help(help).Register(registry);
  }
  Histogram& NewHistogram(const char* name, const char* help, const Buckets& buckets) {
    return BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }

  Family<Counter>& requests = NewCounter("vericache_http_requests_total", "Requests answered");
  Family<Counter>& errors = NewCounter("vericache_errors_total", "Requests that failed, by code");
  Family<Counter>& choices = NewCounter("vericache_choices_total", "Choices by finish reason");
  Counter& slow_readers =
      NewCounter("vericache_slow_readers_total", "Streams cut for want of a reader").Add({});
  Histogram& first_token = NewHistogram("vericache_time_to_first_token_seconds",
                                        "From the request to its first text", kLongSeconds);
  Histogram& inter_token = NewHistogram("vericache_inter_token_seconds",
                                        "Between tokens after the first", kShortSeconds);
  Histogram& request_time = NewHistogram("vericache_request_seconds",
                                         "From the request to the end of its reply", kLongSeconds);
  Family<Counter>& rounds = NewCounter("vericache_rounds_total", "Verification rounds, by mode");
  Family<Counter>& drafted =
      NewCounter("vericache_drafted_tokens_total", "Tokens drafted, by compressor");
  Family<Counter>& accepted =
      NewCounter("vericache_accepted_tokens_total", "Drafted tokens that held, by compressor");
  Counter& fallbacks =
      NewCounter("vericache_fallback_rounds_total", "Plain rounds though a draft was asked for")
          .Add({});
  Histogram& run_length =
      NewHistogram("vericache_run_length_tokens", "Tokens emitted by a round", kTokens);
  Histogram& draft_length =
      NewHistogram("vericache_draft_length_tokens", "Tokens drafted for a round", kTokens);

  Family<Gauge>& queue = NewGauge("vericache_requests", "Choices now, by state");
  Gauge& waiting = queue.Add({{"state", "waiting"}});
  Gauge& running = queue.Add({{"state", "running"}});
  Family<Counter>& engine =
      NewCounter("vericache_engine_choices_total", "Choices handed in and out");
  Counter& submitted = engine.Add({{"event", "submitted"}});
  Counter& finished = engine.Add({{"event", "finished"}});
  Counter& cancelled = engine.Add({{"event", "cancelled"}});
  Counter& failed = engine.Add({{"event", "failed"}});
  Counter& preempted = engine.Add({{"event", "preempted"}});
  Family<Counter>& tokens = NewCounter("vericache_tokens_total", "Tokens, by kind");
  Counter& prompt_tokens = tokens.Add({{"kind", "prompt"}});
  Counter& emitted_tokens = tokens.Add({{"kind", "emitted"}});
  Counter& all_drafted = tokens.Add({{"kind", "drafted"}});
  Counter& all_accepted = tokens.Add({{"kind", "accepted"}});
  Counter& passes = NewCounter("vericache_passes_total", "Passes of the model").Add({});
  Counter& pass_s = NewCounter("vericache_pass_seconds_total", "Time in passes").Add({});
  Counter& stall_s = NewCounter("vericache_verify_stall_seconds_total",
                                "Time in passes spent waiting for spilled K/V")
                         .Add({});
  Counter& fetched =
      NewCounter("vericache_kv_fetched_bytes_total", "Spilled K/V read back").Add({});
  Family<Gauge>& kv = NewGauge("vericache_kv_bytes", "K/V held, by tier");
  Gauge& kv_ram = kv.Add({{"tier", "ram"}});
  Gauge& kv_spilled = kv.Add({{"tier", "spilled"}});
  Gauge& kv_prefix_ram = kv.Add({{"tier", "prefix_ram"}});
  Gauge& kv_prefix_store = kv.Add({{"tier", "prefix_store"}});
  Gauge& kv_remote_drafts = kv.Add({{"tier", "remote_drafts"}});
  Family<Counter>& lookups = NewCounter("vericache_prefix_lookups_total", "Prefix look-ups");
  Counter& memory_hits = lookups.Add({{"result", "memory"}});
  Counter& store_hits = lookups.Add({{"result", "store"}});
  Counter& misses = lookups.Add({{"result", "miss"}});
  Counter& found =
      NewCounter("vericache_prefix_found_tokens_total", "Prompt tokens whose K/V a prefix had")
          .Add({});
  Counter& damaged =
      NewCounter("vericache_prefix_damaged_total", "Stored prefixes set aside").Add({});
  Family<Counter>& store_failures = NewCounter("vericache_prefix_store_failures_total",
                                               "Operations of the prefix store without an answer");
  Counter& store_errors = store_failures.Add({{"kind", "error"}});
  Counter& store_late = store_failures.Add({{"kind", "late"}});
  Counter& store_skipped = store_failures.Add({{"kind", "skipped"}});
  Counter& bad_sequences = NewCounter("vericache_nonfinite_sequences_total",
                                      "Sequences whose K/V were kept up to a bad row")
                               .Add({});
  Family<Counter>& remote_choices =
      NewCounter("vericache_remote_choices_total", "Choices whose full KV a verifier had");
  Counter& remote_begun = remote_choices.Add({{"event", "begun"}});
  Counter& remote_fallbacks = remote_choices.Add({{"event", "fallback"}});
  Family<Counter>& remote_ways = NewCounter(
      "vericache_remote_ways_total", "Choices that a verifier had, by the way picked for them");
  Family<Counter>& remote_calls =
      NewCounter("vericache_remote_calls_total", "Calls of verifiers, by outcome");
  Counter& remote_opened = remote_calls.Add({{"outcome", "opened"}});
  Counter& remote_replies = remote_calls.Add({{"outcome", "replied"}});
  Counter& remote_failed = remote_calls.Add({{"outcome", "failed"}});
  Counter& remote_rounds =
      NewCounter("vericache_remote_rounds_total", "Rounds that a verifier checked").Add({});
  Family<Counter>& remote_tokens =
      NewCounter("vericache_remote_tokens_total", "Tokens of those rounds, by kind");
  Counter& remote_emitted = remote_tokens.Add({{"kind", "emitted"}});
  Counter& remote_drafted = remote_tokens.Add({{"kind", "drafted"}});
  Counter& remote_accepted = remote_tokens.Add({{"kind", "accepted"}});
  Counter& remote_looked_up = remote_tokens.Add({{"kind", "looked_up"}});
  Counter& remote_ahead = remote_tokens.Add({{"kind", "ahead"}});
  Counter& remote_provisional = remote_tokens.Add({{"kind", "provisional"}});
  Family<Counter>& remote_bytes =
      NewCounter("vericache_remote_bytes_total", "What came over the link, by kind");
  Counter& remote_row_bytes = remote_bytes.Add({{"kind", "rows"}});
  Counter& remote_draft_bytes = remote_bytes.Add({{"kind", "drafts"}});
  Counter& remote_full_bytes = remote_bytes.Add({{"kind", "full"}});
  Histogram& remote_round_trip = NewHistogram("vericache_remote_question_seconds",
                                              "From a question to its reply", kShortSeconds);
  Family<Gauge>& verifiers = NewGauge("vericache_remote_verifiers", "Verifiers, by state");
  Gauge& verifiers_up = verifiers.Add({{"state", "up"}});
  Gauge& verifiers_down = verifiers.Add({{"state", "down"}});
  Gauge& since_progress =
      NewGauge("vericache_since_progress_seconds", "Since the last pass; 0 when idle").Add({});
  Gauge& ready = NewGauge("vericache_ready", "1 once the model is loaded").Add({});
  Gauge& connections = NewGauge("vericache_http_connections", "Open connections").Add({});
  Family<Counter>& http = NewCounter("vericache_http_events_total", "Connections, by event");
  Counter& http_accepted = http.Add({{"event", "accepted"}});
  Counter& http_refused = http.Add({{"event", "refused"}});
  Counter& http_timed_out = http.Add({{"event", "timed_out"}});
  Counter& http_left = http.Add({{"event", "client_left"}});
  Gauge& resident = NewGauge("process_resident_memory_bytes", "Resident memory").Add({});

  void FollowStats(const ServiceStats& s);
  void FollowRemote(const RemoteServiceStats& s);
};

void Metrics::Families::FollowRemote(const RemoteServiceStats& s) {
  const std::pair<Counter*, double> totals[] = {
      {&remote_begun, s.requests},
      {&remote_fallbacks, s.fallbacks},
      {&remote_opened, s.sessions},
      {&remote_replies, s.replies},
      {&remote_failed, s.failed_calls},
      {&remote_rounds, s.rounds},
      {&remote_emitted, s.emitted_tokens},
      {&remote_drafted, s.drafted_tokens},
      {&remote_accepted, s.accepted_tokens},
      {&remote_ahead, s.ahead_tokens},
      {&remote_looked_up, s.looked_up_tokens},
      {&remote_provisional, s.provisional_rows},
      {&remote_row_bytes, s.rows_bytes},
      {&remote_draft_bytes, s.fetched_draft_bytes},
      {&remote_full_bytes, s.full_bytes},
  };
  for (const auto& [counter, total] : totals) Follow(counter, total);
  for (const auto& [way, total] : s.ways)
    Follow(&remote_ways.Add({{"way", way}}), static_cast<double>(total));
}

void Metrics::Families::FollowStats(const ServiceStats& s) {
  waiting.Set(static_cast<double>(s.waiting));
  running.Set(static_cast<double>(s.running));
  since_progress.Set(s.since_progress_s);
  kv_ram.Set(static_cast<double>(s.kv_ram_bytes));
  kv_spilled.Set(static_cast<double>(s.kv_spilled_bytes));
  kv_prefix_ram.Set(static_cast<double>(s.prefix.memory_bytes));
  kv_prefix_store.Set(static_cast<double>(s.prefix.store_bytes));
  kv_remote_drafts.Set(static_cast<double>(s.remote.draft_bytes));
  verifiers_up.Set(s.remote.verifiers_up);
  verifiers_down.Set(s.remote.verifiers - s.remote.verifiers_up);
  FollowRemote(s.remote);
  const std::pair<Counter*, double> totals[] = {
      {&submitted, s.submitted},
      {&finished, s.finished},
      {&cancelled, s.cancelled},
      {&failed, s.failed},
      {&preempted, s.preempted},
      {&prompt_tokens, s.prompt_tokens},
      {&emitted_tokens, s.emitted_tokens},
      {&all_drafted, s.drafted_tokens},
      {&all_accepted, s.accepted_tokens},
      {&passes, s.num_passes},
      {&pass_s, s.pass_s},
      {&stall_s, s.stall_s},
      {&fetched, s.fetched_bytes},
      {&memory_hits, s.prefix.memory_hits},
      {&store_hits, s.prefix.store_hits},
      {&misses, s.prefix.misses},
      {&found, s.prefix.found_tokens},
      {&damaged, s.prefix.damaged},
      {&store_errors, s.prefix.store_errors - s.prefix.store_late},
      {&store_late, s.prefix.store_late},
      {&store_skipped, s.prefix.store_skipped},
      {&bad_sequences, s.prefix.bad_sequences},
  };
  for (const auto& [counter, total] : totals) Follow(counter, total);
}

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::Replied(const std::string& path, int http_status) {
  families_->requests.Add({{"path", path}, {"status", std::to_string(http_status)}}).Increment();
}

void Metrics::Failed(const std::string& code) {
  families_->errors.Add({{"code", code.empty() ? "bad_request" : code}}).Increment();
}

void Metrics::FirstToken(double seconds) { families_->first_token.Observe(seconds); }

void Metrics::Tokens(int64_t count, double seconds) {
  for (int64_t i = 0; i < count; ++i)
    families_->inter_token.Observe(seconds / static_cast<double>(count));
}

void Metrics::ChoiceEnded(const ChoiceRecord& record) {
  families_->choices.Add({{"finish_reason", record.finish_reason}}).Increment();
  if (record.completion == nullptr) return;
  const CompletionStats& stats = record.completion->stats;
  const prometheus::Labels label = {{"compressor", SelectorOf(record.draft)}};
  families_->drafted.Add(label).Increment(static_cast<double>(stats.drafted));
  families_->accepted.Add(label).Increment(static_cast<double>(stats.accepted));
  const bool wanted_draft = record.draft != "off";
  for (const RoundRecord& round : stats.records) {
    families_->rounds.Add({{"mode", round.mode.empty() ? "unknown" : round.mode}}).Increment();
    families_->run_length.Observe(round.emitted);
    families_->draft_length.Observe(round.drafted);
    if (wanted_draft && round.drafted == 0) families_->fallbacks.Increment();
    if (round.mode.starts_with("remote"))
      families_->remote_round_trip.Observe(static_cast<double>(round.verify_ns) * 1e-9);
  }
}

void Metrics::RequestEnded(double seconds) { families_->request_time.Observe(seconds); }
void Metrics::SlowReader() { families_->slow_readers.Increment(); }

std::string Metrics::Text(const ServiceStats* stats, const HttpCounts& http) {
  const std::lock_guard<std::mutex> lock(families_->mutex);
  families_->ready.Set(stats != nullptr ? 1 : 0);
  if (stats != nullptr) families_->FollowStats(*stats);
  families_->connections.Set(static_cast<double>(http.connections));
  Follow(&families_->http_accepted, static_cast<double>(http.accepted));
  Follow(&families_->http_refused, static_cast<double>(http.refused));
  Follow(&families_->http_timed_out, static_cast<double>(http.timed_out));
  Follow(&families_->http_left, static_cast<double>(http.clients_left));
  families_->resident.Set(ResidentBytes());
  return prometheus::TextSerializer().Serialize(families_->registry.Collect());
}

}  // namespace vericache::server
