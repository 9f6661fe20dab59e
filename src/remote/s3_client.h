// Requests for objects of one bucket: where they are, who asks, when to ask again.
//
// Asked again with growing pauses and jitter: 5xx, 429, connections that broke off; never another
// 4xx, but for one: credentials that have expired are looked up anew, once.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "remote/s3_http.h"
#include "remote/store_url.h"

namespace vericache {

enum class S3Style { kPath, kHost };

struct S3Options {
  std::string endpoint;  // "https://HOST[:PORT][/PATH]", without a "/" at its end
  std::string bucket;
  std::string prefix;  // of all keys
  S3Style style = S3Style::kPath;
  HttpSettings http;
  Environment environment;
  bool is_anonymous = false;
  bool read_only = false;
  std::chrono::milliseconds timeout{20000};  // of one exchange: up to 8 blobs, or a part
  std::chrono::milliseconds least_wait{0};   // of one exchange, whatever deadline it is given
  int max_tries = 4;                         // of one request
  std::chrono::milliseconds first_pause{100};
  uint64_t range_bytes = uint64_t{8} << 20;       // of one GET
  uint64_t multipart_bytes = uint64_t{16} << 20;  // longer blobs are put in parts of this
};

// From s3://BUCKET[/PREFIX] and its parameters: endpoint, region, style=path|host, ca_file,
// tls_verify=0, anonymous=1, timeout_ms, wait_ms, range_bytes, part_bytes.
// ERRORS: kInvalidArgument.
absl::StatusOr<S3Options> S3OptionsOf(const StoreUrl& url, Environment environment);

class S3Client {
 public:
  explicit S3Client(S3Options options);

  // `query`: "" or sorted parameters, each with a "=".
  std::string UrlOf(std::string_view key, std::string_view query = "") const;
  // Called before a request is sent again, with what came so far; false: no use.
  using Prepare = std::function<bool(HttpCall*)>;
  // All at once; `prepare` may be empty.
  void Run(absl::Span<HttpCall* const> calls, Deadline deadline, const Prepare& prepare = {});
  // What a call's answer means. ERRORS: kNotFound, kUnavailable, kDeadlineExceeded,
  //         kPermissionDenied, kResourceExhausted (507 and its kin).
  absl::Status StatusOf(const HttpCall& call) const;

  const S3Options& options() const { return options_; }
  const std::string& name() const { return name_; }

 private:
  bool Pause(int tries, Deadline deadline);

  const S3Options options_;
  const std::string name_;
  S3Http http_;
  CredentialChain chain_;
  std::mutex mutex_;
  std::minstd_rand random_;  // guarded by mutex_
};

}  // namespace vericache
