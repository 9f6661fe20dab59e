#include "remote/s3_client.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

constexpr char kKeyChars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-";

bool MayTryAgain(const HttpCall& call) {
  if (call.stopped || call.late) return false;
  if (call.complete) return call.status >= 500 || call.status == 429;
  // Broken off: nobody to talk to is another matter.
  return call.connected;
}

bool HasExpired(const HttpCall& call) {
  const std::string code = call.Code();
  return (call.status == 403 || call.status == 400) &&
         (code == "ExpiredToken" || code == "ExpiredTokenException" || code == "InvalidToken" ||
          code == "TokenRefreshRequired" || code == "InvalidAccessKeyId");
}

absl::Status ParseNumber(const StoreUrl& url, const std::string& name, uint64_t min, uint64_t max,
                         uint64_t* value) {
  const std::string text = url.Param(name);
  if (text.empty() || (ParseInt(text, value) && *value >= min && *value <= max))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(url.Redacted(), ": ", name, " is not a whole number from ", min, " to ", max));
}

absl::Status ParsePlace(const StoreUrl& url, S3Options* o) {
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(StrCat(url.Redacted(), ": ", what));
  };
  o->http.region = url.Param("region");
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"})
    if (o->http.region.empty() && o->environment) o->http.region = o->environment(name);
  if (o->http.region.empty()) o->http.region = "us-east-1";
  if (o->http.region.find_first_not_of(kKeyChars) != std::string::npos)
    return bad("region is not the name of a region");
  o->endpoint = url.Param("endpoint");
  const std::string style = url.Param("style", o->endpoint.empty() ? "host" : "path");
  if (style != "path" && style != "host") return bad("style is neither path nor host");
  o->style = style == "path" ? S3Style::kPath : S3Style::kHost;
  if (o->endpoint.empty()) o->endpoint = StrCat("https://s3.", o->http.region, ".amazonaws.com");
  while (o->endpoint.ends_with('/')) o->endpoint.pop_back();
  const size_t scheme = o->endpoint.find("://");
  if (!o->endpoint.starts_with("http://") && !o->endpoint.starts_with("https://"))
    return bad("endpoint is not an http:// or https:// URL");
  const std::string rest = o->endpoint.substr(scheme + 3);
  const std::string path = rest.find('/') == rest.npos ? "" : rest.substr(rest.find('/'));
  if (rest.find_first_of("@?#\" ") != rest.npos || path.find_first_not_of(kKeyChars) != path.npos)
    return bad("endpoint has a user, a query or a path that cannot be signed");
  o->bucket = url.host;
  if (o->bucket.find_first_not_of(kKeyChars) != std::string::npos)
    return bad("the bucket's name has a character that none has");
  o->prefix = url.path.empty() ? "" : url.path.substr(1);
  if (!o->prefix.empty() && !o->prefix.ends_with('/')) o->prefix += '/';
  if (o->prefix.find_first_not_of(kKeyChars) != std::string::npos ||
      o->prefix.find("..") != std::string::npos || o->prefix.find("//") != std::string::npos)
    return bad("the key prefix may hold letters, digits and / . _ - only");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<S3Options> S3OptionsOf(const StoreUrl& url, Environment environment) {
  VC_RETURN_IF_ERROR(
      CheckParams(url, {"endpoint", "region", "style", "ca_file", "tls_verify", "anonymous",
                        "timeout_ms", "wait_ms", "range_bytes", "part_bytes", "squeeze"}));
  if (!url.user.empty() || !url.password.empty() || url.port != 0)
    return absl::InvalidArgumentError(
        "an s3:// URL holds a bucket only; credentials come from the environment or "
        "~/.aws/credentials, host and port from endpoint=");
  S3Options o;
  o.environment = std::move(environment);
  VC_RETURN_IF_ERROR(ParsePlace(url, &o));
  for (const char* name : {"tls_verify", "anonymous"}) {
    const std::string text = url.Param(name);
    if (!text.empty() && text != "0" && text != "1")
      return absl::InvalidArgumentError(StrCat(url.Redacted(), ": ", name, " is neither 0 nor 1"));
  }
  o.http.ca_file = url.Param("ca_file");
  if (o.http.ca_file.empty() && o.environment) o.http.ca_file = o.environment("AWS_CA_BUNDLE");
  o.http.tls_verify = url.Param("tls_verify", "1") == "1";
  o.is_anonymous = url.Param("anonymous", "0") == "1";
  uint64_t timeout_ms = static_cast<uint64_t>(o.timeout.count());
  VC_RETURN_IF_ERROR(ParseNumber(url, "timeout_ms", 1, 3600000, &timeout_ms));
  o.timeout = std::chrono::milliseconds(timeout_ms);
  uint64_t wait_ms = 0;
  VC_RETURN_IF_ERROR(ParseNumber(url, "wait_ms", 0, 3600000, &wait_ms));
  o.least_wait = std::chrono::milliseconds(wait_ms);
  VC_RETURN_IF_ERROR(ParseNumber(url, "range_bytes", 1024, uint64_t{1} << 30, &o.range_bytes));
  // S3 itself takes no parts below 5 MiB but for the last.
  VC_RETURN_IF_ERROR(
      ParseNumber(url, "part_bytes", uint64_t{5} << 20, uint64_t{1} << 30, &o.multipart_bytes));
  return o;
}

