#include "hub/http.h"

#include <curl/curl.h>

#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace vericache {
namespace {

constexpr int kMaxRedirects = 10;
constexpr size_t kMaxHeaderBytes = 64 << 10;  // of one answer

// What libcurl's callbacks need of the hop in progress.
struct Hop {
  const HttpRequest* request;
  CURL* curl;
  HttpResult* result;
  size_t header_bytes = 0;
  bool answered = false;
};

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

bool OnlyTheHubSets(const std::string& name) {
  return absl::StartsWith(name, "x-linked-") || absl::StartsWith(name, "x-error-");
}

size_t OnHeader(char* data, size_t, size_t size, void* user) {
  Hop* hop = static_cast<Hop*>(user);
  hop->header_bytes += size;
  if (hop->header_bytes > kMaxHeaderBytes) return 0;
  hop->answered = true;
  const std::string line(data, size);
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return size;
  const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
  const std::string value(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  if (OnlyTheHubSets(name) && hop->result->headers.count(name) > 0) return size;
  hop->result->headers[name] = value;
  return size;
}

size_t OnBody(char* data, size_t, size_t size, void* user) {
  Hop* hop = static_cast<Hop*>(user);
  long status = 0;
  curl_easy_getinfo(hop->curl, CURLINFO_RESPONSE_CODE, &status);
  hop->result->status = static_cast<int>(status);
  if (status < 200 || status > 299 || !hop->request->on_body) return size;  // read, not kept
  hop->result->stop_status = hop->request->on_body(*hop->result, absl::MakeSpan(data, size));
  return hop->result->stop_status.ok() ? size : 0;
}

// True where nothing has been answered: another try at once would most likely end the same way.
bool IsUnreachable(CURLcode code, bool answered) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return true;
    default:
      return !answered;
  }
}

void SetOptions(const HttpOptions& options, const std::string& url, struct curl_slist* lines,
                Hop* hop) {
  CURL* curl = hop->curl;
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, lines);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "vericache");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, long{options.connect_timeout_ms});
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, long{options.stall_timeout_s});
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, hop);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, hop);
  if (hop->request->method == HttpMethod::kHead) curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  const std::string range = absl::StrCat(hop->request->range_begin, "-");
  if (hop->request->range_begin > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  if (!options.ca_file.empty()) {
    curl_easy_setopt(curl, CURLOPT_CAINFO, options.ca_file.c_str());
  }
}

}  // namespace

std::string OriginOf(const std::string& url) {
  std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> parsed(curl_url(), curl_url_cleanup);
  if (curl_url_set(parsed.get(), CURLUPART_URL, url.c_str(), 0) != CURLUE_OK) return "";
  std::string origin;
  for (CURLUPart part : {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT}) {
    char* text = nullptr;
    if (curl_url_get(parsed.get(), part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return "";
    absl::StrAppend(&origin,
                    origin.empty()           ? ""
                    : part == CURLUPART_HOST ? "://"
                                             : ":",
                    absl::AsciiStrToLower(text));
    curl_free(text);
  }
  return absl::StartsWith(origin, "http") ? origin : "";
}

std::string HttpResult::Header(const std::string& name) const {
  const auto it = headers.find(name);
  return it == headers.end() ? "" : it->second;
}

HttpClient::HttpClient(const HttpOptions& options) : options_(options) {
  static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
  VC_CHECK(initialised == CURLE_OK);
  curl_ = curl_easy_init();
  VC_CHECK(curl_ != nullptr);
}

HttpClient::~HttpClient() { curl_easy_cleanup(curl_); }

HttpResult HttpClient::Run(const HttpRequest& request) {
  const std::string home = OriginOf(request.url);
  std::string url = request.url;
  HttpResult result;
  for (int num_redirects = 0; num_redirects <= kMaxRedirects; ++num_redirects) {
    std::string next;
    result = RunHop(request, url, !home.empty() && OriginOf(url) == home, &next, std::move(result));
    if (result.outcome != HttpResult::Outcome::kAnswered || next.empty()) return result;
    const std::string origin = OriginOf(next);
    if (origin.empty() || (absl::StartsWith(url, "https:") && absl::StartsWith(next, "http:"))) {
      result.outcome = HttpResult::Outcome::kStopped;
      result.stop_status = absl::FailedPreconditionError(
          absl::StrCat(home, " redirects to a place that is not safe to follow: ", next));
      return result;
    }
    url = next;
  }
  result.outcome = HttpResult::Outcome::kStopped;
  result.stop_status =
      absl::FailedPreconditionError(absl::StrCat(home, " redirects more than 10 times"));
  return result;
}

HttpResult HttpClient::RunHop(const HttpRequest& request, const std::string& url, bool send_token,
                              std::string* redirect_url, HttpResult result) {
  CURL* curl = static_cast<CURL*>(curl_);
  curl_easy_reset(curl);
  for (auto it = result.headers.begin(); it != result.headers.end();) {
    it = OnlyTheHubSets(it->first) ? std::next(it) : result.headers.erase(it);
  }
  Hop hop{&request, curl, &result};
  char error[CURL_ERROR_SIZE] = "";
  struct curl_slist* lines = nullptr;
  if (send_token && !request.bearer_token.empty()) {
    const std::string line = absl::StrCat("Authorization: Bearer ", request.bearer_token);
    lines = curl_slist_append(lines, line.c_str());
  }
  SetOptions(options_, url, lines, &hop);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
  const CURLcode code = curl_easy_perform(curl);
  curl_slist_free_all(lines);
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  result.status = static_cast<int>(status);
  if (!result.stop_status.ok()) {
    result.outcome = HttpResult::Outcome::kStopped;
  } else if (code == CURLE_OK) {
    result.outcome = HttpResult::Outcome::kAnswered;
    char* next = nullptr;
    if (IsRedirect(result.status) &&
        curl_easy_getinfo(curl, CURLINFO_REDIRECT_URL, &next) == CURLE_OK && next != nullptr) {
      *redirect_url = next;
    }
  } else {
    result.outcome = IsUnreachable(code, hop.answered) ? HttpResult::Outcome::kUnreachable
                                                       : HttpResult::Outcome::kBrokenOff;
    result.error_text = error[0] != '\0' ? error : curl_easy_strerror(code);
  }
  return result;
}

}  // namespace vericache
