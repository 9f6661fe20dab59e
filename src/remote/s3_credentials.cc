#include "remote/s3_credentials.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/text.h"
#include "remote/s3_http.h"

namespace vericache {
namespace {

using SystemClock = std::chrono::system_clock;

// Before they expire, so that no request meets the end on its way.
constexpr auto kAhead = std::chrono::seconds(60);
constexpr auto kPatience = std::chrono::seconds(2);
constexpr size_t kMaxFileBytes = 1 << 20;

std::string Trimmed(std::string_view text) {
  return std::string(absl::StripAsciiWhitespace(AsAbsl(text)));
}

bool HasControls(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20; });
}

bool Usable(const AwsCredentials& c) {
  return !c.key_id.empty() && !c.secret.empty() && !HasControls(c.key_id) &&
         !HasControls(c.secret) && !HasControls(c.token);
}

std::string ReadSmallFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxFileBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, in.gcount())));
  return text;
}

}  // namespace

bool ParseCredentialsFile(const std::string& text, const std::string& profile,
                          AwsCredentials* credentials) {
  bool ours = false;
  AwsCredentials found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line = Trimmed(line);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line.front() == '[') {
      ours = line.back() == ']' && Trimmed(line.substr(1, line.size() - 2)) == profile;
      continue;
    }
    const size_t equals = line.find('=');
    if (!ours || equals == line.npos) continue;
    const std::string name = Trimmed(line.substr(0, equals));
    const std::string value = Trimmed(line.substr(equals + 1));
    if (name == "aws_access_key_id") found.key_id = value;
    if (name == "aws_secret_access_key") found.secret = value;
    if (name == "aws_session_token") found.token = value;
  }
  if (!Usable(found)) return false;
  *credentials = found;
  return true;
}

bool ParseCredentialsJson(const std::string& text, AwsCredentials* credentials) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  const auto member = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  AwsCredentials found;
  found.key_id = member("AccessKeyId");
  found.secret = member("SecretAccessKey");
  found.token = member("Token");
  std::tm time{};
  const std::string expires = member("Expiration");
  if (!expires.empty() && strptime(expires.c_str(), "%Y-%m-%dT%H:%M:%S", &time) != nullptr)
    found.expires = SystemClock::from_time_t(timegm(&time));
  if (!Usable(found)) return false;
  *credentials = found;
  return true;
}

absl::StatusOr<AwsCredentials> CredentialChain::Get(Want want, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  const bool fresh = known_.expires == SystemClock::time_point::max() ||
                     SystemClock::now() + kAhead < known_.expires;
  if (want == Want::kKnown && !known_.key_id.empty() && fresh) return known_;
  absl::StatusOr<AwsCredentials> found = Find(deadline);
  if (found.ok()) known_ = *found;
  return found;
}

absl::StatusOr<AwsCredentials> CredentialChain::Find(Deadline deadline) {
  AwsCredentials found = {Env("AWS_ACCESS_KEY_ID"), Env("AWS_SECRET_ACCESS_KEY"),
                          Env("AWS_SESSION_TOKEN")};
  if (Usable(found)) return found;
  std::string file = Env("AWS_SHARED_CREDENTIALS_FILE");
  const std::string home = Env("HOME"), profile = Env("AWS_PROFILE");
  if (file.empty() && !home.empty()) file = home + "/.aws/credentials";
  if (!file.empty() &&
      ParseCredentialsFile(ReadSmallFile(file), profile.empty() ? "default" : profile, &found))
    return found;
  const std::string full = Env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  const std::string relative = Env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  if (!full.empty() || !relative.empty())
    return FromContainer(!full.empty() ? full : "http://169.254.170.2" + relative, deadline);
  if (environment_ && absl::AsciiStrToLower(Env("AWS_EC2_METADATA_DISABLED")) != "true")
    return FromMachine(deadline);
  return absl::PermissionDeniedError(
      "there are no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile "
      "in ~/.aws/credentials");
}

absl::StatusOr<AwsCredentials> CredentialChain::FromContainer(const std::string& url,
                                                              Deadline deadline) {
  HttpCall call;
  call.url = url;
  call.is_signed = false;
  std::string token = Env("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string file = Env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!file.empty()) token = Trimmed(ReadSmallFile(file));
  if (!token.empty() && !HasControls(token)) call.headers.push_back("Authorization: " + token);
  HttpCall* const calls[] = {&call};
  http_->Run(calls, nullptr, std::min(deadline, std::chrono::steady_clock::now() + kPatience));
  AwsCredentials found;
  if (call.ok() && ParseCredentialsJson(call.text, &found)) return found;
  return absl::PermissionDeniedError(
      StrCat("the container's credentials endpoint gives no credentials (HTTP ", call.status, ")"));
}

// IMDSv2: a token first, then the role's name, then its credentials.
absl::StatusOr<AwsCredentials> CredentialChain::FromMachine(Deadline deadline) {
  std::string endpoint = Env("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint.empty()) endpoint = "http://169.254.169.254";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const Deadline limit = std::min(deadline, std::chrono::steady_clock::now() + kPatience);
  const auto ask = [&](const std::string& method, const std::string& path,
                       const std::string& header, std::string* text) {
    HttpCall call;
    call.method = method;
    call.url = endpoint + path;
    call.is_signed = false;
    call.headers.push_back(header);
    HttpCall* const calls[] = {&call};
    http_->Run(calls, nullptr, limit);
    *text = Trimmed(call.text);
    return call.ok() && !text->empty() && text->size() < 65536;
  };
  constexpr char kRoles[] = "/latest/meta-data/iam/security-credentials/";
  std::string token, role, json;
  AwsCredentials found;
  const bool good =
      ask("PUT", "/latest/api/token", "X-aws-ec2-metadata-token-ttl-seconds: 21600", &token) &&
      !HasControls(token) && ask("GET", kRoles, "X-aws-ec2-metadata-token: " + token, &role) &&
      role.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
          "+=,.@-_") == role.npos &&
      ask("GET", kRoles + role, "X-aws-ec2-metadata-token: " + token, &json) &&
      ParseCredentialsJson(json, &found);
  if (good) return found;
  return absl::PermissionDeniedError(
      "there are no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile "
      "in ~/.aws/credentials; this machine's metadata service gives none");
}

}  // namespace vericache
