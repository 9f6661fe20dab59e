// AWS credentials from the usual places, in the usual order, and anew when they have expired.
//
//   1. AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
//   2. the profile AWS_PROFILE (or "default") of AWS_SHARED_CREDENTIALS_FILE, or of
//      HOME/.aws/credentials
//   3. a container's: AWS_CONTAINER_CREDENTIALS_FULL_URI or _RELATIVE_URI
//   4. a machine's (IMDSv2): AWS_EC2_METADATA_SERVICE_ENDPOINT, unless AWS_EC2_METADATA_DISABLED
// What they hold is never part of a message. THREADS: safe.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/blob_store.h"

namespace vericache {

class S3Http;

struct AwsCredentials {
  std::string key_id, secret, token;
  std::chrono::system_clock::time_point expires = std::chrono::system_clock::time_point::max();
  bool operator==(const AwsCredentials&) const = default;
};

using Environment = std::function<std::string(const std::string& name)>;

class CredentialChain {
 public:
  // `http` must outlive *this.
  CredentialChain(Environment environment, S3Http* http)
      : environment_(std::move(environment)), http_(http) {}

  enum class Want { kKnown, kNew };
  // kNew: they have just been refused; all places are looked at again.
  // ERRORS: kPermissionDenied: there are none; says where was looked.
  absl::StatusOr<AwsCredentials> Get(Want want, Deadline deadline);

 private:
  absl::StatusOr<AwsCredentials> Find(Deadline deadline);
  absl::StatusOr<AwsCredentials> FromContainer(const std::string& url, Deadline deadline);
  absl::StatusOr<AwsCredentials> FromMachine(Deadline deadline);
  std::string Env(const std::string& name) const { return environment_ ? environment_(name) : ""; }

  const Environment environment_;
  S3Http* http_;
  std::mutex mutex_;
  AwsCredentials known_;  // guarded by mutex_; no key_id: none
};

// The profile's credentials in a file of "[profile]" and "name = value" lines. False: none.
bool ParseCredentialsFile(const std::string& text, const std::string& profile,
                          AwsCredentials* credentials);
// {"AccessKeyId", "SecretAccessKey", "Token", "Expiration"}. False: not that.
bool ParseCredentialsJson(const std::string& text, AwsCredentials* credentials);

}  // namespace vericache
