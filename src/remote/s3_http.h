// HTTP requests to an S3 server, signed by libcurl, many at a time. The only file of the stores
// that knows libcurl.
//
// libcurl 7.88 signs right only within a subset, which its callers keep to (found by trying,
// against servers that verify signatures): paths of [A-Za-z0-9/._-]; a query whose parameters are
// sorted, encoded and each have a "="; no "Expect:" header removed (the wait for it is 1 ms); the
// body's hash is UNSIGNED-PAYLOAD.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "remote/s3_credentials.h"
#include "storage/blob_store.h"

namespace vericache {

struct HttpCall {
  // --- The request ---
  std::string method = "GET";  // HEAD, PUT, POST, DELETE
  std::string url;
  std::vector<std::string> headers;  // "Name: value"
  std::vector<std::string_view> body;
  bool is_signed = true;
  // Of a 2xx answer: before its body, and for each piece. False: enough, the rest is not wanted.
  std::function<bool(const HttpCall&)> on_head;
  std::function<bool(const uint8_t* data, size_t size)> on_body;

  // --- The answer ---
  int status = 0;                             // 0: none
  std::map<std::string, std::string> answer;  // headers, names in lower case
  std::string text;                           // body, of errors and where there is no on_body
  bool complete = false;                      // the answer came whole
  bool stopped = false;                       // by on_head or on_body
  bool connected = false;                     // something was sent
  bool late = false;                          // the deadline came first
  bool untrusted = false;                     // nobody vouches for the server's certificate
  std::string error;                          // why it is not complete; without secrets

  bool ok() const { return complete && status >= 200 && status < 300; }
  std::string Answer(const std::string& name) const;
  // What an error's body has between <Code> and </Code>, letters only.
  std::string Code() const;
  void Reset();
};

struct HttpSettings {
  std::string region;
  std::string ca_file;
  bool tls_verify = true;
  int connect_timeout_ms = 3000;
  size_t idle_max = 4;  // that keep their connections between calls of Run()
};

class S3Http {
 public:
  explicit S3Http(HttpSettings settings);
  ~S3Http();

  // Each is tried once. credentials: null where none is signed.
  // THREADS: safe.
  void Run(absl::Span<HttpCall* const> calls, const AwsCredentials* credentials, Deadline deadline);
  // Ends what runs, as if no answer had come, and whatever is called from now on.
  void Interrupt() { interrupted_ = true; }

 private:
  struct Worker;
  std::unique_ptr<Worker> Take();
  void GiveBack(std::unique_ptr<Worker> worker);

  const HttpSettings settings_;
  std::atomic<bool> interrupted_{false};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Worker>> idle_;  // guarded by mutex_; they keep connections
};

// The text between <name> and </name> from `*at` on, which moves behind it. False: there is none.
bool NextXmlText(std::string_view xml, std::string_view name, size_t* at, std::string* text);

}  // namespace vericache
