#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/pre_tokenizer.h"

#include <pcre2.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gguf/messages.h"

namespace vericache {
namespace {

// Character classes as the reference sees them. Hugging Face tokenizers match with Oniguruma and
// Unicode 16; Debian's PCRE2 knows Unicode 14, so what came later is spelled out. The lists were
// found by asking the reference about every code point (tests/golden/tokenizer/make_golden.py
// checks them). PCRE2's own \s is not used: it holds U+180E, which is no White_Space.
constexpr char kSpace[] =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr char kLetter[] =
    R"(\p{L}\x{1C89}-\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3})"
    R"(\x{10D4A}-\x{10D65}\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{1123F}-\x{11240})"
    R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3})"
    R"(\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F})"
    R"(\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF})"
    R"(\x{1B132}\x{1B155}\x{1DF25}-\x{1DF2A}\x{1E030}-\x{1E06D}\x{1E4D0}-\x{1E4EB})"
    R"(\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";
constexpr char kNumber[] =
    R"(\p{N}\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59})"
    R"(\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3})"
    R"(\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})";
// What the reference's `Digits` step calls numeric: Rust's tables are newer than Oniguruma's.
constexpr char kDigitStepExtra[] = R"(\x{11DE0}-\x{11DE9}\x{16FF4}-\x{16FF6})";

constexpr char kContractions[] = "'s|'t|'re|'ve|'m|'ll|'d";

// SOURCE: GPT-2 encoder.py; the ByteLevel pre-tokenizer of Hugging Face tokenizers.
std::string Gpt2Pattern() {
  return absl::StrCat(kContractions, "| ?[", kLetter, "]+| ?[", kNumber, "]+| ?[^", kSpace, kLetter,
                      kNumber, "]+|[", kSpace, "]+(?![^", kSpace, "])|[", kSpace, "]+");
}

// SOURCE: SmolLM2's tokenizer.json: Digits(individual_digits), then the GPT-2 rule on what lies
// between. In one expression: a digit is a piece, and white space before a digit stands at the
// end of its part, so all of it is one piece.
std::string SmolLmPattern() {
  const std::string digit = absl::StrCat(kNumber, kDigitStepExtra);
  return absl::StrCat("[", digit, "]|", kContractions, "| ?[", kLetter, "]+| ?[^", kSpace, kLetter,
                      digit, "]+|[", kSpace, "]+(?![^", kSpace, digit, "])|[", kSpace, "]+");
}

// SOURCE: the Split patterns in Qwen2's and Llama 3's tokenizer.json; they differ in how many
// digits go together.
std::string Cl100kLikePattern(const char* digits) {
  return absl::StrCat("(?i:", kContractions, ")|[^\\r\\n", kLetter, kNumber, "]?[", kLetter, "]+|[",
                      kNumber, "]", digits, "| ?[^", kSpace, kLetter, kNumber, "]+[\\r\\n]*|[",
                      kSpace, "]*[\\r\\n]+|[", kSpace, "]+(?![^", kSpace, "])|[", kSpace, "]+");
}

absl::StatusOr<PreTokenizerKind> KindOf(std::string_view name) {
  if (name == "gpt-2") return PreTokenizerKind{"gpt-2", Gpt2Pattern(), false, false, false};
  if (name == "smollm") return PreTokenizerKind{"smollm", SmolLmPattern(), false, false, false};
  if (name == "qwen2") return PreTokenizerKind{"qwen2", Cl100kLikePattern(""), true, false, false};
  if (name == "llama-bpe" || name == "llama3" || name == "llama-v3")
    return PreTokenizerKind{"llama-bpe", Cl100kLikePattern("{1,3}"), false, true, true};
  return absl::UnimplementedError(absl::StrCat(
      "tokenizer.ggml.pre: the pre-tokenizer ", Quoted(name),
      " is not supported; supported are gpt-2, smollm, qwen2 and llama-bpe. Another rule would "
      "give wrong token ids without a sign, so none is tried"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(std::string_view name) {
  absl::StatusOr<PreTokenizerKind> kind = KindOf(name);
  if (!kind.ok()) return kind.status();
  auto result = std::unique_ptr<PreTokenizer>(new PreTokenizer(*std::move(kind)));
  int error = 0;
  PCRE2_SIZE error_offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(result->kind_.pattern.data()),
                                   result->kind_.pattern.size(), PCRE2_UTF | PCRE2_UCP, &error,
                                   &error_offset, nullptr);
  VC_CHECK(code != nullptr);  // the patterns are ours
  // Where the system forbids executable memory PCRE2 interprets the pattern: slower, same cuts.
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  result->code_ = code;
  return result;
}

PreTokenizer::~PreTokenizer() { pcre2_code_free(static_cast<pcre2_code*>(code_)); }

absl::Status PreTokenizer::ForEachPiece(std::string_view text,
                                        absl::FunctionRef<void(std::string_view)> visit) const {
  const auto* code = static_cast<const pcre2_code*>(code_);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  VC_CHECK(match != nullptr && context != nullptr);
  // A run of white space is walked back over once, one step a character: the default limit of
  // 10 million steps would refuse a longer run although the work is linear.
  pcre2_set_match_limit(context.get(), UINT32_MAX);

  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t pos = 0;
  while (pos < text.size()) {
    int rc = pcre2_match(code, subject, text.size(), pos, PCRE2_NO_UTF_CHECK, match.get(),
                         context.get());
    // The interpreter keeps its state on the heap and has no stack to run out of.
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
      rc = pcre2_match(code, subject, text.size(), pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       match.get(), context.get());
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
      return absl::InternalError(
          absl::StrCat("splitting text failed at byte ", pos, ": PCRE2 error ", rc));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    const size_t begin = rc > 0 ? range[0] : text.size();
    const size_t end = rc > 0 ? range[1] : text.size();
    // Every character belongs to some alternative; text between matches would be a piece too.
    if (begin > pos) visit(text.substr(pos, begin - pos));
    if (end > begin) visit(text.substr(begin, end - begin));
    VC_CHECK(end > pos);
    pos = end;
  }
  return absl::OkStatus();
}

}  // namespace vericache
