#include "kv/codecs/draft_codec.h"

#include "base/text.h"

namespace vericache {
namespace {

constexpr int kKiviTailKeys = 128;

// "2" to "8" and, for kXvY, "16"; nothing else, so that a codec has no second spelling.
bool ParseBits(std::string_view text, bool allow_f16, DraftFormat* format) {
  if (allow_f16 && text == "16") {
    *format = DraftFormat::kF16;
    return true;
  }
  if (text.size() != 1 || text[0] < '2' || text[0] > '8') return false;
  *format = static_cast<DraftFormat>(text[0] - '0');
  return true;
}

// Takes `prefix` off the front.
bool Take(std::string_view prefix, std::string_view* text) {
  if (text->substr(0, prefix.size()) != prefix) return false;
  text->remove_prefix(prefix.size());
  return true;
}

bool IsKivi(DraftFormat format) {
  return format == DraftFormat::kInt2 || format == DraftFormat::kInt4;
}

}  // namespace

bool ParseDraftCodec(std::string_view name, DraftCodec* codec) {
  DraftCodec parsed;
  if (name == "f16") {
    *codec = parsed;
    return true;
  }
  bool known = false;
  if (Take("int", &name)) {
    known = ParseBits(name, false, &parsed.k);
    parsed.v = parsed.k;
  } else if (Take("rot", &name)) {
    known = ParseBits(name, false, &parsed.k);
    parsed.v = parsed.k;
    parsed.rotated = true;
  } else if (Take("kivi", &name)) {
    known = ParseBits(name, false, &parsed.k) && IsKivi(parsed.k);
    parsed.v = parsed.k;
    parsed.tail_keys = kKiviTailKeys;
  } else if (Take("k", &name)) {
    const size_t v = name.find('v');
    known = v != std::string_view::npos && ParseBits(name.substr(0, v), true, &parsed.k) &&
            ParseBits(name.substr(v + 1), true, &parsed.v);
  }
  if (known) *codec = parsed;
  return known;
}

std::string DraftCodec::ToString() const {
  if (!has_codes()) return "f16";
  if (k != v) return StrCat("k", BitsOf(k), "v", BitsOf(v));
  const char* family = rotated ? "rot" : tail_keys == kKiviTailKeys ? "kivi" : "int";
  return StrCat(family, BitsOf(k));
}

}  // namespace vericache
