// The real server over a scripted service: stub_server SCRIPT.json PORT_FILE
//
// The script's "server" object sets options, named as in HttpOptions and ApiOptions.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include "server/server.h"
#include "tests/server/stub_service.h"

namespace {

using nlohmann::json;
using vericache::server::ServerOptions;

template <typename T>
void Set(const json& from, const char* name, T* value) {
  if (from.contains(name)) *value = from[name].get<T>();
}

ServerOptions OptionsOf(const json& from) {
  ServerOptions options;
  options.http.port = 0;
  Set(from, "host", &options.http.host);
  Set(from, "port", &options.http.port);
  Set(from, "connections_max", &options.http.connections_max);
  Set(from, "header_bytes_max", &options.http.header_bytes_max);
  Set(from, "body_bytes_max", &options.http.body_bytes_max);
  Set(from, "header_s_max", &options.http.header_s_max);
  Set(from, "body_grace_s", &options.http.body_grace_s);
  Set(from, "body_rate_min", &options.http.body_rate_min);
  Set(from, "idle_s_max", &options.http.idle_s_max);
  Set(from, "write_s_max", &options.http.write_s_max);
  Set(from, "unsent_bytes_max", &options.http.unsent_bytes_max);
  Set(from, "cors_origin", &options.http.cors_origin);
  Set(from, "tls_cert", &options.http.tls_cert);
  Set(from, "tls_key", &options.http.tls_key);
  Set(from, "api_keys", &options.api.api_keys);
  Set(from, "strict_model", &options.api.strict_model);
  Set(from, "fold_system", &options.api.fold_system);
  Set(from, "stuck_s", &options.api.stuck_s);
  Set(from, "grace_s", &options.grace_s);
  options.api.defaults.sampling.temperature = 1;
  options.api.defaults.max_tokens = 0;
  options.api.receipt_json = [](const vericache::Receipt& receipt) {
    return json{{"token_ids", receipt.token_ids}, {"choice", receipt.sampling.choice}}.dump();
  };
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: stub_server SCRIPT.json PORT_FILE\n");
    return 2;
  }
  const json script = json::parse(std::ifstream(argv[1]));
  const json settings = script.value("server", json::object());
  vericache::server::ServerHooks hooks;
  hooks.on_listening = [](int port) { std::fprintf(stderr, "listening on %d\n", port); };
  hooks.load = [&]() -> absl::StatusOr<std::shared_ptr<vericache::CompletionService>> {
    std::this_thread::sleep_for(std::chrono::milliseconds(settings.value("load_ms", 0)));
    return vericache::MakeStubService(script);
  };
  const std::string port_file = argv[2];
  hooks.on_ready = [&](int port) {
    const std::string temporary = port_file + ".new";
    std::ofstream(temporary) << port << "\n";
    std::rename(temporary.c_str(), port_file.c_str());
    return absl::OkStatus();
  };
  const absl::Status status = vericache::server::RunServer(OptionsOf(settings), hooks);
  if (!status.ok()) std::fprintf(stderr, "stub_server: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
