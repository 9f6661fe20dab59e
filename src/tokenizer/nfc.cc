#include "tokenizer/nfc.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tokenizer/nfc_data.h"
#include "tokenizer/utf8.h"

namespace vericache {
namespace {

// Nothing below U+0300 decomposes into anything that does not compose again, or reorders.
constexpr char32_t kFirstAffected = 0x300;

// Hangul syllables are composed by arithmetic (Unicode 3.12).
constexpr char32_t kHangulBase = 0xAC00, kLeadBase = 0x1100, kVowelBase = 0x1161;
constexpr char32_t kTrailBase = 0x11A7;  // one before the first: index 0 is "no trailing"
constexpr int kNumLeads = 19, kNumVowels = 21, kNumTrails = 28;
constexpr int kNumSyllables = kNumLeads * kNumVowels * kNumTrails;

bool InRange(char32_t c, char32_t base, int count) {
  return c >= base && c < base + static_cast<char32_t>(count);
}

struct Mark {
  char32_t c;
  uint8_t combining_class;
};

int CombiningClass(char32_t c) {
  const auto ranges = NfcClassRanges();
  const auto after = std::upper_bound(
      ranges.begin(), ranges.end(), c,
      [](char32_t value, const NfcClassRange& range) { return value < range.begin; });
  if (after == ranges.begin()) return 0;
  const NfcClassRange& range = *(after - 1);
  return c < range.end ? range.combining_class : 0;
}

void AppendDecomposed(char32_t c, std::vector<Mark>* out) {
  if (InRange(c, kHangulBase, kNumSyllables)) {
    const int index = static_cast<int>(c - kHangulBase);
    out->push_back({kLeadBase + index / (kNumVowels * kNumTrails), 0});
    out->push_back({kVowelBase + index % (kNumVowels * kNumTrails) / kNumTrails, 0});
    if (index % kNumTrails != 0) out->push_back({kTrailBase + index % kNumTrails, 0});
    return;
  }
  // One level after another: `first` may decompose further (at most four times), `second` never.
  char32_t tail[4];
  int num_tail = 0;
  const auto table = NfcDecompositions();
  while (num_tail < 4) {
    const auto found = std::lower_bound(
        table.begin(), table.end(), c,
        [](const NfcDecomposition& row, char32_t value) { return row.whole < value; });
    if (found == table.end() || found->whole != c) break;
    if (found->second != 0) tail[num_tail++] = found->second;
    c = found->first;
  }
  out->push_back({c, static_cast<uint8_t>(CombiningClass(c))});
  while (num_tail > 0) {
    const char32_t mark = tail[--num_tail];
    out->push_back({mark, static_cast<uint8_t>(CombiningClass(mark))});
  }
}

// The one character that `first` and `second` make; 0 if none.
char32_t Compose(char32_t first, char32_t second) {
  if (InRange(first, kLeadBase, kNumLeads) && InRange(second, kVowelBase, kNumVowels))
    return kHangulBase + ((first - kLeadBase) * kNumVowels + (second - kVowelBase)) * kNumTrails;
  if (InRange(first, kHangulBase, kNumSyllables) && (first - kHangulBase) % kNumTrails == 0 &&
      InRange(second, kTrailBase + 1, kNumTrails - 1))
    return first + (second - kTrailBase);
  static const auto* const kPairs = [] {
    auto* pairs = new absl::flat_hash_map<uint64_t, char32_t>();
    for (const NfcDecomposition& row : NfcDecompositions())
      if (row.composes) (*pairs)[static_cast<uint64_t>(row.first) << 32 | row.second] = row.whole;
    return pairs;
  }();
  const auto found = kPairs->find(static_cast<uint64_t>(first) << 32 | second);
  return found == kPairs->end() ? 0 : found->second;
}

// Canonical order: marks of a run sorted by class, equal classes as they stood.
void SortMarks(std::vector<Mark>* text) {
  const auto is_starter = [](const Mark& mark) { return mark.combining_class == 0; };
  for (auto begin = text->begin(); begin != text->end();) {
    begin = std::find_if_not(begin, text->end(), is_starter);
    const auto end = std::find_if(begin, text->end(), is_starter);
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

// UAX 15 composition: each mark joins the last starter unless something in between blocks it,
// that is, unless a character of its own or a higher class (or another starter) was kept there.
void ComposeInPlace(std::vector<Mark>* text) {
  size_t num_kept = 0;
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t starter = kNone;
  for (const Mark mark : *text) {
    if (starter != kNone) {
      const bool adjacent = num_kept == starter + 1;
      const bool blocked =
          !adjacent && (*text)[num_kept - 1].combining_class >= mark.combining_class;
      const char32_t whole = blocked ? 0 : Compose((*text)[starter].c, mark.c);
      if (whole != 0) {
        (*text)[starter].c = whole;
        continue;
      }
    }
    if (mark.combining_class == 0) starter = num_kept;
    (*text)[num_kept++] = mark;
  }
  text->resize(num_kept);
}

}  // namespace

std::optional<std::string> ToNfc(std::string_view text) {
  // U+0300 and above begin with the byte CC or higher: most text ends here.
  static_assert(kFirstAffected == 0x300);
  if (std::none_of(text.begin(), text.end(),
                   [](char c) { return static_cast<uint8_t>(c) >= 0xCC; }))
    return std::nullopt;
  std::vector<Mark> marks;
  marks.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const Utf8Char next = DecodeUtf8Char(rest);
    AppendDecomposed(next.code_point, &marks);
    rest.remove_prefix(next.size);
  }
  SortMarks(&marks);
  ComposeInPlace(&marks);
  std::string result;
  result.reserve(text.size());
  for (const Mark& mark : marks) AppendUtf8(mark.c, &result);
  if (result == text) return std::nullopt;
  return result;
}

}  // namespace vericache
