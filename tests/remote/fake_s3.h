// An S3 server of a few lines that a test can make misbehave. It verifies no signature: the real
// server of s3_server_test does.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "base/text.h"
#include "tests/remote/fake_server.h"

namespace vericache {

struct FakeRequest {
  std::string method, target, path, query, body, head;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string Header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

class FakeS3 {
 public:
  struct Object {
    std::string bytes, etag;
  };
  // True: it has answered (or not) itself, and the connection is to be closed.
  using Intercept = std::function<bool(const FakeRequest&, FakeServer::Peer&)>;

  // certificate: for "localhost", and then it is asked by HTTPS.
  explicit FakeS3(Intercept intercept = {}, const FakeServer::Certificate& certificate = {})
      : intercept_(std::move(intercept)),
        is_tls_(!certificate.chain_file.empty()),
        server_([this](FakeServer::Peer& peer) { Serve(peer); }, certificate) {}

  std::string Endpoint() const {
    return StrCat(is_tls_ ? "https://localhost:" : "http://127.0.0.1:", server_.port());
  }
  std::string Url(const std::string& more = "") const {
    return StrCat("s3://bucket/pre/fix?endpoint=", Endpoint(), "&timeout_ms=60000&wait_ms=60000",
                  more);
  }
  void Set(const std::string& path, std::string bytes, std::string etag) {
    const std::lock_guard lock(mutex_);
    objects_[path] = {std::move(bytes), std::move(etag)};
  }
  Object Get(const std::string& path) {
    const std::lock_guard lock(mutex_);
    return objects_[path];
  }
  std::vector<FakeRequest> seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }
  int num_seen() {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(seen_.size());
  }
  static std::string Answer(const std::string& status, const std::string& headers,
                            const std::string& body) {
    return StrCat("HTTP/1.1 ", status, "\r\n", headers, "Content-Length: ", body.size(), "\r\n\r\n",
                  body);
  }
  static std::string Error(const std::string& status, const std::string& code) {
    return Answer(
        status, "",
        StrCat("<Error><Code>", code, "</Code><Message>SENTINELMESSAGE</Message></Error>"));
  }
  // What a server that does nothing wrong answers.
  std::string Honest(const FakeRequest& r) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(r.path);
    const bool there = found != objects_.end() && !found->second.etag.empty();
    if (r.method == "PUT" && r.query.empty()) {
      const std::string etag = StrCat("\"e", ++num_etags_, "\"");
      objects_[r.path] = {r.body, etag};
      return Answer("200 OK", "ETag: " + etag + "\r\n", "");
    }
    if (r.method == "DELETE") return objects_.erase(r.path), Answer("204 No Content", "", "");
    if (!there)
      return r.method == "HEAD" ? Answer("404 Not Found", "", "")
                                : Error("404 Not Found", "NoSuchKey");
    const Object& object = found->second;
    const std::string etag = "ETag: " + object.etag + "\r\n";
    if (!r.Header("if-match").empty() && r.Header("if-match") != object.etag)
      return Error("412 Precondition Failed", "PreconditionFailed");
    if (r.method == "HEAD")
      return StrCat("HTTP/1.1 200 OK\r\n", etag, "Content-Length: ", object.bytes.size(),
                    "\r\n\r\n");
    const std::string range = r.Header("range");
    if (range.empty()) return Answer("200 OK", etag, object.bytes);
    const size_t begin = std::strtoull(range.c_str() + 6, nullptr, 10);
    const size_t end = std::min<size_t>(
        object.bytes.size(), std::strtoull(range.c_str() + range.find('-') + 1, nullptr, 10) + 1);
    if (begin >= object.bytes.size()) return Error("416 Range Not Satisfiable", "InvalidRange");
    return Answer("206 Partial Content",
                  StrCat(etag, "Content-Range: bytes ", begin, "-", end - 1, "/",
                         object.bytes.size(), "\r\n"),
                  object.bytes.substr(begin, end - begin));
  }

 private:
  void Serve(FakeServer::Peer& peer) {
    for (;;) {
      FakeRequest r;
      r.head = peer.ReceiveUntil("\r\n\r\n");
      if (r.head.empty()) return;
      const std::vector<std::string_view> lines = Split(r.head, '\n');
      const std::vector<std::string_view> words = Split(lines[0], ' ');
      if (words.size() < 3) return;
      r.method = std::string(words[0]);
      r.target = std::string(words[1]);
      const std::vector<std::string_view> parts = SplitOnce(r.target, '?');
      r.path = std::string(parts[0]);
      if (parts.size() == 2) r.query = std::string(parts[1]);
      for (size_t i = 1; i < lines.size(); ++i) {
        const std::vector<std::string_view> pair = SplitOnce(lines[i], ':');
        if (pair.size() == 2)
          r.headers[absl::AsciiStrToLower(AsAbsl(pair[0]))] =
              std::string(absl::StripAsciiWhitespace(AsAbsl(pair[1])));
      }
      if (!r.Header("expect").empty()) peer.Send("HTTP/1.1 100 Continue\r\n\r\n");
      r.body = peer.ReceiveBytes(std::strtoull(r.Header("content-length").c_str(), nullptr, 10));
      {
        const std::lock_guard lock(mutex_);
        seen_.push_back(r);
      }
      if (intercept_ && intercept_(r, peer)) return;
      if (!peer.Send(Honest(r))) return;
    }
  }

  const Intercept intercept_;
  const bool is_tls_;
  std::mutex mutex_;
  std::map<std::string, Object> objects_;
  std::vector<FakeRequest> seen_;
  int num_etags_ = 0;
  FakeServer server_;  // last: it calls what stands above
};

}  // namespace vericache
