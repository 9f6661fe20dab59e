#include "remote/resp.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

constexpr size_t kBufferBytes = 16 << 10;

absl::Status NotResp(std::string_view what) {
  return absl::DataLossError(StrCat("a reply that is not Redis's: ", what));
}

// Digits with at most one sign. False: anything else, or out of range.
bool ParseNumber(std::string_view text, int64_t* value) {
  if (text.empty() || text.size() > 20) return false;
  for (size_t i = 0; i < text.size(); ++i)
    if (!(text[i] >= '0' && text[i] <= '9') && !(i == 0 && (text[i] == '-' || text[i] == '+')))
      return false;
  return ParseInt(text, value);
}

}  // namespace

std::string RespCommandHead(const std::vector<std::string_view>& args, uint64_t last_bytes) {
  std::string head = StrCat("*", args.size() + 1, "\r\n");
  for (std::string_view arg : args) head += StrCat("$", arg.size(), "\r\n", arg, "\r\n");
  return head + StrCat("$", last_bytes, "\r\n");
}

std::string RespCommand(const std::vector<std::string_view>& args) {
  std::string command = StrCat("*", args.size(), "\r\n");
  for (std::string_view arg : args) command += StrCat("$", arg.size(), "\r\n", arg, "\r\n");
  return command;
}

RespReader::RespReader(RespSource source) : source_(std::move(source)), buffer_(kBufferBytes) {}

absl::Status RespReader::Fill() {
  begin_ = end_ = 0;
  VC_ASSIGN_OR_RETURN(end_, source_(buffer_.data(), buffer_.size()));
  return absl::OkStatus();
}

absl::StatusOr<std::string> RespReader::Line() {
  std::string line;
  for (;;) {
    if (begin_ == end_) VC_RETURN_IF_ERROR(Fill());
    const uint8_t* at =
        static_cast<const uint8_t*>(std::memchr(buffer_.data() + begin_, '\n', end_ - begin_));
    const size_t stop = at == nullptr ? end_ : static_cast<size_t>(at - buffer_.data());
    if (line.size() + (stop - begin_) > kMaxRespLine) return NotResp("a line without an end");
    line.append(reinterpret_cast<const char*>(buffer_.data()) + begin_, stop - begin_);
    begin_ = stop;
    if (at == nullptr) continue;
    ++begin_;
    if (line.size() < 2 || line.back() != '\r') return NotResp("a line that does not end in CR LF");
    line.pop_back();
    return line;
  }
}

absl::Status RespReader::Take(uint8_t* to, size_t size) {
  const size_t held = std::min(size, end_ - begin_);
  if (held > 0) std::memcpy(to, buffer_.data() + begin_, held);
  begin_ += held;
  for (size_t done = held; done < size;) {
    VC_ASSIGN_OR_RETURN(const size_t n, source_(to + done, size - done));
    done += n;
  }
  return absl::OkStatus();
}

absl::Status RespReader::Skip(uint64_t size) {
  while (size > 0) {
    if (begin_ == end_) VC_RETURN_IF_ERROR(Fill());
    const size_t step = static_cast<size_t>(std::min<uint64_t>(size, end_ - begin_));
    begin_ += step;
    size -= step;
  }
  return absl::OkStatus();
}

absl::Status RespReader::EndBulk() {
  uint8_t end[2];
  VC_RETURN_IF_ERROR(Take(end, 2));
  return end[0] == '\r' && end[1] == '\n' ? absl::OkStatus()
                                          : NotResp("a string of another length");
}

absl::StatusOr<RespReply> RespReader::Read() {
  Budget budget;
  return ReadValue(0, &budget);
}

absl::StatusOr<RespReply> RespReader::ReadValue(int depth, Budget* budget) {
  if (depth > kMaxRespDepth) return NotResp("nested too deeply");
  if (budget->elements-- == 0) return NotResp("too many elements");
  VC_ASSIGN_OR_RETURN(const std::string line, Line());
  RespReply reply;
  VC_RETURN_IF_ERROR(ReadTyped(line, depth, budget, &reply));
  return reply;
}

absl::Status RespReader::ReadTyped(const std::string& line, int depth, Budget* budget,
                                   RespReply* reply) {
  using Kind = RespReply::Kind;
  const std::string_view rest = std::string_view(line).substr(1);
  if (rest.size() > budget->text_bytes) return NotResp("too much text");
  budget->text_bytes -= rest.size();
  int64_t number = 0;
  switch (line[0]) {
    case '+':
    case ',':
    case '(':
      reply->kind = Kind::kText;
      reply->text = std::string(rest);
      return absl::OkStatus();
    case '-':
      reply->kind = Kind::kError;
      reply->text = std::string(rest);
      return absl::OkStatus();
    case ':':
      reply->kind = Kind::kInteger;
      return ParseNumber(rest, &reply->integer) ? absl::OkStatus() : NotResp("a bad number");
    case '#':
      reply->kind = Kind::kInteger;
      reply->integer = rest == "t";
      return rest == "t" || rest == "f" ? absl::OkStatus() : NotResp("a bad boolean");
    case '_':
      return rest.empty() ? absl::OkStatus() : NotResp("a bad null");
    case '$':
    case '=':
    case '!':
      if (!ParseNumber(rest, &number)) return NotResp("a bad length");
      reply->kind = line[0] == '!' ? Kind::kError : Kind::kText;
      return ReadText(number, budget, reply);
    case '*':
    case '~':
    case '>':
    case '%':
      if (!ParseNumber(rest, &number)) return NotResp("a bad count");
      if (line[0] == '%' && number > 0 && number <= static_cast<int64_t>(kMaxRespElements))
        number *= 2;
      return ReadElements(number, depth, budget, reply);
    default:
      return NotResp("an unknown type");
  }
}

absl::Status RespReader::ReadText(int64_t size, Budget* budget, RespReply* reply) {
  if (size == -1) {
    *reply = RespReply();
    return absl::OkStatus();
  }
  if (size < 0 || static_cast<uint64_t>(size) > budget->text_bytes)
    return NotResp("a string of a senseless length");
  budget->text_bytes -= static_cast<uint64_t>(size);
  reply->text.resize(static_cast<size_t>(size));
  VC_RETURN_IF_ERROR(Take(reinterpret_cast<uint8_t*>(reply->text.data()), reply->text.size()));
  return EndBulk();
}

absl::Status RespReader::ReadElements(int64_t count, int depth, Budget* budget, RespReply* reply) {
  if (count == -1) return absl::OkStatus();
  if (count < 0 || static_cast<uint64_t>(count) > budget->elements)
    return NotResp("an array of a senseless length");
  reply->kind = RespReply::Kind::kArray;
  // Room is made as elements come: a count alone costs nothing.
  for (int64_t i = 0; i < count; ++i) {
    VC_ASSIGN_OR_RETURN(RespReply element, ReadValue(depth + 1, budget));
    reply->elements.push_back(std::move(element));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RespReader::BeginBulk(RespReply* other) {
  VC_ASSIGN_OR_RETURN(const std::string line, Line());
  int64_t size = 0;
  if (line[0] == '$' && ParseNumber(std::string_view(line).substr(1), &size) && size >= 0) {
    if (static_cast<uint64_t>(size) > kMaxRespBulk) return NotResp("a value of a senseless length");
    return size;
  }
  Budget budget;
  VC_RETURN_IF_ERROR(ReadTyped(line, 0, &budget, other));
  return -1;
}

}  // namespace vericache
