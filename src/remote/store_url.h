// Where a prefix store is, as a user writes it.
//
//   DIR                                                       a folder
//   redis://[USER:PASSWORD@]HOST[:PORT][/DB][?prefix=P&...]   Redis, one server or a cluster
//   rediss://...                                              the same over TLS
//   redis+unix:///PATH[?db=N&...]                             through a Unix socket
//   s3://BUCKET[/PREFIX][?endpoint=URL&region=R&...]          S3 and its look-alikes
// User, password and parameters are percent-encoded where they hold other characters than a URL
// may. A password is never part of a message: print Redacted().
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vericache {

struct StoreUrl {
  std::string scheme;  // "file" for a folder, or what stands before "://"
  std::string user, password;
  std::string host;  // without the brackets of an IPv6 address; the bucket of s3://
  int port = 0;      // 0: the scheme's own
  std::string path;  // with its leading "/", decoded; all of a folder's name
  std::map<std::string, std::string> params;

  // Without user, password and parameters.
  std::string Redacted() const;
  std::string Param(const std::string& name, const std::string& otherwise = "") const;
};

// ERRORS: kInvalidArgument: one line that does not repeat the text, which may hold a password.
absl::StatusOr<StoreUrl> ParseStoreUrl(std::string_view text);
// "DIR,redis://...": parts at commas, blanks around them dropped. ERRORS: an empty part.
absl::StatusOr<std::vector<StoreUrl>> ParseStoreList(std::string_view text);
// The same list as may be printed.
std::string RedactedStoreList(std::string_view text);

// Refuses parameters that nobody reads: a mistyped `tls_verfy=0` must not pass in silence.
absl::Status CheckParams(const StoreUrl& url, const std::vector<std::string>& known);

}  // namespace vericache
