#include "remote/s3_http.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/check.h"
#include "base/text.h"

namespace vericache {
namespace {

constexpr size_t kMaxTextBytes = size_t{8} << 20;  // a page of a listing has 1,000 short keys
constexpr size_t kMaxErrorBytes = 64 << 10;
constexpr size_t kMaxHeaderBytes = 64 << 10;
constexpr long kPatienceMs = 600000;

// What libcurl's callbacks need.
struct Transfer {
  HttpCall* call = nullptr;
  CURL* curl = nullptr;
  curl_slist* lines = nullptr;
  size_t part = 0, part_at = 0;  // of the body that is sent
  size_t header_bytes = 0;
  bool head_told = false;
  char error[CURL_ERROR_SIZE] = "";
};

size_t OnHeader(char* data, size_t, size_t size, void* user) {
  Transfer* t = static_cast<Transfer*>(user);
  t->header_bytes += size;
  if (t->header_bytes > kMaxHeaderBytes) return 0;
  const std::string_view line(data, size);
  if (line.starts_with("HTTP/")) t->call->answer.clear();
  const size_t colon = line.find(':');
  if (colon == line.npos) return size;
  const std::string name = absl::AsciiStrToLower(AsAbsl(line.substr(0, colon)));
  t->call->answer[name] = std::string(absl::StripAsciiWhitespace(AsAbsl(line.substr(colon + 1))));
  return size;
}

int StatusOf(CURL* curl) {
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

size_t OnBody(char* data, size_t, size_t size, void* user) {
  Transfer* t = static_cast<Transfer*>(user);
  HttpCall* call = t->call;
  call->status = StatusOf(t->curl);
  const bool good = call->status >= 200 && call->status < 300;
  if (!good || !call->on_body) {
    const size_t room = good ? kMaxTextBytes : kMaxErrorBytes;
    if (call->text.size() + size > room) return 0;
    call->text.append(data, size);
    return size;
  }
  if (!t->head_told && call->on_head && !call->on_head(*call)) call->stopped = true;
  t->head_told = true;
  if (!call->stopped && !call->on_body(reinterpret_cast<const uint8_t*>(data), size))
    call->stopped = true;
  return call->stopped ? 0 : size;
}

size_t OnSend(char* to, size_t, size_t size, void* user) {
  Transfer* t = static_cast<Transfer*>(user);
  size_t sent = 0;
  while (sent < size && t->part < t->call->body.size()) {
    const std::string_view part = t->call->body[t->part].substr(t->part_at);
    const size_t step = std::min(part.size(), size - sent);
    if (step > 0) std::memcpy(to + sent, part.data(), step);
    sent += step;
    t->part_at += step;
    if (step == part.size()) ++t->part, t->part_at = 0;
  }
  return sent;
}

int OnSeek(void* user, curl_off_t offset, int origin) {
  Transfer* t = static_cast<Transfer*>(user);
  if (origin != SEEK_SET || offset != 0) return CURL_SEEKFUNC_CANTSEEK;
  t->part = t->part_at = 0;
  return CURL_SEEKFUNC_OK;
}

void SetBody(Transfer* t) {
  curl_off_t size = 0;
  for (std::string_view part : t->call->body) size += static_cast<curl_off_t>(part.size());
  if (t->call->method == "PUT") {
    curl_easy_setopt(t->curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(t->curl, CURLOPT_INFILESIZE_LARGE, size);
  } else {
    curl_easy_setopt(t->curl, CURLOPT_POST, 1L);
    curl_easy_setopt(t->curl, CURLOPT_POSTFIELDSIZE_LARGE, size);
  }
  curl_easy_setopt(t->curl, CURLOPT_READFUNCTION, OnSend);
  curl_easy_setopt(t->curl, CURLOPT_READDATA, t);
  curl_easy_setopt(t->curl, CURLOPT_SEEKFUNCTION, OnSeek);
  curl_easy_setopt(t->curl, CURLOPT_SEEKDATA, t);
  curl_easy_setopt(t->curl, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
}

void Sign(const HttpSettings& settings, const AwsCredentials& who, Transfer* t) {
  const std::string scope = StrCat("aws:amz:", settings.region, ":s3");
  curl_easy_setopt(t->curl, CURLOPT_AWS_SIGV4, scope.c_str());
  curl_easy_setopt(t->curl, CURLOPT_USERNAME, who.key_id.c_str());
  curl_easy_setopt(t->curl, CURLOPT_PASSWORD, who.secret.c_str());
  t->lines = curl_slist_append(t->lines, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
  if (!who.token.empty())
    t->lines = curl_slist_append(t->lines, ("x-amz-security-token: " + who.token).c_str());
}

void SetUp(const HttpSettings& settings, const AwsCredentials* credentials, Deadline deadline,
           Transfer* t) {
  CURL* curl = t->curl;
  HttpCall* call = t->call;
  curl_easy_reset(curl);
  curl_easy_setopt(curl, CURLOPT_URL, call->url.c_str());
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "vericache");
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, long{settings.connect_timeout_ms});
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, t);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, t->error);
  curl_easy_setopt(curl, CURLOPT_PRIVATE, t);
  if (!settings.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, settings.ca_file.c_str());
  curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, settings.tls_verify ? 1L : 0L);
  curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, settings.tls_verify ? 2L : 0L);
  if (call->method == "HEAD") curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  if (call->method == "DELETE") curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, "DELETE");
  if (call->method == "PUT" || call->method == "POST") SetBody(t);
  for (const std::string& line : call->headers)
    t->lines = curl_slist_append(t->lines, line.c_str());
  if (call->is_signed && credentials != nullptr) Sign(settings, *credentials, t);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, t->lines);
  long left_ms = kPatienceMs;
  if (deadline != kNoDeadline) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    left_ms = std::clamp<long>(static_cast<long>(left.count()), 1, kPatienceMs);
  }
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, left_ms);
}

