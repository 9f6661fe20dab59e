#include "cli/remote_flags.h"

#include <fmt/format.h>

#include "base/status_macros.h"
#include "base/text.h"
#include "cli/errors.h"
#include "cli/files.h"

namespace vericache::cli {
namespace {

constexpr uint64_t kKeyFileBytesMax = 1 << 20;

// Why the newest draft was as long as it was.
std::string ChoiceOf(const RemoteStats& s) {
  return fmt::format(
      "last draft length {} (agreement {:.2f}, {:.1f} ms a drafted token, round trip {:.1f} ms, "
      "verifying {:.1f} + {:.2f} ms a token)",
      s.draft_len, s.agreement, 1e3 * s.draft_token_s, 1e3 * s.round_trip_s, 1e3 * s.verify_s,
      1e3 * s.row_s);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadKeyFile(const std::string& path) {
  VC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kKeyFileBytesMax));
  std::vector<std::string> keys;
  for (std::string_view key : Split(text, '\n')) {
    while (!key.empty() && (key.back() == ' ' || key.back() == '\r')) key.remove_suffix(1);
    while (!key.empty() && key.front() == ' ') key.remove_prefix(1);
    if (!key.empty()) keys.emplace_back(key);
  }
  // A file that was to hold keys and holds none must not open the door.
  if (keys.empty()) return absl::InvalidArgumentError(fmt::format("{} holds no key", path));
  return keys;
}

void RemoteFlags::Declare(Flags* flags) {
  flags->Group("Remote drafting");
  flags->Custom("--verifier", "URL",
                "Draft here on the stored draft KV, have it verified there; several with commas",
                [this](const std::string& text) {
                  for (const std::string_view url : Split(text, ','))
                    if (!url.empty()) urls.emplace_back(url);
                  return urls.empty() ? absl::InvalidArgumentError("there is no URL")
                                      : absl::OkStatus();
                });
  flags->Name("--verifier-key-file", "FILE", "The verifiers' API key (its first line)", &key_file);
  flags->Name("--verifier-ca", "FILE", "Certificates (PEM) that https:// verifiers go by",
              &ca_file);
  flags->Real("--verifier-timeout", "S", "A verifier that is silent for so long is lost (30)",
              &timeout_s, 0.1f, 86400);
}

absl::StatusOr<std::vector<std::unique_ptr<RemoteVerifier>>> RemoteFlags::Connect() const {
  ConnectOptions options;
  options.ca_file = ca_file;
  options.timeout_s = timeout_s;
  if (!key_file.empty()) {
    VC_ASSIGN_OR_RETURN(const std::vector<std::string> keys, ReadKeyFile(key_file));
    options.api_key = keys[0];
  }
  std::vector<std::unique_ptr<RemoteVerifier>> verifiers;
  for (const std::string& url : urls) {
    VC_ASSIGN_OR_RETURN(verifiers.emplace_back(), ConnectVerifier(url, options));
  }
  return verifiers;
}

std::string RemoteSummary(const RemoteStats& s) {
  const std::string where = s.verifier.empty() ? "this node" : s.verifier;
  const std::string draft = s.draft_tokens > 0 ? fmt::format("draft KV of {} tokens ({} bytes)",
                                                             s.draft_tokens, s.draft_bytes)
                                               : std::string("no stored draft KV");
  return fmt::format(
      "remote   {} tokens verified, {} computed here, last by {}; {}; {} rounds, {} of {} drafted "
      "tokens accepted{}; {} bytes of rows, {} sessions, {} failed calls{}{}\n",
      s.remote_tokens, s.local_tokens, OneLine(where), draft, s.rounds, s.accepted, s.drafted,
      s.drafted > 0 ? ", " + ChoiceOf(s) : "", s.rows_bytes, s.opened, s.failed_calls,
      s.fallback.empty() ? "" : "; fallback: " + OneLine(s.fallback),
      s.plan.empty() ? "" : fmt::format("\nway      {} ({})", s.plan, OneLine(s.reason)));
}

}  // namespace vericache::cli
