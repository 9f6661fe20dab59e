// The routes of the server: who may call what, and which handler answers.
//
// Exists before the model is loaded: until SetService() everything but /health and /metrics is
// answered 503.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/http.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "vericache/serving.h"

namespace vericache::server {

struct ApiOptions {
  Request defaults;      // what requests that leave fields out get; max_tokens 0: no limit
  std::string model_id;  // "": the name of the model's file
  bool strict_model = false;
  bool fold_system = false;
  bool split_reasoning = true;
  std::vector<std::string> api_keys;  // none: any key passes
  // Without a pass for so long while there is work, the engine counts as stuck: /health 503.
  double stuck_s = 120;
  std::function<std::string(const Receipt&)> receipt_json;
};

class ApiServer : public HttpHandler {
 public:
  explicit ApiServer(ApiOptions options);

  // From now on requests are served.
  void SetService(std::shared_ptr<CompletionService> service);
  // From now on new requests are answered 503.
  void SetStopping();
  // For /metrics; `counts` is called there.
  void SetHttpCounts(std::function<HttpCounts()> counts);

  bool IsQuick(const HttpRequest& request) const override;
  void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override;
  HttpResponse ErrorResponse(int status, std::string_view message) const override;

 private:
  using Service = std::shared_ptr<CompletionService>;
  struct Route {
    const char* method;
    const char* path;
    bool open;   // needs no key
    bool quick;  // waits for nothing
    bool needs_model;
    void (ApiServer::*handle)(const HttpRequest&, const Service&, std::shared_ptr<HttpReply>);
  };
  static const Route kRoutes[];

  void Answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply);
  // `method`: the one that its path is for, "" for unknown paths.
  const Route* Find(const HttpRequest& request, std::string* method) const;
  bool HasKey(const HttpRequest& request) const;
  RequestRules RulesOf(const CompletionService& service) const;
  std::string ModelId(const CompletionService& service) const;
  Service service() const;

  void Chat(const HttpRequest&, const Service&, std::shared_ptr<HttpReply>);
  void Complete(const HttpRequest&, const Service&, std::shared_ptr<HttpReply>);
  void StartJob(Endpoint endpoint, const HttpRequest&, const Service&, std::shared_ptr<HttpReply>);
  void ListModels(const HttpRequest&, const Service&, std::shared_ptr<HttpReply>);
  void Tokenize(const HttpRequest&, const Service&, std::shared_ptr<HttpReply>);
  void Detokenize(const HttpRequest&, const Service&, std::shared_ptr<HttpReply>);
  void Health(const HttpRequest&, const Service&, std::shared_ptr<HttpReply>);
  void ShowMetrics(const HttpRequest&, const Service&, std::shared_ptr<HttpReply>);
  void SendError(const std::string& path, const absl::Status& status, HttpReply* reply);
  void SendJson(const std::string& path, int status, std::string body, HttpReply* reply);

  const ApiOptions options_;
  const int64_t created_;
  Metrics metrics_;
  mutable std::mutex mutex_;
  Service service_;
  bool stopping_ = false;
  std::function<HttpCounts()> counts_;
};

}  // namespace vericache::server
