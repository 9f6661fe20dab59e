#include "remote/redis_nodes.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

constexpr size_t kMaxIdlePerNode = 4;
constexpr size_t kMaxMasters = 1000;

// "host:port", "[v6]:port" or ":port", which means the host of `who`.
bool ParseAddress(std::string_view text, const NetAddress& who, NetAddress* address) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos) return false;
  std::string_view host = text.substr(0, colon);
  if (host.starts_with("[") && host.ends_with("]")) host = host.substr(1, host.size() - 2);
  address->host = host.empty() ? who.host : std::string(host);
  return ParseInt(text.substr(colon + 1), &address->port) && address->port > 0 &&
         address->port < 65536;
}

}  // namespace

int RedisSlot(std::string_view key) {
  const size_t open = key.find('{');
  const size_t close = open == key.npos ? key.npos : key.find('}', open + 1);
  if (close != key.npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
  uint16_t crc = 0;
  for (unsigned char c : key) {
    crc = static_cast<uint16_t>(crc ^ (c << 8));
    for (int bit = 0; bit < 8; ++bit)
      crc = static_cast<uint16_t>((crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1);
  }
  return crc % kNumRedisSlots;
}

RedisNodes::Lease& RedisNodes::Lease::operator=(Lease&& other) noexcept {
  Return();
  nodes_ = other.nodes_;
  connection_ = std::move(other.connection_);
  pooled_ = other.pooled_;
  return *this;
}

void RedisNodes::Lease::Return() {
  if (connection_ != nullptr && !connection_->broken()) nodes_->GiveBack(std::move(connection_));
  connection_.reset();
}

void RedisNodes::GiveBack(std::unique_ptr<RedisConnection> connection) {
  const std::lock_guard lock(mutex_);
  auto& idle = idle_[connection->address()];
  if (idle.size() < kMaxIdlePerNode) idle.push_back(std::move(connection));
}

absl::StatusOr<RedisNodes::Lease> RedisNodes::Connect(const NetAddress& address, Deadline deadline,
                                                      From from) {
  {
    const std::lock_guard lock(mutex_);
    auto& idle = idle_[address];
    if (from == From::kFresh) idle.clear();
    if (!idle.empty()) {
      Lease lease(this, std::move(idle.back()), true);
      idle.pop_back();
      lease->SetDeadline(deadline);
      return lease;
    }
  }
  absl::StatusOr<std::unique_ptr<RedisConnection>> connection =
      RedisConnection::Open(address, login_, deadline);
  // It may have failed over to another one.
  if (!connection.ok()) Forget();
  VC_RETURN_IF_ERROR(connection.status());
  return Lease(this, *std::move(connection), false);
}

void RedisNodes::Forget() {
  const std::lock_guard lock(mutex_);
  known_ = false;
}

absl::Status RedisNodes::LearnFrom(const NetAddress& address, Deadline deadline) {
  VC_ASSIGN_OR_RETURN(Lease lease, Connect(address, deadline, From::kFresh));
  VC_ASSIGN_OR_RETURN(const RespReply reply, lease->Call({"CLUSTER", "SLOTS"}));
  std::vector<NetAddress> masters;
  std::vector<int16_t> master_of_slot(kNumRedisSlots, -1);
  const bool cluster = reply.kind == RespReply::Kind::kArray;
  for (const RespReply& range : reply.elements) {
    // [first slot, last slot, [host, port, ...], replicas ...]
    if (range.elements.size() < 3 || range.elements[2].elements.size() < 2) continue;
    const int64_t first = range.elements[0].integer, last = range.elements[1].integer;
    const RespReply& where = range.elements[2];
    const int64_t port = where.elements[1].integer;
    if (first < 0 || last < first || last >= kNumRedisSlots || port < 1 || port > 65535) continue;
    const std::string& host = where.elements[0].text;
    const NetAddress master = {host.empty() ? address.host : host, static_cast<int>(port)};
    size_t index = std::find(masters.begin(), masters.end(), master) - masters.begin();
    if (index == masters.size() && index >= kMaxMasters) continue;
    if (index == masters.size()) masters.push_back(master);
    std::fill(master_of_slot.begin() + first, master_of_slot.begin() + last + 1,
              static_cast<int16_t>(index));
  }
  const std::lock_guard lock(mutex_);
  known_ = true;
  cluster_ = cluster;
  masters_ = std::move(masters);
  master_of_slot_ = std::move(master_of_slot);
  return absl::OkStatus();
}

absl::Status RedisNodes::Learn(Deadline deadline) {
  const std::lock_guard learn_lock(learn_mutex_);
  std::vector<NetAddress> ask = {seed_};
  {
    const std::lock_guard lock(mutex_);
    if (known_) return absl::OkStatus();
    ask.insert(ask.end(), masters_.begin(), masters_.end());
  }
  absl::Status status;
  for (const NetAddress& address : ask) {
    status = LearnFrom(address, deadline);
    if (status.ok() || absl::IsDeadlineExceeded(status)) return status;
  }
  return status;
}

absl::StatusOr<NetAddress> RedisNodes::NodeOf(int slot, Deadline deadline) {
  VC_RETURN_IF_ERROR(Learn(deadline));
  const std::lock_guard lock(mutex_);
  if (!cluster_) return seed_;
  const int16_t index = master_of_slot_[slot];
  if (index >= 0) return masters_[index];
  known_ = false;
  return absl::UnavailableError(
      StrCat("the Redis cluster at ", seed_.Text(), " has nobody for slot ", slot));
}

absl::StatusOr<std::vector<NetAddress>> RedisNodes::Masters(Deadline deadline) {
  VC_RETURN_IF_ERROR(Learn(deadline));
  const std::lock_guard lock(mutex_);
  return cluster_ ? masters_ : std::vector<NetAddress>{seed_};
}

absl::StatusOr<NetAddress> RedisNodes::Redirected(const RespReply& error, const NetAddress& who) {
  const std::vector<std::string_view> words = Split(error.text, ' ');
  NetAddress to;
  int slot = -1;
  if (words.size() != 3 || !ParseInt(words[1], &slot) || slot < 0 || slot >= kNumRedisSlots ||
      !ParseAddress(words[2], who, &to))
    return absl::DataLossError(StrCat(who.Text(), ": a redirection that leads nowhere"));
  if (words[0] == "MOVED") Forget();
  return to;
}

}  // namespace vericache
