#include "hub/listing.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "hub/reference.h"
#include "nlohmann/json.hpp"

namespace vericache {
namespace {

constexpr size_t kMaxNamesShown = 12;

std::string StringField(const nlohmann::json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

int64_t BytesField(const nlohmann::json& object) {
  const auto it = object.find("size");
  return it != object.end() && it->is_number_unsigned() ? it->get<int64_t>() : -1;
}

RemoteFile FileOf(const nlohmann::json& entry) {
  RemoteFile file{StringField(entry, "path"), BytesField(entry), ""};
  // Only large files (LFS) have a SHA-256; the "oid" beside it is git's own SHA-1.
  const auto lfs = entry.find("lfs");
  if (lfs != entry.end() && lfs->is_object()) {
    const std::string oid = absl::AsciiStrToLower(StringField(*lfs, "oid"));
    if (IsSha256Hex(oid)) file.sha256 = oid;
    if (BytesField(*lfs) >= 0) file.bytes = BytesField(*lfs);
  }
  return file;
}

}  // namespace

bool IsSha256Hex(const std::string& text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(),
                                          [](unsigned char c) { return absl::ascii_isxdigit(c); });
}

absl::StatusOr<std::vector<RemoteFile>> ParseTreePage(const std::string& json) {
  const nlohmann::json page = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!page.is_array()) return absl::FailedPreconditionError("the answer is no list of files");
  std::vector<RemoteFile> files;
  for (const nlohmann::json& entry : page) {
    if (!entry.is_object()) return absl::FailedPreconditionError("the answer is no list of files");
    if (StringField(entry, "type") == "file") files.push_back(FileOf(entry));
  }
  return files;
}

std::string NextPageUrl(const std::string& link_header) {
  const std::vector<std::string> links = absl::StrSplit(link_header, ',');
  for (const std::string& link : links) {
    const size_t begin = link.find('<');
    const size_t end = link.find('>');
    if (begin == std::string::npos || end == std::string::npos || end < begin) continue;
    if (absl::StrContains(link.substr(end), "rel=\"next\"")) {
      return link.substr(begin + 1, end - begin - 1);
    }
  }
  return "";
}

absl::StatusOr<RemoteFile> ChooseFile(const std::string& repo, const std::string& wanted,
                                      const std::vector<RemoteFile>& files) {
  std::vector<std::string> names;
  for (const RemoteFile& file : files) {
    if (file.path == wanted) return file;
    if (HasGgufSuffix(file.path)) names.push_back(absl::CHexEscape(file.path));
  }
  std::sort(names.begin(), names.end());
  if (names.empty()) return absl::NotFoundError(absl::StrCat(repo, " holds no GGUF file"));
  if (wanted.empty() && names.size() == 1) {
    for (const RemoteFile& file : files) {
      if (HasGgufSuffix(file.path)) return file;
    }
  }
  const size_t num_shown = std::min(names.size(), kMaxNamesShown);
  const std::string list = absl::StrCat(
      absl::StrJoin(names.begin(), names.begin() + num_shown, ", "),
      num_shown < names.size() ? absl::StrCat(" and ", names.size() - num_shown, " more") : "");
  if (wanted.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(repo, " has several GGUF files, say which one (", repo, "/FILE): ", list));
  }
  return absl::NotFoundError(absl::StrCat(repo, " has no file ", wanted, "; it has: ", list));
}

}  // namespace vericache
