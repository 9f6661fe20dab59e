// `vericache serve`: the OpenAI-compatible server (docs/serving.md).
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/files.h"
#include "cli/json_out.h"
#include "cli/models.h"
#include "cli/remote_flags.h"
#include "server/server.h"
#include "vericache/engine.h"
#include "vericache/serving.h"

namespace vericache::cli {
namespace {

constexpr uint64_t kPrefixMemory = uint64_t{512} << 20;
constexpr uint64_t kDraftShare = 4;  // of --kv-memory, with --verifier

struct Settings {
  ModelFlags model;
  PrefixFlags prefix;
  DecodingFlags decoding;
  RemoteFlags remote;
  ServiceOptions service;
  server::ServerOptions server;
  std::string config, port_file, api_keys, api_key_file;
  bool no_warmup = false;
  // Half a second of silence in a stream is not felt; people wait at a server.
  int64_t max_tokens = 0, max_burst_ms = 500;
  float temperature = 1, grace_s = 3, stuck_s = 120;
  std::function<absl::Status(const std::string&)> read_config;
};

// Trimmed, without empty ones.
void AddKeys(std::string_view text, std::vector<std::string>* keys) {
  for (std::string_view key : Split(text, ',')) {
    while (!key.empty() && key.back() == ' ') key.remove_suffix(1);
    while (!key.empty() && key.front() == ' ') key.remove_prefix(1);
    if (!key.empty()) keys->emplace_back(key);
  }
}

absl::Status Settle(Settings* s) {
  if (!s->config.empty()) VC_RETURN_IF_ERROR(s->read_config(s->config));
  VC_RETURN_IF_ERROR(FindModel(s->model.model).status());
  if (!s->port_file.empty()) VC_RETURN_IF_ERROR(CheckWritable("--port-file", s->port_file));
  server::ApiOptions* api = &s->server.api;
  AddKeys(s->api_keys, &api->api_keys);
  if (!s->api_key_file.empty()) {
    VC_ASSIGN_OR_RETURN(const std::vector<std::string> keys, ReadKeyFile(s->api_key_file));
    api->api_keys.insert(api->api_keys.end(), keys.begin(), keys.end());
  }
  api->defaults.draft = s->decoding.draft;
  api->defaults.draft_len = s->decoding.draft_len;
  api->defaults.propose = s->decoding.propose;
  api->defaults.max_tokens = s->max_tokens;
  api->defaults.sampling.temperature = s->temperature;
  api->receipt_json = ReceiptJson;
  api->stuck_s = s->stuck_s;
  s->server.grace_s = s->grace_s;
  s->service.warm_up = !s->no_warmup;
  s->service.max_burst_s = static_cast<double>(s->max_burst_ms) * 1e-3;
  if (!s->remote.wanted()) return absl::OkStatus();
  VC_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<RemoteVerifier>> verifiers, s->remote.Connect());
  for (auto& verifier : verifiers) s->service.verifiers.push_back(std::move(verifier));
  s->service.remote.wait_s = std::min<double>(s->service.remote.wait_s, s->remote.timeout_s);
  // One budget: a part of it for draft KVs whose full KV a verifier has.
  s->service.remote_draft_memory = s->model.kv_memory / kDraftShare;
  s->model.kv_memory -= s->service.remote_draft_memory;
  return absl::OkStatus();
}

absl::Status Run(Settings* s) {
  VC_RETURN_IF_ERROR(Settle(s));
  const std::string scheme = s->server.http.tls_cert.empty() ? "http" : "https";
  std::string host = s->server.http.host;
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  server::ServerHooks hooks;
  hooks.on_listening = [&](int port) {
    fmt::print(stderr, "listen   {}://{}:{}, loading the model\n", scheme, host, port);
  };
  hooks.load = [&]() -> absl::StatusOr<std::shared_ptr<CompletionService>> {
    VC_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                        LoadEngine(s->model, s->prefix, s->decoding.draft_model));
    VC_ASSIGN_OR_RETURN(std::unique_ptr<CompletionService> service,
                        StartService(std::move(engine), s->service));
    return std::shared_ptr<CompletionService>(std::move(service));
  };
  hooks.on_ready = [&](int port) {
    fmt::print(stderr, "ready    {}://{}:{}/v1\n", scheme, host, port);
    return s->port_file.empty() ? absl::OkStatus()
                                : WriteFileAtomic(s->port_file, fmt::format("{}\n", port));
  };
  hooks.on_stopping = [&] {
    fmt::print(stderr, "stop     requests have {} s to end; a second signal ends at once\n",
               s->grace_s);
  };
  return server::RunServer(s->server, hooks);
}

