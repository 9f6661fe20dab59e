// Putting and removing blobs in Redis: pieces first, then one transaction that makes them a blob.
#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"
#include "remote/redis_store.h"

namespace vericache {
namespace {

using From = RedisNodes::From;
using Lease = RedisNodes::Lease;
using Parts = absl::Span<const std::string_view>;

constexpr int kMaxTries = 3;
// Pieces sent before the answer to the first is read: a refusal must not cost the whole blob.
constexpr uint32_t kPiecesAhead = 4;

// What of `parts`, in a row, lies in [begin, begin + size).
std::vector<std::string_view> Slice(Parts parts, uint64_t begin, uint64_t size) {
  std::vector<std::string_view> slice;
  for (std::string_view part : parts) {
    if (size == 0) break;
    if (begin >= part.size()) {
      begin -= part.size();
      continue;
    }
    slice.push_back(part.substr(begin, size));
    size -= slice.back().size();
    begin = 0;
  }
  return slice;
}

// Sends a command whose last argument is `value`, in parts.
absl::Status SendWithValue(RedisConnection* connection, std::string_view head,
                           std::vector<std::string_view> value, std::string_view tail) {
  value.insert(value.begin(), head);
  value.push_back(tail);
  return connection->Send(value);
}

bool IsMoved(const RespReply& reply) {
  return reply.is_error("MOVED ") || reply.is_error("ASK ") || reply.is_error("TRYAGAIN");
}

// The writer of one blob on one connection.
class BlobWriter {
 public:
  BlobWriter(RedisConnection* connection, const std::string& main, const RedisHead& head,
             Parts parts, std::chrono::seconds ttl)
      : connection_(connection), main_(main), head_(head), parts_(parts), ttl_(ttl) {}

  absl::Status SendPieces() {
    const std::string ttl = std::to_string(ttl_.count());
    uint32_t read = 0;
    for (uint32_t sent = 0; sent < head_.num_pieces; ++sent) {
      const uint64_t size = head_.BytesOfPiece(sent);
      // SET key value EX ttl: the value is not the last argument.
      const std::string key = RedisPieceKey(main_, head_.generation, sent);
      const std::string head =
          StrCat("*5\r\n$3\r\nSET\r\n$", key.size(), "\r\n", key, "\r\n$", size, "\r\n");
      const std::string tail = StrCat("\r\n$2\r\nEX\r\n$", ttl.size(), "\r\n", ttl, "\r\n");
      VC_RETURN_IF_ERROR(SendWithValue(
          connection_, head, Slice(parts_, uint64_t{sent} * head_.piece_bytes, size), tail));
      if (sent + 1 - read <= kPiecesAhead) continue;
      VC_RETURN_IF_ERROR(ReadOk());
      ++read;
    }
    for (; read < head_.num_pieces; ++read) VC_RETURN_IF_ERROR(ReadOk());
    return refusal_;
  }

  // MULTI, PERSIST of every piece, the head that was, SET of the head that is, EXEC.
  absl::Status Commit(RedisHead* before) {
    std::string commands = RespCommand({"MULTI"});
    for (uint32_t i = 0; i < head_.num_pieces; ++i)
      commands += RespCommand({"PERSIST", RedisPieceKey(main_, head_.generation, i)});
    commands += RespCommand({"GETRANGE", main_, "0", std::to_string(kRedisHeadBytes - 1)});
    std::string bytes(kRedisHeadBytes, '\0');
    head_.Write(reinterpret_cast<uint8_t*>(bytes.data()));
    const uint64_t inline_bytes = head_.num_pieces == 0 ? head_.payload_bytes() : 0;
    commands += RespCommandHead({"SET", main_}, kRedisHeadBytes + inline_bytes) + bytes;
    VC_RETURN_IF_ERROR(SendWithValue(connection_, commands, Slice(parts_, 0, inline_bytes),
                                     "\r\n" + RespCommand({"EXEC"})));
    for (uint32_t i = 0; i < head_.num_pieces + 3; ++i) VC_RETURN_IF_ERROR(ReadOk());
    VC_ASSIGN_OR_RETURN(const RespReply done, connection_->replies().Read());
    VC_RETURN_IF_ERROR(refusal_);
    if (done.kind != RespReply::Kind::kArray || done.elements.size() != head_.num_pieces + 2)
      return StatusOfReply(connection_->address(), done, ReplyText::kShown);
    for (uint32_t i = 0; i < head_.num_pieces; ++i)
      if (done.elements[i].integer != 1) lost_piece_ = true;
    const RespReply& set = done.elements.back();
    if (set.kind == RespReply::Kind::kError)
      return StatusOfReply(connection_->address(), set, ReplyText::kShown);
    const std::string& old = done.elements[head_.num_pieces].text;
    if (old.size() == kRedisHeadBytes) before->ReadFrom(reinterpret_cast<const uint8_t*>(&old[0]));
    // Evicted while the others were written: what there is now reads as a miss.
    return lost_piece_ ? absl::ResourceExhaustedError(
                             StrCat(connection_->address().Text(), " evicts what is being written"))
                       : absl::OkStatus();
  }

