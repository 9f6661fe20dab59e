// A verifier reached over HTTP: messages of remote_wire.h in POST bodies.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "remote/s3_http.h"
#include "vericache/remote.h"
#include "vericache/remote_wire.h"

namespace vericache {
namespace {

constexpr size_t kMaxMessage = 300;
constexpr size_t kIdleConnections = 64;  // a new one costs round trips

// One line of printable text: it comes from a network.
std::string Sanitised(std::string_view text) {
  std::string line;
  for (const char c : text.substr(0, kMaxMessage))
    line += absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : ' ';
  return line;
}

absl::Status StatusOf(const HttpCall& call) {
  if (call.late) return absl::DeadlineExceededError("no answer in time");
  if (!call.complete || call.status == 0)
    return absl::UnavailableError(StrCat("no answer: ", Sanitised(call.error)));
  const std::string message = StrCat("HTTP ", call.status, ": ", Sanitised(call.text));
  switch (call.status) {
    case 400:
      return absl::DataLossError(message);  // on the way there
    case 401:
    case 403:
      return absl::UnauthenticatedError(message);
    case 404:
      return absl::NotFoundError(message);
    case 409:
      return absl::FailedPreconditionError(message);
    case 413:
      return absl::OutOfRangeError(message);
    case 422:
      return absl::InvalidArgumentError(message);
    case 429:
      return absl::ResourceExhaustedError(message);
    case 500:
      return absl::AbortedError(message);
    default:
      return absl::UnavailableError(message);
  }
}

class HttpVerifier : public RemoteVerifier {
 public:
  HttpVerifier(std::string url, const ConnectOptions& options)
      : url_(std::move(url)), options_(options), http_(SettingsOf(options)) {}

  absl::StatusOr<std::string> Open(const RemoteOpen& request) override {
    VC_ASSIGN_OR_RETURN(const std::string body,
                        Post("open", EncodeRemote(request), options_.timeout_s));
    return DecodeSession(body);
  }
  absl::StatusOr<RemoteVerified> Verify(const RemoteVerify& request) override {
    VC_ASSIGN_OR_RETURN(const std::string body,
                        Post("verify", EncodeRemote(request), options_.timeout_s + request.wait_s));
    return DecodeRemoteVerified(body);
  }
  // A session that is not closed ends by itself: this one is not waited for any longer.
  void Close(const std::string& session) override {
    (void)Post("close", EncodeSession(session), std::min(options_.timeout_s, 2.0));
  }
  void Interrupt() override { http_.Interrupt(); }
  std::string name() const override { return url_; }

 private:
  static HttpSettings SettingsOf(const ConnectOptions& options) {
    HttpSettings settings;
    settings.ca_file = options.ca_file;
    settings.idle_max = kIdleConnections;
    return settings;
  }

  absl::StatusOr<std::string> Post(std::string_view path, const std::string& message,
                                   double seconds) {
    HttpCall call;
    call.method = "POST";
    call.url = StrCat(url_, "/v1/remote/", path);
    // "Expect:" would cost a round trip.
    call.headers = {"Content-Type: application/octet-stream", "Expect:"};
    if (!options_.api_key.empty())
      call.headers.push_back(StrCat("Authorization: Bearer ", options_.api_key));
    call.body = {message};
    call.is_signed = false;
    std::string body;
    call.on_body = [&](const uint8_t* data, size_t size) {
      if (body.size() + size > options_.max_reply_bytes) return false;
      body.append(reinterpret_cast<const char*>(data), size);
      return true;
    };
    HttpCall* calls[] = {&call};
    http_.Run(calls, nullptr,
              std::chrono::steady_clock::now() +
                  std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3)));
    if (call.stopped) return absl::DataLossError("its reply is longer than any should be");
    if (!call.ok()) return StatusOf(call);
    return body;
  }

  const std::string url_;
  const ConnectOptions options_;
  S3Http http_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteVerifier>> ConnectVerifier(const std::string& url,
                                                                const ConnectOptions& options) {
  std::string base = url;
  while (base.ends_with('/')) base.pop_back();
  const size_t scheme = base.starts_with("https://") ? 8 : base.starts_with("http://") ? 7 : 0;
  const bool plain = std::all_of(base.begin(), base.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '@' && c != '?' && c != '#';
  });
  if (scheme == 0 || base.size() == scheme || !plain)
    return absl::InvalidArgumentError(
        "a verifier's URL is http://HOST:PORT or https://HOST:PORT, its key goes into a file");
  if (!(options.timeout_s > 0) || options.timeout_s > 1e6)
    return absl::InvalidArgumentError("the timeout of a verifier must be above 0");
  for (const char c : options.api_key)
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c)))
      return absl::InvalidArgumentError("the verifier's key has a blank or a control character");
  return std::make_unique<HttpVerifier>(std::move(base), options);
}

}  // namespace vericache
