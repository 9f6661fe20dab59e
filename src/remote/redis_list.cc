// Walking over what Redis holds, and marking it as used.
#include <algorithm>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"
#include "remote/redis_store.h"

namespace vericache {
namespace {

using From = RedisNodes::From;
using Lease = RedisNodes::Lease;

constexpr size_t kTouchedAtOnce = 64;
// A walk over many keys takes longer than a read.
constexpr auto kListPatience = std::chrono::seconds(120);

// So that SCAN takes it for itself.
std::string Quoted(std::string_view text) {
  std::string quoted;
  for (char c : text) {
    if (c == '*' || c == '?' || c == '[' || c == ']' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted;
}

}  // namespace

// The server evicts by its own record of use: the last one touched stays longest.
void RedisStore::Touch(absl::Span<const BlobKey> keys) {
  if (options_.read_only) return;
  const Deadline limit = Limit(kNoDeadline);
  for (size_t end = keys.size(); end > 0; end -= std::min(end, kTouchedAtOnce)) {
    const size_t begin = end - std::min(end, kTouchedAtOnce);
    for (size_t i = end; i-- > begin;)
      if (!CallKey({"TOUCH", MainKey(keys[i])}, limit).ok()) return;
  }
}

// Sizes and times of last use of the keys' values.
absl::Status RedisStore::Describe(RedisConnection* connection, const std::vector<BlobKey>& keys,
                                  std::vector<BlobInfo>* found) {
  std::string commands;
  for (const BlobKey& key : keys)
    commands += RespCommand({"OBJECT", "IDLETIME", MainKey(key)}) +
                RespCommand({"GETRANGE", MainKey(key), "0", std::to_string(kRedisHeadBytes - 1)});
  VC_RETURN_IF_ERROR(connection->Send({commands}));
  for (const BlobKey& key : keys) {
    VC_ASSIGN_OR_RETURN(const RespReply idle, connection->replies().Read());
    VC_ASSIGN_OR_RETURN(const RespReply head, connection->replies().Read());
    BlobInfo info;
    info.key = key;
    if (idle.kind == RespReply::Kind::kInteger) info.age_s = std::max<int64_t>(0, idle.integer);
    if (head.text.empty()) continue;  // gone in the meantime
    if (head.text.size() == kRedisHeadBytes) {
      RedisHead of;
      of.ReadFrom(reinterpret_cast<const uint8_t*>(head.text.data()));
      info.num_bytes = std::min(of.payload_bytes(), kMaxRedisBlobBytes);
    }
    found->push_back(info);
  }
  return absl::OkStatus();
}

absl::Status RedisStore::ListNode(const NetAddress& node, const std::string& pattern,
                                  Deadline deadline, std::vector<BlobInfo>* found) {
  VC_ASSIGN_OR_RETURN(Lease lease, nodes_.Connect(node, deadline, From::kFresh));
  std::string cursor = "0";
  std::set<BlobKey> seen;  // SCAN may say a key twice
  do {
    VC_ASSIGN_OR_RETURN(const RespReply page,
                        lease->Call({"SCAN", cursor, "MATCH", pattern, "COUNT", "500"}));
    if (page.elements.size() != 2) return StatusOfReply(node, page, ReplyText::kShown);
    cursor = page.elements[0].text;
    std::vector<BlobKey> keys;
    for (const RespReply& name : page.elements[1].elements) {
      const std::string_view text = name.text;
      BlobKey key;
      const size_t open = options_.prefix.size();
      if (text.size() == open + 66 && KeyOfHex(text.substr(open + 1, 64), &key) &&
          MainKey(key) == text && seen.insert(key).second)
        keys.push_back(key);
    }
    const absl::Status status = Describe(lease.get(), keys, found);
    if (!status.ok()) lease->Break();
    VC_RETURN_IF_ERROR(status);
    if (std::chrono::steady_clock::now() > deadline)
      return absl::DeadlineExceededError(StrCat(name_, ": listing takes too long"));
  } while (cursor != "0");
  return absl::OkStatus();
}

absl::Status RedisStore::List(std::string_view hex_prefix,
                              const std::function<bool(const BlobInfo&)>& visit) {
  const Deadline limit = std::chrono::steady_clock::now() + kListPatience;
  VC_ASSIGN_OR_RETURN(const std::vector<NetAddress> masters, nodes_.Masters(limit));
  const std::string pattern = StrCat(Quoted(options_.prefix), "{", hex_prefix, "*}");
  for (const NetAddress& node : masters) {
    std::vector<BlobInfo> found;
    VC_RETURN_IF_ERROR(ListNode(node, pattern, limit, &found));
    for (const BlobInfo& info : found)
      if (!visit(info)) return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace vericache
