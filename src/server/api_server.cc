#include "server/api_server.h"

#include <ctime>
#include <exception>
#include <new>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"
#include "server/api_error.h"
#include "server/api_keys.h"
#include "server/completion_job.h"
#include "server/fields.h"
#include "server/json.h"

namespace vericache::server {
namespace {

constexpr std::string_view kModels = "/v1/models";

std::string FileStem(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name;
}

// Clients write a slash within a name as %2F.
std::string PercentDecoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? digit(text[i + 1]) : -1;
    const int low = high >= 0 ? digit(text[i + 2]) : -1;
    if (low < 0) {
      decoded += text[i];
      continue;
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

absl::StatusOr<std::vector<int32_t>> ReadTokens(const Fields& fields, int64_t vocab_size) {
  const Json* tokens = fields.Find("tokens");
  const absl::Status bad =
      fields.Bad("tokens", StrCat("must be a list of token ids from 0 to ", vocab_size - 1));
  if (tokens == nullptr || !tokens->is_array()) return bad;
  std::vector<int32_t> ids;
  for (const Json& id : *tokens) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size))
      return bad;
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

const ApiServer::Route ApiServer::kRoutes[] = {
    {"POST", "/v1/chat/completions", false, false, true, &ApiServer::Chat},
    {"POST", "/v1/completions", false, false, true, &ApiServer::Complete},
    {"GET", "/v1/models", false, true, true, &ApiServer::ListModels},
    {"GET", "/v1/models/*", false, true, true, &ApiServer::ListModels},
    {"POST", "/tokenize", false, false, true, &ApiServer::Tokenize},
    {"POST", "/detokenize", false, false, true, &ApiServer::Detokenize},
    {"GET", "/health", true, true, false, &ApiServer::Health},
    {"GET", "/health/live", true, true, false, &ApiServer::Health},
    {"GET", "/health/ready", true, true, false, &ApiServer::Health},
    {"GET", "/metrics", false, true, false, &ApiServer::ShowMetrics},
};

ApiServer::ApiServer(ApiOptions options)
    : options_(std::move(options)), created_(static_cast<int64_t>(std::time(nullptr))) {}

void ApiServer::SetService(std::shared_ptr<CompletionService> service) {
  const std::lock_guard<std::mutex> lock(mutex_);
  service_ = std::move(service);
}

void ApiServer::SetStopping() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopping_ = true;
}

void ApiServer::SetHttpCounts(std::function<HttpCounts()> counts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  counts_ = std::move(counts);
}

ApiServer::Service ApiServer::service() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return service_;
}

const ApiServer::Route* ApiServer::Find(const HttpRequest& request, std::string* method) const {
  method->clear();
  for (const Route& route : kRoutes) {
    std::string_view path = route.path;
    const bool prefix = path.ends_with('*');
    if (prefix) path.remove_suffix(1);
    const bool same = prefix ? request.path.size() > path.size() && request.path.starts_with(path)
                             : request.path == path;
    if (!same) continue;
    *method = route.method;
    if (request.method == route.method) return &route;
  }
  return nullptr;
}

bool ApiServer::HasKey(const HttpRequest& request) const {
  return server::HasKey(request, options_.api_keys);
}

bool ApiServer::IsQuick(const HttpRequest& request) const {
  std::string method;
  const Route* route = Find(request, &method);
  return route == nullptr || route->quick || !HasKey(request);
}

void ApiServer::Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) {
  try {
    Answer(request, reply);
  } catch (const std::bad_alloc&) {
    SendError("", WithCode(absl::UnavailableError("out of memory"), "out_of_memory"), reply.get());
  } catch (const std::exception& error) {
    SendError("", absl::InternalError(error.what()), reply.get());
  }
}

