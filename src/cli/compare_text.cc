#include "cli/compare_text.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>

namespace vericache::cli {
namespace {

constexpr std::string_view kFence = "```";
// What small models put on the fence. JSON also comes without a language; code without one may be
// anything.
constexpr std::string_view kJsonLanguages[] = {"json", "jsonc", "json5", ""};
constexpr std::string_view kPythonLanguages[] = {"python", "py", "python3"};

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

ParseState FailedState(const CodeBlock& block, AnswerEnd end) {
  return !block.closed && end == AnswerEnd::kAtTokenLimit ? ParseState::kCut : ParseState::kFails;
}

// Without a fence: from the first bracket to the last one, so that words around do not matter.
std::optional<CodeBlock> FindBareJson(std::string_view text) {
  const size_t begin = text.find_first_of("{[");
  if (begin == std::string_view::npos) return std::nullopt;
  const size_t end = text.find_last_of("}]");
  if (end == std::string_view::npos || end < begin) return CodeBlock{text.substr(begin), false};
  // A text that goes on behind its last bracket with more JSON is cut; with words it is not.
  const std::string_view rest = Trimmed(text.substr(end + 1));
  const bool goes_on = !rest.empty() && (rest[0] == ',' || rest[0] == '"' || rest[0] == ':');
  return goes_on ? CodeBlock{text.substr(begin), false}
                 : CodeBlock{text.substr(begin, end + 1 - begin), true};
}

}  // namespace

int64_t FirstDivergence(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  const auto [in_a, in_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (in_a == a.end() && in_b == b.end()) return -1;
  return in_a - a.begin();
}

double TokenF1(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  if (a.empty() && b.empty()) return 1;
  std::map<int32_t, int64_t> left;  // how many of each token of `a` are not matched yet
  for (const int32_t id : a) ++left[id];
  int64_t num_common = 0;
  for (const int32_t id : b) {
    auto it = left.find(id);
    if (it == left.end() || it->second == 0) continue;
    --it->second;
    ++num_common;
  }
  // 2PR / (P + R) with P = common / |b| and R = common / |a|.
  return 2.0 * static_cast<double>(num_common) / static_cast<double>(a.size() + b.size());
}

std::string_view ParseStateName(ParseState state) {
  switch (state) {
    case ParseState::kNone:
      return "-";
    case ParseState::kParses:
      return "yes";
    case ParseState::kFails:
      return "no";
    case ParseState::kCut:
      return "cut";
    case ParseState::kUnavailable:
      return "n/a";
  }
  return "";
}

std::optional<CodeBlock> FindFencedBlock(std::string_view text,
                                         absl::Span<const std::string_view> languages) {
  size_t pos = 0;
  while ((pos = text.find(kFence, pos)) != std::string_view::npos) {
    size_t line_end = text.find('\n', pos);
    if (line_end == std::string_view::npos) line_end = text.size();
    const std::string_view info = text.substr(pos + kFence.size(), line_end - pos - kFence.size());
    std::string language(Trimmed(info));
    for (char& c : language) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const size_t begin = std::min(text.size(), line_end + 1);
    const size_t end = text.find(kFence, begin);
    const bool closed = end != std::string_view::npos;
    if (std::find(languages.begin(), languages.end(), language) != languages.end())
      return CodeBlock{text.substr(begin, closed ? end - begin : end), closed};
    if (!closed) return std::nullopt;
    pos = end + kFence.size();
  }
  return std::nullopt;
}

JsonVerdict ParseJsonAnswer(std::string_view text, AnswerEnd end) {
  std::optional<CodeBlock> block = FindFencedBlock(text, kJsonLanguages);
  if (!block.has_value()) block = FindBareJson(text);
  if (!block.has_value()) return {};
  const nlohmann::json value =
      nlohmann::json::parse(block->code, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return {FailedState(*block, end), ""};
  // Strings of a parsed value are valid UTF-8 (the parser checks), so dump() cannot throw.
  return {ParseState::kParses, value.dump()};
}

ParseState ParsePythonAnswer(std::string_view text, AnswerEnd end) {
  const std::optional<CodeBlock> block = FindFencedBlock(text, kPythonLanguages);
  if (!block.has_value()) return ParseState::kNone;
  const ParseState state = ParsePython(block->code);
  return state == ParseState::kFails ? FailedState(*block, end) : state;
}

}  // namespace vericache::cli
