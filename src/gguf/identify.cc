#include "gguf/identify.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace vericache {
namespace {

// Enough for the tar magic at 257 and for a Git LFS pointer (about 130 bytes).
constexpr size_t kLookedAt = 512;

constexpr absl::string_view kConvert =
    "convert the model to GGUF first (llama.cpp's convert_hf_to_gguf.py) or get its .gguf file";

struct Magic {
  size_t offset;
  absl::string_view bytes;
  absl::string_view what;
  absl::string_view remedy;
};

constexpr Magic kMagics[] = {
    {0, "PK\x03\x04", "a zip archive",
     "unpack it and give the .gguf file inside; a PyTorch checkpoint (.pt, .bin) is a zip too and "
     "must be converted to GGUF"},
    {0, "\x1f\x8b", "a gzip archive", "unpack it and give the .gguf file inside"},
    {0, "\x28\xb5\x2f\xfd", "a zstd archive", "unpack it and give the .gguf file inside"},
    {0,
     "\xfd"
     "7zXZ",
     "an xz archive", "unpack it and give the .gguf file inside"},
    {0, "7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it and give the .gguf file inside"},
    {257, "ustar", "a tar archive", "unpack it and give the .gguf file inside"},
    {0, "\x80\x02", "a Python pickle (PyTorch checkpoint)", kConvert},
    {0, "lmgg", "a model in the old GGML format", kConvert},
    {0, "fmgg", "a model in the old GGMF format", kConvert},
    {0, "tjgg", "a model in the old GGJT format", kConvert},
    {0, "FUGG", "a big-endian GGUF", "get or convert a little-endian one"},
    {0,
     "\x7f"
     "ELF",
     "a program (ELF)", "give the path of a .gguf file"},
    {0, "%PDF", "a PDF document", "give the path of a .gguf file"},
};

std::string NotAModel(absl::string_view what, absl::string_view remedy) {
  return absl::StrCat("is ", what, ", not a GGUF model: ", remedy);
}

std::string DescribeLfsPointer(absl::string_view head) {
  std::string size_note;
  const size_t at = head.find("\nsize ");
  if (at != absl::string_view::npos) {
    absl::string_view digits = head.substr(at + 6);
    digits = digits.substr(0, digits.find_first_not_of("0123456789"));
    uint64_t size = 0;
    if (absl::SimpleAtoi(digits, &size)) size_note = absl::StrCat(" to a file of ", size, " bytes");
  }
  return NotAModel(absl::StrCat("a Git LFS pointer", size_note),
                   "run `git lfs pull` in its folder, or download the file itself");
}

// The first 8 bytes are the length of a JSON header, little-endian.
bool LooksLikeSafetensors(absl::Span<const uint8_t> bytes) {
  if (bytes.size() < 10 || bytes[8] != '{') return false;
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  // The format's own limit for the header is 100 MB; a cut file may end inside it.
  return header_bytes >= 2 && header_bytes <= 100'000'000;
}

bool IsText(absl::string_view head) {
  return std::all_of(head.begin(), head.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\r' || c == '\t';
  });
}

}  // namespace

std::string DescribeNonGguf(absl::Span<const uint8_t> bytes) {
  if (bytes.empty()) return "is empty (0 bytes): download or copy it again";
  const absl::string_view head(reinterpret_cast<const char*>(bytes.data()),
                               std::min(bytes.size(), kLookedAt));
  if (absl::StartsWith(absl::string_view("GGUF"), head)) {
    return absl::StrCat("is cut short: it has ", bytes.size(),
                        " bytes of a GGUF model; download or copy it again");
  }
  if (absl::StartsWith(head, "version https://git-lfs.github.com/")) {
    return DescribeLfsPointer(head);
  }
  for (const Magic& magic : kMagics) {
    if (head.size() > magic.offset && absl::StartsWith(head.substr(magic.offset), magic.bytes)) {
      return NotAModel(magic.what, magic.remedy);
    }
  }
  if (LooksLikeSafetensors(bytes)) return NotAModel("a safetensors file", kConvert);
  absl::string_view text = head;
  if (absl::StartsWith(text, "\xef\xbb\xbf")) text.remove_prefix(3);  // UTF-8 byte order mark
  text = absl::StripLeadingAsciiWhitespace(text);
  if (absl::StartsWithIgnoreCase(text, "<!doctype html") ||
      absl::StartsWithIgnoreCase(text, "<html") || absl::StartsWithIgnoreCase(text, "<head")) {
    return NotAModel("an HTML page",
                     "a web page was saved instead of the file (a login, error or preview page?); "
                     "download the file from its direct link");
  }
  if (std::all_of(head.begin(), head.end(), [](char c) { return c == 0; })) {
    return NotAModel("zeros at its start",
                     "a download reserved the space and did not finish; download it again");
  }
  if (IsText(head)) {
    const char* what = absl::StartsWith(text, "<")   ? "an XML or HTML text"
                       : absl::StartsWith(text, "{") ? "a JSON text"
                                                     : "a text file";
    return NotAModel(what,
                     "a server may have sent a message instead of the file; look at it and "
                     "download the model again");
  }
  std::string hex;
  for (char c : head.substr(0, 4)) absl::StrAppendFormat(&hex, " %02x", static_cast<uint8_t>(c));
  return absl::StrCat("is not a GGUF model: it starts with bytes", hex,
                      " instead of 47 47 55 46 (\"GGUF\"); give the path of a .gguf file");
}

}  // namespace vericache
