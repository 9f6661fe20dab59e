#include "server/tool_parser.h"

#include <algorithm>

#include "server/json.h"
#include "server/text_hold.h"

namespace vericache::server {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";

// {"name": "X", "arguments": { up to the last brace.
struct Header {
  enum class Kind { kMore, kNo, kYes } kind = Kind::kMore;
  std::string name;
  size_t arguments = 0;  // offset of their brace
};

class HeaderReader {
 public:
  explicit HeaderReader(std::string_view text) : text_(text) {}

  Header Read() {
    Header header;
    const bool good = Take("{") && Take("\"name\"") && Take(":") && TakeName(&header.name) &&
                      Take(",") && Take("\"arguments\"") && Take(":") && Take("{");
    header.kind = good ? Header::Kind::kYes : more_ ? Header::Kind::kMore : Header::Kind::kNo;
    header.arguments = pos_ - 1;
    return header;
  }

 private:
  void SkipBlanks() { pos_ = std::min(text_.find_first_not_of(kBlanks, pos_), text_.size()); }
  bool Take(std::string_view expected) {
    SkipBlanks();
    const std::string_view rest = text_.substr(pos_);
    more_ = rest.size() < expected.size() && expected.starts_with(rest);
    if (!rest.starts_with(expected)) return false;
    pos_ += expected.size();
    return true;
  }
  // A name that needs no escapes.
  bool TakeName(std::string* name) {
    if (!Take("\"")) return false;
    const size_t end = text_.find_first_of("\"\\\n", pos_);
    more_ = end == text_.npos;
    if (more_ || text_[end] != '"') return false;
    *name = text_.substr(pos_, end - pos_);
    pos_ = end + 1;
    return true;
  }

  const std::string_view text_;
  size_t pos_ = 0;
  bool more_ = false;
};

}  // namespace

bool ToolParser::IsKnown(std::string_view name) const {
  return std::find(names_.begin(), names_.end(), name) != names_.end();
}

void ToolParser::GiveUp(ToolPiece* out) {
  out->content += blanks_ + std::string(kOpen) + held_.substr(0, scan_);
  held_.erase(0, scan_);
  blanks_.clear();
  after_call_ = false;
  state_ = State::kText;
}

void ToolParser::StartCall(const std::string& name, ToolPiece* out) {
  out->calls.push_back({num_calls_++, name, ""});
  blanks_.clear();
}

ToolParser::Scan ToolParser::ScanObject() {
  for (; scan_ < held_.size(); ++scan_) {
    const char c = held_[scan_];
    if (in_string_) {
      if (!escaped_ && c == '"') in_string_ = false;
      escaped_ = !escaped_ && c == '\\';
      continue;
    }
    if (c == '<') return Scan::kBad;
    in_string_ = c == '"';
    depth_ += (c == '{' || c == '[') - (c == '}' || c == ']');
    if (depth_ == 0) {
      ++scan_;
      return Scan::kEnd;
    }
  }
  return Scan::kMore;
}

bool ToolParser::StepText(ToolPiece* out) {
  if (after_call_) {
    held_.erase(0, std::min(held_.find_first_not_of(kBlanks), held_.size()));
    // Between two calls nothing but blanks: told apart when the next text is not a mark.
    const std::string_view held = held_;
    if (held.size() < kOpen.size() && kOpen.starts_with(held)) return false;
    after_call_ = false;
  }
  const size_t open = held_.find(kOpen);
  const bool opened = open != held_.npos;
  const size_t size =
      opened ? TrimmedSize(std::string_view(held_).substr(0, open)) : SizeBeforeMark(held_, kOpen);
  out->content += held_.substr(0, size);
  if (!opened) {
    held_.erase(0, size);
    return false;
  }
  blanks_ = held_.substr(size, open - size);
  held_.erase(0, open + kOpen.size());
  state_ = State::kBody;
  scan_ = 0;
  depth_ = 0;
  in_string_ = escaped_ = false;
  return true;
}

bool ToolParser::StepBody(ToolPiece* out) {
  const Header header = HeaderReader(held_).Read();
  if (header.kind == Header::Kind::kMore) return false;
  if (header.kind == Header::Kind::kYes && IsKnown(header.name)) {
    StartCall(header.name, out);
    held_.erase(0, header.arguments);
    state_ = State::kArguments;
    return true;
  }
  scan_ = held_.find_first_not_of(kBlanks);
  if (held_[scan_] != '{') {
    GiveUp(out);
  } else {
    state_ = State::kWhole;
  }
  return true;
}

bool ToolParser::StepArguments(ToolPiece* out) {
  const Scan scan = ScanObject();
  if (scan_ > 0) {
    const int index = num_calls_ - 1;
    if (out->calls.empty() || out->calls.back().index != index)
      out->calls.push_back({index, "", ""});
    out->calls.back().arguments += held_.substr(0, scan_);
    held_.erase(0, scan_);
    scan_ = 0;
  }
  if (scan == Scan::kMore) return false;
  state_ = State::kTail;
  return true;
}

bool ToolParser::StepWhole(ToolPiece* out) {
  const Scan scan = ScanObject();
  if (scan == Scan::kMore) return false;
  const absl::StatusOr<Json> checked =
      ParseBody(std::string_view(held_).substr(0, scan == Scan::kEnd ? scan_ : 0));
  const char* key = checked.ok() && checked->contains("arguments") ? "arguments" : "parameters";
  if (!checked.ok() || !checked->contains("name") || !(*checked)["name"].is_string() ||
      !IsKnown((*checked)["name"].get<std::string>())) {
    GiveUp(out);
    return true;
  }
  const absl::StatusOr<OrderedJson> call =
      ParseOrdered(std::string_view(held_).substr(0, scan_), {key});
  std::string arguments = "{}";
  if (call.ok() && call->contains(key))
    arguments = (*call)[key].is_string() ? (*call)[key].get<std::string>() : Dump((*call)[key]);
  StartCall((*checked)["name"].get<std::string>(), out);
  out->calls.back().arguments = std::move(arguments);
  held_.erase(0, scan_);
  state_ = State::kTail;
  return true;
}

bool ToolParser::StepTail() {
  held_.erase(0, std::min(held_.find_first_not_of(" \t\r\n}"), held_.size()));
  const std::string_view held = held_;
  if (held.size() < kClose.size() && kClose.starts_with(held)) return false;
  if (held.starts_with(kClose)) held_.erase(0, kClose.size());
  after_call_ = true;
  state_ = State::kText;
  return true;
}

bool ToolParser::Step(ToolPiece* out) {
  switch (state_) {
    case State::kText:
      return StepText(out);
    case State::kBody:
      return StepBody(out);
    case State::kArguments:
      return StepArguments(out);
    case State::kWhole:
      return StepWhole(out);
    case State::kTail:
      return StepTail();
  }
  return false;
}

ToolPiece ToolParser::Push(std::string_view text) {
  ToolPiece out;
  held_ += text;
  while (Step(&out)) {
  }
  return out;
}

ToolPiece ToolParser::Finish() {
  ToolPiece out;
  if (state_ == State::kBody || state_ == State::kWhole) {
    scan_ = held_.size();
    GiveUp(&out);
  } else if (state_ == State::kText) {
    // Blanks after a call are dropped; the beginning of a mark that never came is text.
    out.content = held_;
  }
  held_.clear();
  return out;
}

}  // namespace vericache::server