  // Removes pieces that no head names; nobody waits for its success.
  void Unlink(const RedisHead& of) {
    if (of.num_pieces == 0 || of.num_pieces > kMaxRedisBlobBytes / kMinPieceBytes ||
        connection_->broken())
      return;
    std::string commands;
    for (uint32_t i = 0; i < of.num_pieces; ++i)
      commands += RespCommand({"UNLINK", RedisPieceKey(main_, of.generation, i)});
    absl::Status status = connection_->Send({commands});
    for (uint32_t i = 0; i < of.num_pieces && status.ok(); ++i)
      status = connection_->replies().Read().status();
    if (!status.ok()) connection_->Break();
  }

  bool moved() const { return moved_; }

 private:
  // Reads one answer; the first refusal is kept, so that all others can still be read.
  absl::Status ReadOk() {
    VC_ASSIGN_OR_RETURN(const RespReply reply, connection_->replies().Read());
    if (reply.kind == RespReply::Kind::kError && refusal_.ok()) {
      moved_ = IsMoved(reply);
      refusal_ = StatusOfReply(connection_->address(), reply, ReplyText::kShown);
    }
    return absl::OkStatus();
  }

  RedisConnection* connection_;
  const std::string& main_;
  const RedisHead& head_;
  const Parts parts_;
  const std::chrono::seconds ttl_;
  absl::Status refusal_;
  bool moved_ = false, lost_piece_ = false;
};

}  // namespace

uint64_t RedisStore::NextGeneration() {
  const std::lock_guard lock(mutex_);
  return random_();
}

absl::Status RedisStore::TryPut(const std::string& main, const RedisHead& head, Parts parts,
                                Deadline deadline, bool* moved) {
  VC_ASSIGN_OR_RETURN(Lease lease, ConnectFor(main, deadline, From::kPool));
  // A stale connection would cost the whole blob: a word first.
  if (lease.pooled() && !lease->Call({"PING"}).ok()) {
    VC_ASSIGN_OR_RETURN(lease, ConnectFor(main, deadline, From::kFresh));
  }
  BlobWriter writer(lease.get(), main, head, parts, options_.unfinished_ttl);
  RedisHead before;
  absl::Status status = writer.SendPieces();
  const bool in_step = status.ok() || !lease->broken();
  if (status.ok()) status = writer.Commit(&before);
  *moved = writer.moved();
  if (status.ok()) {
    if (before.generation != head.generation) writer.Unlink(before);
    return status;
  }
  // Network errors leave answers unread; refusals do not.
  if (absl::IsDeadlineExceeded(status) || absl::IsDataLoss(status) || !in_step) {
    lease->Break();
  } else if (!*moved && !absl::IsUnavailable(status)) {
    writer.Unlink(head);
  } else {
    lease->Break();
  }
  return status;
}

absl::Status RedisStore::Put(const BlobKey& key, Parts parts) {
  if (options_.read_only) return absl::FailedPreconditionError("the prefix store is read only");
  RedisHead head;
  head.header = MakeBlobHeader(key, parts);
  const uint64_t payload_bytes = head.payload_bytes();
  if (payload_bytes > kMaxRedisBlobBytes)
    return absl::ResourceExhaustedError("a blob too large for Redis");
  if (payload_bytes > options_.piece_bytes) {
    head.piece_bytes = options_.piece_bytes;
    head.num_pieces =
        static_cast<uint32_t>((payload_bytes + head.piece_bytes - 1) / head.piece_bytes);
  }
  // Writing is nobody's wait, and a slow link takes its time: so long a piece, each.
  const Deadline limit = Limit(kNoDeadline) + options_.timeout * head.num_pieces;
  const std::string main = MainKey(key);
  absl::Status status;
  for (int i = 0; i < kMaxTries; ++i) {
    head.generation = NextGeneration();
    bool moved = false;
    status = TryPut(main, head, parts, limit, &moved);
    if (status.ok()) counts_.written_bytes += payload_bytes;
    if (status.ok() || !moved) break;
    nodes_.Forget();
  }
  if (!status.ok()) ++counts_.failed_puts;
  return status;
}

absl::Status RedisStore::Remove(const BlobKey& key) {
  if (options_.read_only) return absl::FailedPreconditionError("the prefix store is read only");
  const std::string main = MainKey(key);
  const Deadline limit = Limit(kNoDeadline);
  VC_ASSIGN_OR_RETURN(const RespReply head,
                      CallKey({"GETRANGE", main, "0", std::to_string(kRedisHeadBytes - 1)}, limit));
  VC_ASSIGN_OR_RETURN(const RespReply gone, CallKey({"UNLINK", main}, limit));
  if (gone.kind == RespReply::Kind::kError)
    return StatusOfReply(options_.address, gone, ReplyText::kShown);
  if (head.text.size() != kRedisHeadBytes) return absl::OkStatus();
  RedisHead of;
  of.ReadFrom(reinterpret_cast<const uint8_t*>(head.text.data()));
  if (of.num_pieces > kMaxRedisBlobBytes / kMinPieceBytes) return absl::OkStatus();
  for (uint32_t i = 0; i < of.num_pieces; ++i)
    VC_RETURN_IF_ERROR(CallKey({"UNLINK", RedisPieceKey(main, of.generation, i)}, limit).status());
  return absl::OkStatus();
}

}  // namespace vericache