S3Client::S3Client(S3Options options)
    : options_(std::move(options)),
      name_(StrCat("s3://", options_.bucket, "/", options_.prefix)),
      http_(options_.http),
      chain_(options_.environment, &http_),
      random_(std::random_device{}()) {}

std::string S3Client::UrlOf(std::string_view key, std::string_view query) const {
  std::string url;
  if (options_.style == S3Style::kPath) {
    url = StrCat(options_.endpoint, "/", options_.bucket, "/", key);
  } else {
    const size_t host = options_.endpoint.find("://") + 3;
    url = StrCat(options_.endpoint.substr(0, host), options_.bucket, ".",
                 options_.endpoint.substr(host), "/", key);
  }
  return query.empty() ? url : StrCat(url, "?", query);
}

// Full jitter: anything up to the pause. False: it would not end in time.
bool S3Client::Pause(int tries, Deadline deadline) {
  int64_t pause_ms = 0;
  {
    const std::lock_guard lock(mutex_);
    const int64_t most = options_.first_pause.count() << std::min(tries, 8);
    pause_ms = std::uniform_int_distribution<int64_t>(most / 4, most)(random_);
  }
  const auto pause = std::chrono::milliseconds(pause_ms);
  if (std::chrono::steady_clock::now() + pause >= deadline) return false;
  std::this_thread::sleep_for(pause);
  return true;
}

void S3Client::Run(absl::Span<HttpCall* const> calls, Deadline deadline, const Prepare& prepare) {
  std::vector<HttpCall*> left(calls.begin(), calls.end());
  CredentialChain::Want want = CredentialChain::Want::kKnown;
  bool renewed = false;
  for (int tries = 0; !left.empty(); ++tries) {
    absl::StatusOr<AwsCredentials> who = AwsCredentials();
    if (!options_.is_anonymous) who = chain_.Get(want, deadline);
    if (!who.ok()) {
      for (HttpCall* call : left) {
        call->Reset();
        call->status = 403;
        call->error = std::string(who.status().message());
      }
      return;
    }
    http_.Run(left, options_.is_anonymous ? nullptr : &*who, deadline);
    std::vector<HttpCall*> again;
    bool expired = false;
    for (HttpCall* call : left) {
      const bool old = HasExpired(*call) && !renewed && !options_.is_anonymous;
      expired |= old;
      const bool due = old || (MayTryAgain(*call) && tries + 1 < options_.max_tries);
      if (due && (!prepare || prepare(call))) again.push_back(call);
    }
    want = expired ? CredentialChain::Want::kNew : CredentialChain::Want::kKnown;
    renewed |= expired;
    left = std::move(again);
    if (!left.empty() && !expired && !Pause(tries, deadline)) return;
  }
}

absl::Status S3Client::StatusOf(const HttpCall& call) const {
  if (call.ok()) return absl::OkStatus();
  if (call.late) return absl::DeadlineExceededError(StrCat(name_, ": no answer in time"));
  if (call.untrusted)
    return absl::PermissionDeniedError(
        StrCat(name_, ": ", call.error, ": set ca_file= or AWS_CA_BUNDLE, or correct the host"));
  if (call.status == 0 || (call.status >= 200 && call.status < 300))
    return absl::UnavailableError(StrCat(name_, ": ", call.error));
  if (call.status == 403 && !call.error.empty())
    return absl::PermissionDeniedError(StrCat(name_, ": ", call.error));
  const std::string code = call.Code();
  const std::string text = StrCat(name_, ": HTTP ", call.status, code.empty() ? "" : " ", code);
  if (code == "RequestTimeTooSkewed")
    return absl::PermissionDeniedError(
        StrCat(text, ": this machine's clock and the server's differ too much; set it right"));
  if (code == "NoSuchBucket")
    return absl::PermissionDeniedError(StrCat(text, ": there is no such bucket"));
  if (call.status == 301 || call.status == 302 || call.status == 307 || call.status == 308) {
    const std::string region = call.Answer("x-amz-bucket-region");
    const bool named = !region.empty() && region.find_first_not_of(kKeyChars) == region.npos;
    return absl::PermissionDeniedError(
        StrCat(text, ": the bucket is elsewhere; set ",
               named ? StrCat("region=", region) : std::string("region= or endpoint=")));
  }
  if (call.status == 401 || call.status == 403) return absl::PermissionDeniedError(text);
  if (call.status == 404) return absl::NotFoundError(text);
  if (call.status == 507 || code == "QuotaExceeded" || code == "EntityTooLarge")
    return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

}  // namespace vericache