void Finish(CURLcode code, Transfer* t) {
  HttpCall* call = t->call;
  call->status = StatusOf(t->curl);
  call->complete = code == CURLE_OK;
  call->late = code == CURLE_OPERATION_TIMEDOUT;
  call->untrusted = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
  call->connected = code != CURLE_COULDNT_CONNECT && code != CURLE_COULDNT_RESOLVE_HOST &&
                    code != CURLE_COULDNT_RESOLVE_PROXY && code != CURLE_SSL_CONNECT_ERROR &&
                    !call->untrusted;
  if (code != CURLE_OK) call->error = t->error[0] != '\0' ? t->error : curl_easy_strerror(code);
  // An answer without a body has a head all the same.
  if (call->ok() && !t->head_told && call->on_head && !call->on_head(*call)) call->stopped = true;
}

}  // namespace

struct S3Http::Worker {
  CURLM* multi = curl_multi_init();
  std::vector<CURL*> handles;

  Worker() { VC_CHECK(multi != nullptr); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    for (CURL* curl : handles) curl_easy_cleanup(curl);
    curl_multi_cleanup(multi);
  }
};

S3Http::S3Http(HttpSettings settings) : settings_(std::move(settings)) {
  static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
  VC_CHECK(initialised == CURLE_OK);
}

S3Http::~S3Http() = default;

std::unique_ptr<S3Http::Worker> S3Http::Take() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return std::make_unique<Worker>();
  std::unique_ptr<Worker> worker = std::move(idle_.back());
  idle_.pop_back();
  return worker;
}

void S3Http::GiveBack(std::unique_ptr<Worker> worker) {
  const std::lock_guard lock(mutex_);
  if (idle_.size() < settings_.idle_max) idle_.push_back(std::move(worker));
}

void S3Http::Run(absl::Span<HttpCall* const> calls, const AwsCredentials* credentials,
                 Deadline deadline) {
  std::unique_ptr<Worker> worker = Take();
  while (worker->handles.size() < calls.size()) {
    worker->handles.push_back(curl_easy_init());
    VC_CHECK(worker->handles.back() != nullptr);
  }
  std::vector<Transfer> transfers(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    transfers[i].call = calls[i];
    transfers[i].curl = worker->handles[i];
    calls[i]->Reset();
    SetUp(settings_, credentials, deadline, &transfers[i]);
    curl_multi_add_handle(worker->multi, transfers[i].curl);
  }
  int running = 1;
  while (running > 0 && !interrupted_) {
    if (curl_multi_perform(worker->multi, &running) != CURLM_OK) break;
    if (running > 0) curl_multi_poll(worker->multi, nullptr, 0, 200, nullptr);
  }
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(worker->multi, &left)) {
    Transfer* t = nullptr;
    if (message->msg != CURLMSG_DONE) continue;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &t);
    Finish(message->data.result, t);
  }
  for (Transfer& t : transfers) {
    curl_multi_remove_handle(worker->multi, t.curl);
    curl_slist_free_all(t.lines);
    // Secrets do not stay in an idle handle.
    curl_easy_reset(t.curl);
  }
  GiveBack(std::move(worker));
}

std::string HttpCall::Answer(const std::string& name) const {
  const auto found = answer.find(name);
  return found == answer.end() ? "" : found->second;
}

void HttpCall::Reset() {
  status = 0;
  answer.clear();
  text.clear();
  error.clear();
  complete = stopped = connected = late = untrusted = false;
}

std::string HttpCall::Code() const {
  size_t at = 0;
  std::string code;
  if (!NextXmlText(text, "Code", &at, &code) || code.size() > 64) return "";
  for (char c : code)
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c))) return "";
  return code;
}

bool NextXmlText(std::string_view xml, std::string_view name, size_t* at, std::string* text) {
  const std::string open = StrCat("<", name, ">"), close = StrCat("</", name, ">");
  const size_t begin = xml.find(open, *at);
  if (begin == xml.npos) return false;
  const size_t end = xml.find(close, begin + open.size());
  if (end == xml.npos) return false;
  *text = std::string(xml.substr(begin + open.size(), end - begin - open.size()));
  *at = end + close.size();
  return true;
}

}  // namespace vericache
