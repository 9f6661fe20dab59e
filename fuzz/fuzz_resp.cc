// Any bytes as what a Redis server answers: replies or an error, whatever pieces they come in.
//
// The first byte says how many bytes come at once, and whether bulk strings are read in place.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "remote/resp.h"

namespace {

using namespace vericache;

// The input a few bytes at a time, then the end.
RespSource SourceOf(const uint8_t* data, size_t size, size_t step, size_t* given) {
  return [=](uint8_t* to, size_t room) -> absl::StatusOr<size_t> {
    if (*given == size) return absl::UnavailableError("the end");
    const size_t n = std::min({step, room, size - *given});
    std::memcpy(to, data + *given, n);
    *given += n;
    return n;
  };
}

size_t CountOf(const RespReply& reply, int depth, uint64_t* bytes) {
  VC_CHECK(depth <= kMaxRespDepth);
  size_t count = 1;
  *bytes += reply.text.size();
  for (const RespReply& element : reply.elements) count += CountOf(element, depth + 1, bytes);
  return count;
}

void ReadAll(const uint8_t* data, size_t size, size_t step) {
  size_t given = 0;
  RespReader reader(SourceOf(data, size, step, &given));
  for (;;) {
    const absl::StatusOr<RespReply> reply = reader.Read();
    if (!reply.ok()) return;
    uint64_t bytes = 0;
    VC_CHECK(CountOf(*reply, 0, &bytes) <= kMaxRespElements);
    VC_CHECK(bytes <= size && bytes <= kMaxRespText);
  }
}

void ReadInPlace(const uint8_t* data, size_t size, size_t step) {
  size_t given = 0;
  RespReader reader(SourceOf(data, size, step, &given));
  for (;;) {
    RespReply other;
    const absl::StatusOr<int64_t> length = reader.BeginBulk(&other);
    if (!length.ok()) return;
    if (*length < 0) continue;
    VC_CHECK(static_cast<uint64_t>(*length) <= kMaxRespBulk);
    // As a store does: a head of its own size, the rest skipped.
    std::vector<uint8_t> head(std::min<size_t>(static_cast<size_t>(*length), 144));
    if (!reader.Take(head.data(), head.size()).ok()) return;
    if (!reader.Skip(static_cast<uint64_t>(*length) - head.size()).ok()) return;
    if (!reader.EndBulk().ok()) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t step = 1 + data[0] / 2;
  if (data[0] % 2 == 0)
    ReadInPlace(data + 1, size - 1, step);
  else
    ReadAll(data + 1, size - 1, step);
  return 0;
}
