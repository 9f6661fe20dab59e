// HTTP GET and HEAD over libcurl, the only file of ours that knows libcurl.
//
// Redirects are followed here and not by libcurl, because two rules must hold on every hop: the
// token goes only to the origin (scheme, host, port) of the first URL, and https never falls back
// to http.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace vericache {

struct HttpOptions {
  int connect_timeout_ms = 5000;
  int stall_timeout_s = 30;
  std::string ca_file;
};

enum class HttpMethod { kGet, kHead };

struct HttpResult {
  enum class Outcome {
    kAnswered,     // `status` and `headers` are those of the last hop
    kUnreachable,  // no connection, no name, no TLS: nothing was answered
    kBrokenOff,    // an answer began and ended too early, or stalled
    kStopped,      // on_body gave an error, or a redirect was refused: `stop_status`
  };
  Outcome outcome = Outcome::kUnreachable;
  int status = 0;
  // Names in lower case. Of all hops; a later hop wins, save for "x-linked-..." and
  // "x-error-...", which only the Hub itself may set.
  std::map<std::string, std::string> headers;
  std::string error_text;  // of kUnreachable and kBrokenOff
  absl::Status stop_status;

  std::string Header(const std::string& name) const;  // "" if absent
};

struct HttpRequest {
  HttpMethod method = HttpMethod::kGet;
  std::string url;
  std::string bearer_token;
  int64_t range_begin = 0;  // > 0: asks for the bytes from there on
  // Called with the body of a 2xx answer, piece by piece; `result` holds status and headers.
  std::function<absl::Status(const HttpResult& result, absl::Span<const char> bytes)> on_body;
};

class HttpClient {
 public:
  explicit HttpClient(const HttpOptions& options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // THREADS: one call at a time.
  HttpResult Run(const HttpRequest& request);

 private:
  HttpResult RunHop(const HttpRequest& request, const std::string& url, bool send_token,
                    std::string* redirect_url, HttpResult result);

  const HttpOptions options_;
  void* curl_;  // CURL*; kept, so that connections are used again
};

// "https://host:port" of a URL in lower case; "" if it is no http(s) URL.
std::string OriginOf(const std::string& url);

}  // namespace vericache