void DeclareHttp(Flags* flags, Settings* s) {
  server::HttpOptions* http = &s->server.http;
  flags->Group("Server");
  flags->Name("--host", "ADDRESS", "IP address to listen on (default 127.0.0.1)", &http->host);
  flags->Integer("--port", "N", "Port; 0: a free one (default 8080)", &http->port, 0, 65535);
  flags->Name("--port-file", "FILE", "Write the port there once the model is ready", &s->port_file);
  flags->Text("--api-key", "KEY", "Key that requests need; several with commas (default: any)",
              &s->api_keys);
  flags->Name("--api-key-file", "FILE", "Keys, one a line", &s->api_key_file);
  flags->Text("--cors", "ORIGIN", "Pages that may call; \"\": none (default *)",
              &http->cors_origin);
  flags->Name("--tls-cert", "FILE", "Certificate chain (PEM); with --tls-key: HTTPS",
              &http->tls_cert);
  flags->Name("--tls-key", "FILE", "Private key (PEM)", &http->tls_key);
  flags->Custom("--max-body", "SIZE", "Largest request body (default 32MiB)",
                [http](const std::string& text) {
                  const absl::Status status = ParseBytes(text, &http->body_bytes_max);
                  http->all_bodies_bytes_max =
                      std::max(http->all_bodies_bytes_max, 4 * http->body_bytes_max);
                  return status;
                });
  flags->Integer("--max-connections", "N", "Open connections (default 1024)",
                 &http->connections_max, 1, 100000);
  flags->Integer("--http-threads", "N", "Threads that write and read (default 2)",
                 &http->io_threads, 1, 64);
  flags->Real("--grace", "S", "Seconds that running requests have after SIGTERM (default 3)",
              &s->grace_s, 0, 86400);
  flags->Switch("--no-warmup", "Time no passes before the first request", &s->no_warmup);
  flags->Real("--stuck-after", "S", "Health fails after a pass of so long (default 120)",
              &s->stuck_s, 1, 86400);
  flags->Name("--config", "FILE", "Settings: `flag = value` a line", &s->config);
}

void DeclareApi(Flags* flags, Settings* s) {
  server::ApiOptions* api = &s->server.api;
  flags->Group("Requests");
  flags->Name("--alias", "NAME", "The model's name in replies (default: its file's)",
              &api->model_id);
  flags->Switch("--strict-model", "Refuse requests for another model", &api->strict_model);
  flags->Integer("--max-tokens", "N",
                 "Where a request says nothing (default: what the context has)", &s->max_tokens, 1,
                 int64_t{1} << 40);
  flags->Real("--temp", "T", "Where a request says nothing (default 1, as OpenAI's)",
              &s->temperature, 0, 100);
  flags->Switch("--fold-system", "Put system text into the first user turn", &api->fold_system);
  flags->Custom(
      "--reasoning", "HOW", "auto: split <think> from the answer; none (default auto)",
      [api](const std::string& text) {
        api->split_reasoning = text == "auto";
        return text == "auto" || text == "none"
                   ? absl::OkStatus()
                   : absl::InvalidArgumentError(fmt::format("'{}' is neither auto nor none", text));
      });
  flags->Integer("--parallel", "N", "Choices computed at once (default 64)",
                 &s->service.max_running, 1, 1024);
  flags->Integer("--queue", "N", "Choices that wait at most (default 1024)",
                 &s->service.max_waiting, 0, 1 << 20);
  flags->Integer("--max-burst-ms", "N",
                 "Longest pause in a stream that drafting may make; 0: any (default 500)",
                 &s->max_burst_ms, 0, int64_t{24} * 3600 * 1000);
  flags->Custom("--prefix-memory", "SIZE",
                "RAM for K/V of earlier prompts; 0: none (default 512MiB)",
                [s](const std::string& text) {
                  if (text != "0") return ParseBytes(text, &s->prefix.memory_bytes);
                  s->prefix.memory_bytes = 0;
                  return absl::OkStatus();
                });
}

constexpr char kExamples[] =
    "  vericache serve -m qwen2.5-coder-0.5b\n"
    "  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", "
    "\"content\": \"Hi\"}]}'\n"
    "  vericache serve -m model.gguf --port 0 --port-file port --api-key-file keys --kv-memory "
    "2GiB\n"
    "  vericache serve -m model.gguf --draft kvzip:0.25+int4 --prefix-store redis://far-away "
    "--prefix-store-mode ro --verifier https://far-away:8090 --verifier-key-file key\n"
    "\n"
    "The command line wins over the environment, the environment over --config.";

}  // namespace

CommandBody DeclareServe(Flags* flags) {
  auto settings = std::make_shared<Settings>();
  Settings* s = settings.get();
  s->prefix.memory_bytes = kPrefixMemory;
  DeclareHttp(flags, s);
  DeclareApi(flags, s);
  s->model.Declare(flags);
  s->prefix.Declare(flags);
  s->prefix.DeclarePlan(flags);
  s->decoding.DeclareDraft(flags);
  s->remote.Declare(flags);
  flags->Examples(kExamples);
  s->read_config = flags->ConfigReader();
  return [settings] { return Run(settings.get()); };
}

}  // namespace vericache::cli
