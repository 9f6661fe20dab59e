// The Redis serialization protocol, versions 2 and 3: commands out, replies in.
//
// A reply is hostile until read: depth, elements and lengths are bounded before anything is
// allocated. Large bulk strings are read where the caller wants them, without a copy of the reply.
// SOURCE: the protocol's specification (RESP3 adds null, booleans, doubles, maps, sets, pushes
// ...).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vericache {

inline constexpr int kMaxRespDepth = 8;
inline constexpr size_t kMaxRespElements = size_t{1} << 20;    // of one reply, nested ones included
inline constexpr uint64_t kMaxRespText = uint64_t{16} << 20;   // all bytes that one reply may hold
inline constexpr uint64_t kMaxRespBulk = uint64_t{512} << 20;  // Redis's own limit of a value
inline constexpr size_t kMaxRespLine = 64 << 10;

struct RespReply {
  enum class Kind { kNull, kText, kError, kInteger, kArray };
  Kind kind = Kind::kNull;
  std::string text;                 // kText (simple, bulk, verbatim, double, big number), kError
  int64_t integer = 0;              // kInteger; booleans are 0 and 1
  std::vector<RespReply> elements;  // kArray: arrays, sets, pushes; maps as key, value, ...

  bool is_error(std::string_view code) const {
    return kind == Kind::kError && text.starts_with(code);
  }
};

// "*N\r\n" and each argument as "$LENGTH\r\n...\r\n". COST: copies the arguments.
std::string RespCommand(const std::vector<std::string_view>& args);
// The same but for the last argument's bytes and its closing "\r\n", which the caller sends.
std::string RespCommandHead(const std::vector<std::string_view>& args, uint64_t last_bytes);

// Gives at least one byte, or why not.
using RespSource = std::function<absl::StatusOr<size_t>(uint8_t* to, size_t size)>;

// After an error nothing more can be read: where the next reply begins is unknown.
class RespReader {
 public:
  explicit RespReader(RespSource source);

  // ERRORS: those of the source; kDataLoss: not RESP, or beyond the limits above.
  absl::StatusOr<RespReply> Read();

  // A reply that should be a bulk string: its length, before its bytes, or -1 where the reply is
  // something else; then `*other` holds it. After a length: Take() exactly these, then EndBulk().
  absl::StatusOr<int64_t> BeginBulk(RespReply* other);
  absl::Status Take(uint8_t* to, size_t size);
  absl::Status Skip(uint64_t size);
  absl::Status EndBulk();

 private:
  struct Budget {
    size_t elements = kMaxRespElements;
    uint64_t text_bytes = kMaxRespText;
  };
  absl::Status Fill();
  absl::StatusOr<std::string> Line();
  absl::StatusOr<RespReply> ReadValue(int depth, Budget* budget);
  absl::Status ReadTyped(const std::string& line, int depth, Budget* budget, RespReply* reply);
  absl::Status ReadText(int64_t size, Budget* budget, RespReply* reply);
  absl::Status ReadElements(int64_t count, int depth, Budget* budget, RespReply* reply);

  RespSource source_;
  std::vector<uint8_t> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what was read ahead
};

}  // namespace vericache
