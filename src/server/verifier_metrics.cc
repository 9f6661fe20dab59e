#include "server/verifier_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>

namespace vericache::server {
namespace {

// Totals are kept elsewhere, so each text has a registry of its own.
class Page {
 public:
  template <typename T>
  void Gauge(const char* name, const char* help, T value, const prometheus::Labels& labels = {}) {
    prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(labels).Set(
        static_cast<double>(value));
  }
  template <typename T>
  void Counter(const char* name, const char* help, T total, const prometheus::Labels& labels = {}) {
    prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(labels).Increment(
        static_cast<double>(total));
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(registry_.Collect()); }

 private:
  prometheus::Registry registry_{prometheus::Registry::InsertBehavior::Merge};
};

void AddSessions(const VerifierStats& s, Page* page) {
  const char* const now = "vericache_verifier_sessions";
  const char* const now_help = "Sessions now, by what they wait for";
  page->Gauge(now, now_help, s.prompts, {{"state", "prompt"}});
  page->Gauge(now, now_help, s.questions, {{"state", "question"}});
  page->Gauge(now, now_help, s.sessions - s.prompts - s.questions, {{"state", "idle"}});
  const char* const all = "vericache_verifier_sessions_total";
  const char* const all_help = "Sessions, by event";
  page->Counter(all, all_help, s.opened, {{"event", "opened"}});
  page->Counter(all, all_help, s.refused, {{"event", "refused"}});
  page->Counter(all, all_help, s.expired, {{"event", "expired"}});
  page->Counter(all, all_help, s.failed, {{"event", "failed"}});
  page->Counter(all, all_help, s.preempted, {{"event", "preempted"}});
}

void AddWork(const VerifierStats& s, Page* page) {
  page->Counter("vericache_verifications_total", "Verifications, plain steps included",
                s.verifications);
  const char* const tokens = "vericache_tokens_total";
  page->Counter(tokens, "Tokens, by kind", s.drafted, {{"kind", "drafted"}});
  page->Counter(tokens, "Tokens, by kind", s.accepted, {{"kind", "accepted"}});
  page->Counter(tokens, "Tokens, by kind", s.emitted, {{"kind", "emitted"}});
  page->Counter("vericache_remote_rows_bytes_total", "Exact K/V rows sent", s.rows_bytes);
  page->Counter("vericache_passes_total", "Passes of the model", s.passes);
  page->Counter("vericache_pass_seconds_total", "Time in passes", s.pass_s);
  page->Counter("vericache_verify_stall_seconds_total",
                "Time in passes spent waiting for spilled K/V", s.stall_s);
  page->Counter("vericache_kv_fetch_seconds_total", "Time in which spilled K/V were read back",
                s.fetch_s);
  page->Counter("vericache_kv_fetched_bytes_total", "Spilled K/V read back", s.fetched_bytes);
  page->Gauge("vericache_kv_hidden_share",
              "Of the time of reading spilled K/V back, what passes did not wait for",
              s.fetch_s > 0 ? std::clamp(1 - s.stall_s / s.fetch_s, 0.0, 1.0) : 1.0);
  page->Gauge("vericache_kv_bytes", "K/V held, by tier", s.kv_ram_bytes, {{"tier", "ram"}});
  page->Gauge("vericache_kv_bytes", "K/V held, by tier", s.kv_spilled_bytes, {{"tier", "spilled"}});
}

}  // namespace

std::string VerifierMetricsText(const VerifierStats* stats, const HttpCounts& http) {
  Page page;
  page.Gauge("vericache_ready", "1 once the model is loaded", stats != nullptr ? 1 : 0);
  if (stats != nullptr) {
    AddSessions(*stats, &page);
    AddWork(*stats, &page);
  }
  page.Gauge("vericache_http_connections", "Open connections", http.connections);
  const char* const events = "vericache_http_events_total";
  page.Counter(events, "Connections, by event", http.accepted, {{"event", "accepted"}});
  page.Counter(events, "Connections, by event", http.refused, {{"event", "refused"}});
  page.Counter(events, "Connections, by event", http.timed_out, {{"event", "timed_out"}});
  page.Counter(events, "Connections, by event", http.clients_left, {{"event", "client_left"}});
  return page.Text();
}

}  // namespace vericache::server