void ApiServer::Answer(const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
  std::string method;
  bool stopping = false;
  Service current;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    current = service_;
    stopping = stopping_;
  }
  const Route* route = Find(request, &method);
  if (route == nullptr || !route->open) {
    if (!HasKey(request))
      return SendError("", absl::UnauthenticatedError("the API key is missing or wrong"),
                       reply.get());
  }
  if (route == nullptr) {
    HttpResponse response =
        method.empty() ? ErrorResponse(404, StrCat("there is nothing at ", request.path))
                       : ErrorResponse(405, StrCat(request.method, " is not for ", request.path));
    if (!method.empty())
      response.headers.emplace_back("Allow",
                                    method == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
    metrics_.Replied("other", response.status);
    return reply->Send(std::move(response));
  }
  if (route->needs_model && stopping)
    return SendError(route->path, absl::UnavailableError("the server is stopping"), reply.get());
  if (route->needs_model && current == nullptr)
    return SendError(route->path,
                     WithCode(absl::UnavailableError("the model is loading"), "model_loading"),
                     reply.get());
  (this->*route->handle)(request, current, reply);
}

HttpResponse ApiServer::ErrorResponse(int status, std::string_view message) const {
  ApiError error;
  error.type = status < 500 ? "invalid_request_error" : "server_error";
  error.message = std::string(message);
  error.code = status == 404   ? "not_found"
               : status == 405 ? "method_not_allowed"
               : status == 408 ? "request_timeout"
               : status == 413 ? "body_too_large"
               : status == 431 ? "header_too_large"
                               : "";
  HttpResponse response;
  response.status = status;
  response.body = ErrorJson(error);
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

void ApiServer::SendError(const std::string& path, const absl::Status& status, HttpReply* reply) {
  const ApiError error = ApiErrorOf(status);
  metrics_.Replied(path.empty() ? "other" : path, error.http_status);
  metrics_.Failed(error.code);
  HttpResponse response;
  response.status = error.http_status;
  response.body = ErrorJson(error);
  if (error.retry_later) response.headers.emplace_back("Retry-After", "1");
  if (error.http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  reply->Send(std::move(response));
}

void ApiServer::SendJson(const std::string& path, int status, std::string body, HttpReply* reply) {
  metrics_.Replied(path, status);
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  reply->Send(std::move(response));
}

std::string ApiServer::ModelId(const CompletionService& service) const {
  return options_.model_id.empty() ? FileStem(service.info().path) : options_.model_id;
}

RequestRules ApiServer::RulesOf(const CompletionService& service) const {
  RequestRules rules;
  rules.defaults = options_.defaults;
  rules.context_length = service.info().context_length;
  rules.vocab_size = service.info().vocab_size;
  rules.model_id = ModelId(service);
  rules.strict_model = options_.strict_model;
  rules.fold_system = options_.fold_system;
  rules.split_reasoning = options_.split_reasoning;
  return rules;
}

void ApiServer::Chat(const HttpRequest& request, const Service& service,
                     std::shared_ptr<HttpReply> reply) {
  StartJob(Endpoint::kChat, request, service, std::move(reply));
}

void ApiServer::Complete(const HttpRequest& request, const Service& service,
                         std::shared_ptr<HttpReply> reply) {
  StartJob(Endpoint::kCompletions, request, service, std::move(reply));
}

void ApiServer::StartJob(Endpoint endpoint, const HttpRequest& request, const Service& service,
                         std::shared_ptr<HttpReply> reply) {
  absl::StatusOr<ApiRequest> parsed = ParseApiRequest(endpoint, request.body, RulesOf(*service));
  if (!parsed.ok()) return SendError(request.path, parsed.status(), reply.get());
  JobContext context;
  context.service = service;
  context.metrics = &metrics_;
  context.receipt_json = options_.receipt_json;
  context.path = request.path;
  CompletionJob::Start(*std::move(parsed), context, std::move(reply));
}

void ApiServer::ListModels(const HttpRequest& request, const Service& service,
                           std::shared_ptr<HttpReply> reply) {
  const std::string id = ModelId(*service);
  const ModelInfo& info = service->info();
  const OrderedJson model = {{"id", id},
                             {"object", "model"},
                             {"created", created_},
                             {"owned_by", "vericache"},
                             {"max_model_len", info.context_length},
                             {"vericache",
                              {{"architecture", info.architecture},
                               {"vocab_size", info.vocab_size},
                               {"file_bytes", info.file_bytes},
                               {"kv_bytes_per_token", info.kv_bytes_per_token},
                               {"has_chat_template", info.has_chat_template}}}};
  const bool one = request.path != kModels;
  if (one && PercentDecoded(std::string_view(request.path).substr(kModels.size() + 1)) != id)
    return SendError("/v1/models/*",
                     WithCode(absl::NotFoundError(StrCat("this server has the model '", id, "'")),
                              "model_not_found"),
                     reply.get());
  const OrderedJson list = {{"object", "list"}, {"data", OrderedJson::array({model})}};
  SendJson(one ? "/v1/models/*" : "/v1/models", 200, Dump(one ? model : list), reply.get());
}

void ApiServer::Tokenize(const HttpRequest& request, const Service& service,
                         std::shared_ptr<HttpReply> reply) {
  const auto tokenize = [&]() -> absl::StatusOr<std::vector<int32_t>> {
    VC_ASSIGN_OR_RETURN(const Json body, ParseBody(request.body));
    const Fields fields(body);
    Request prompt;
    if (fields.Find("messages") != nullptr) {
      std::vector<std::string> tools;
      VC_RETURN_IF_ERROR(ParseChatInput(request.body, RulesOf(*service), &prompt, &tools));
    } else {
      const char* name = fields.Find("prompt") != nullptr ? "prompt" : "content";
      if (fields.Find(name) == nullptr)
        return fields.Bad("content", "is missing: give content, prompt or messages");
      VC_RETURN_IF_ERROR(fields.Text(name, SIZE_MAX, &prompt.prompt));
      if (prompt.prompt.empty()) return std::vector<int32_t>();
    }
    VC_ASSIGN_OR_RETURN(CompletionService::RenderedPrompt rendered, service->RenderPrompt(prompt));
    return std::move(rendered.token_ids);
  };
  const absl::StatusOr<std::vector<int32_t>> tokens = tokenize();
  if (!tokens.ok()) return SendError(request.path, tokens.status(), reply.get());
  const OrderedJson json = {{"tokens", *tokens},
                            {"count", tokens->size()},
                            {"max_model_len", service->info().context_length}};
  SendJson(request.path, 200, Dump(json), reply.get());
}

void ApiServer::Detokenize(const HttpRequest& request, const Service& service,
                           std::shared_ptr<HttpReply> reply) {
  const auto detokenize = [&]() -> absl::StatusOr<std::string> {
    VC_ASSIGN_OR_RETURN(const Json body, ParseBody(request.body));
    VC_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                        ReadTokens(Fields(body), service->info().vocab_size));
    return service->Detokenize(ids);
  };
  const absl::StatusOr<std::string> text = detokenize();
  if (!text.ok()) return SendError(request.path, text.status(), reply.get());
  SendJson(request.path, 200, Dump(OrderedJson{{"content", *text}, {"prompt", *text}}),
           reply.get());
}

// live: the process answers and the engine is idle or moves. ready: live, loaded, not stopping.
void ApiServer::Health(const HttpRequest& request, const Service& service,
                       std::shared_ptr<HttpReply> reply) {
  bool stopping = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping = stopping_;
  }
  ServiceStats stats;
  if (service != nullptr) stats = service->stats();
  const bool live = stats.since_progress_s < options_.stuck_s;
  const bool ready = live && service != nullptr && !stopping;
  const OrderedJson json = {{"status", !live                ? "stuck"
                                       : stopping           ? "stopping"
                                       : service == nullptr ? "loading"
                                                            : "ok"},
                            {"live", live},
                            {"ready", ready},
                            {"since_progress_s", stats.since_progress_s},
                            {"running", stats.running},
                            {"waiting", stats.waiting}};
  const bool good = request.path == "/health/live" ? live : ready;
  SendJson(request.path, good ? 200 : 503, Dump(json), reply.get());
}

void ApiServer::ShowMetrics(const HttpRequest& request, const Service& service,
                            std::shared_ptr<HttpReply> reply) {
  std::function<HttpCounts()> counts;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    counts = counts_;
  }
  ServiceStats stats;
  if (service != nullptr) stats = service->stats();
  metrics_.Replied(request.path, 200);
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body =
      metrics_.Text(service != nullptr ? &stats : nullptr, counts ? counts() : HttpCounts());
  reply->Send(std::move(response));
}

}  // namespace vericache::server
