// `vericache verifier`: verifies what serving nodes elsewhere draft (docs/remote_drafting.md).
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "cli/args.h"
#include "cli/batch_report.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/files.h"
#include "cli/models.h"
#include "cli/progress.h"
#include "cli/remote_flags.h"
#include "server/verifier_server.h"
#include "vericache/remote.h"

namespace vericache::cli {
namespace {

constexpr uint64_t kPrefixMemory = uint64_t{512} << 20;
constexpr int kMoreThreads = 8;  // for what does not wait in a session

struct Settings {
  ModelFlags model;
  PrefixFlags prefix;
  VerifierOptions verifier;
  server::VerifierServerOptions server;
  std::string port_file, key_file, timeline;
  float idle_s = static_cast<float>(VerifierOptions().idle_s);
};

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string TimelineOf(const std::vector<TimelineEvent>& events) {
  int64_t last = -1;
  for (const TimelineEvent& event : events) last = std::max(last, event.request);
  std::vector<std::string> names;
  for (int64_t i = 0; i <= last; ++i) names.push_back(fmt::format("session {}", i));
  return ChromeTrace(events, names);
}

absl::Status Settle(Settings* s) {
  VC_RETURN_IF_ERROR(FindModel(s->model.model).status());
  if (!s->port_file.empty()) VC_RETURN_IF_ERROR(CheckWritable("--port-file", s->port_file));
  if (!s->key_file.empty()) {
    VC_ASSIGN_OR_RETURN(s->server.keys, ReadKeyFile(s->key_file));
  } else if (!IsLoopback(s->server.http.host)) {
    return UsageError(fmt::format(
        "--host {} lets other machines in: give --api-key-file, so that not all may ask",
        s->server.http.host));
  }
  if (!s->timeline.empty()) VC_RETURN_IF_ERROR(CheckWritable("--timeline", s->timeline));
  s->verifier.timeline = !s->timeline.empty();
  s->verifier.idle_s = s->idle_s;
  s->server.http.handler_threads = s->verifier.max_sessions + kMoreThreads;
  s->server.http.cors_origin.clear();
  return absl::OkStatus();
}

absl::Status Run(Settings* s) {
  VC_RETURN_IF_ERROR(Settle(s));
  const std::string scheme = s->server.http.tls_cert.empty() ? "http" : "https";
  server::VerifierHooks hooks;
  hooks.on_listening = [&](int port) {
    fmt::print(stderr, "listen   {}://{}:{}, loading the model\n", scheme, s->server.http.host,
               port);
  };
  hooks.load = [&]() -> absl::StatusOr<std::shared_ptr<VerifierHost>> {
    VC_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, LoadEngine(s->model, s->prefix));
    VC_ASSIGN_OR_RETURN(std::unique_ptr<VerifierHost> host,
                        StartVerifier(std::move(engine), s->verifier));
    return std::shared_ptr<VerifierHost>(std::move(host));
  };
  hooks.on_ready = [&](int port) {
    fmt::print(stderr, "ready    {}://{}:{}\n", scheme, s->server.http.host, port);
    return s->port_file.empty() ? absl::OkStatus()
                                : WriteFileAtomic(s->port_file, fmt::format("{}\n", port));
  };
  hooks.on_stopped = [&](VerifierHost* host) {
    const VerifierStats stats = host->stats();
    fmt::print(stderr,
               "verified {} sessions ({} refused, {} forgotten), {} passes, {} of {} drafted "
               "tokens accepted\n",
               stats.opened, stats.refused, stats.expired, stats.passes, stats.accepted,
               stats.drafted);
    if (stats.peak_kv_bytes > 0)
      fmt::print(stderr, "memory   {} for KV at most; {} read back in {}, {} waited for\n",
                 FormatBytes(stats.peak_kv_bytes), FormatBytes(stats.fetched_bytes),
                 FormatSeconds(stats.fetch_s), FormatSeconds(stats.stall_s));
    return s->timeline.empty() ? absl::OkStatus()
                               : WriteFileAtomic(s->timeline, TimelineOf(host->TakeTimeline()));
  };
  return server::RunVerifierServer(s->server, hooks);
}

constexpr char kExamples[] =
    "  vericache verifier -m model.gguf --prefix-store redis://localhost:6379/0\n"
    "  vericache verifier -m model.gguf --prefix-store /prefixes --host 0.0.0.0 --api-key-file "
    "keys --tls-cert cert.pem --tls-key key.pem\n"
    "  vericache run -m model.gguf -f book.txt -p Why? --draft kvzip:0.25+int4 --prefix-store "
    "redis://near-the-verifier:6379/0 --verifier https://near-the-verifier:8090 "
    "--verifier-key-file key";

}  // namespace

CommandBody DeclareVerifier(Flags* flags) {
  auto settings = std::make_shared<Settings>();
  Settings* s = settings.get();
  s->server.http.port = 8090;
  s->prefix.memory_bytes = kPrefixMemory;
  server::HttpOptions* http = &s->server.http;
  flags->Group("Server");
  flags->Name("--host", "ADDRESS", "IP address to listen on (default 127.0.0.1)", &http->host);
  flags->Integer("--port", "N", "Port; 0: a free one (default 8090)", &http->port, 0, 65535);
  flags->Name("--port-file", "FILE", "Write the port there once the model is ready", &s->port_file);
  flags->Name("--api-key-file", "FILE", "Keys that serving nodes need, one a line", &s->key_file);
  flags->Name("--tls-cert", "FILE", "Certificate chain (PEM); with --tls-key: HTTPS",
              &http->tls_cert);
  flags->Name("--tls-key", "FILE", "Private key (PEM)", &http->tls_key);
  flags->Integer("--sessions", "N", "Answers in the making at once (default 64)",
                 &s->verifier.max_sessions, 1, 1024);
  flags->Real("--session-idle", "S", "A session that nobody asks for so long ends (default 120)",
              &s->idle_s, 1, 86400);
  flags->Name("--timeline", "FILE",
              "At its end, write what ran when, for chrome://tracing and Perfetto", &s->timeline);
  flags->Switch("--lock-step", "Read nothing ahead of a verification, to be measured against",
                &s->verifier.lock_step);
  s->model.Declare(flags);
  s->prefix.Declare(flags);
  flags->Examples(kExamples);
  return [settings] { return Run(settings.get()); };
}

}  // namespace vericache::cli
