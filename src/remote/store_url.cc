#include "remote/store_url.h"

#include <algorithm>

#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(StrCat("a prefix store's URL ", what));
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = static_cast<char>(c | 32);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

absl::StatusOr<std::string> Decode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const int high = i + 1 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? HexDigit(text[i + 2]) : -1;
    if (high < 0 || low < 0) return Bad("has a % without two hex digits");
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  // Control characters would end a line or a header somewhere.
  for (unsigned char c : decoded)
    if (c < 0x20 || c == 0x7f) return Bad("holds a control character");
  return decoded;
}

absl::Status ParseParams(std::string_view query, StoreUrl* url) {
  for (std::string_view part : Split(query, '&')) {
    if (part.empty()) continue;
    const std::vector<std::string_view> pair = SplitOnce(part, '=');
    if (pair.size() != 2) return Bad("has a parameter without '='");
    VC_ASSIGN_OR_RETURN(const std::string name, Decode(pair[0]));
    VC_ASSIGN_OR_RETURN(url->params[name], Decode(pair[1]));
  }
  return absl::OkStatus();
}

absl::Status ParseHost(std::string_view authority, StoreUrl* url) {
  if (const size_t at = authority.rfind('@'); at != authority.npos) {
    const std::vector<std::string_view> who = SplitOnce(authority.substr(0, at), ':');
    VC_ASSIGN_OR_RETURN(url->user, Decode(who[0]));
    if (who.size() == 2) {
      VC_ASSIGN_OR_RETURN(url->password, Decode(who[1]));
    }
    authority.remove_prefix(at + 1);
  }
  std::string_view port;
  if (authority.starts_with("[")) {
    const size_t end = authority.find(']');
    if (end == authority.npos) return Bad("has a [ without ]");
    port = authority.substr(end + 1);
    authority = authority.substr(1, end - 1);
    if (!port.empty() && !port.starts_with(":")) return Bad("has something behind ]");
  } else if (const size_t colon = authority.rfind(':'); colon != authority.npos) {
    port = authority.substr(colon);
    authority = authority.substr(0, colon);
  }
  if (!port.empty() &&
      (!ParseInt(port.substr(1), &url->port) || url->port < 1 || url->port > 65535))
    return Bad("has a port that is not a number from 1 to 65535");
  url->host = std::string(authority);
  for (char c : url->host)
    if (c <= ' ' || c == '/' || c == '%' || c == '"' || c == 0x7f)
      return Bad("has a host name with a character that none has");
  return absl::OkStatus();
}

constexpr const char* kSchemes[] = {"redis", "rediss", "redis+unix", "s3"};

}  // namespace

std::string StoreUrl::Redacted() const {
  if (scheme == "file") return path;
  const std::string shown = host.find(':') == host.npos ? host : "[" + host + "]";
  return StrCat(scheme, "://", shown, port > 0 ? StrCat(":", port) : "", path);
}

std::string StoreUrl::Param(const std::string& name, const std::string& otherwise) const {
  const auto found = params.find(name);
  return found == params.end() ? otherwise : found->second;
}

absl::StatusOr<StoreUrl> ParseStoreUrl(std::string_view text) {
  StoreUrl url;
  const size_t colon = text.find("://");
  if (text.empty()) return absl::InvalidArgumentError("a prefix store's name is empty");
  if (colon == text.npos) {
    url.scheme = "file";
    url.path = std::string(text);
    return url;
  }
  url.scheme = std::string(text.substr(0, colon));
  if (std::find(std::begin(kSchemes), std::end(kSchemes), url.scheme) == std::end(kSchemes))
    return Bad("begins with none of redis://, rediss://, redis+unix://, s3://");
  text.remove_prefix(colon + 3);
  if (text.find('#') != text.npos) return Bad("has a '#': write %23");
  const std::vector<std::string_view> parts = SplitOnce(text, '?');
  if (parts.size() == 2) VC_RETURN_IF_ERROR(ParseParams(parts[1], &url));
  const size_t slash = std::min(parts[0].find('/'), parts[0].size());
  VC_RETURN_IF_ERROR(ParseHost(parts[0].substr(0, slash), &url));
  VC_ASSIGN_OR_RETURN(url.path, Decode(parts[0].substr(slash)));
  if (url.scheme == "redis+unix" ? url.path.size() < 2 : url.host.empty())
    return Bad(url.scheme == "redis+unix" ? "names no socket" : "names no host or bucket");
  return url;
}

absl::StatusOr<std::vector<StoreUrl>> ParseStoreList(std::string_view text) {
  std::vector<StoreUrl> urls;
  for (std::string_view part : Split(text, ',')) {
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    VC_ASSIGN_OR_RETURN(StoreUrl url, ParseStoreUrl(part));
    urls.push_back(std::move(url));
  }
  return urls;
}

std::string RedactedStoreList(std::string_view text) {
  const absl::StatusOr<std::vector<StoreUrl>> urls = ParseStoreList(text);
  if (!urls.ok()) return "(a URL that cannot be read)";
  std::string shown;
  for (const StoreUrl& url : *urls) shown += (shown.empty() ? "" : ", ") + url.Redacted();
  return shown;
}

absl::Status CheckParams(const StoreUrl& url, const std::vector<std::string>& known) {
  for (const auto& [name, value] : url.params) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string names;
    for (const std::string& one : known) names += (names.empty() ? "" : ", ") + one;
    return Bad(StrCat("(", url.Redacted(), ") has the parameter '", name, "'; known are ", names));
  }
  return absl::OkStatus();
}

}  // namespace vericache
