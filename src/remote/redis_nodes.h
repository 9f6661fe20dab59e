// The servers behind a redis:// URL: one, or the masters of a cluster; and connections to them.
//
// A cluster is recognised by asking (CLUSTER SLOTS). The map of its slots is asked for anew when a
// server says MOVED or cannot be reached. THREADS: safe; a lease belongs to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "remote/redis_connection.h"

namespace vericache {

inline constexpr int kNumRedisSlots = 16384;

// CRC16 (XMODEM) of the key, or of what stands between its first "{" and the next "}", if that is
// not empty, mod 16384. SOURCE: Redis cluster specification.
int RedisSlot(std::string_view key);

class RedisNodes {
 public:
  RedisNodes(NetAddress seed, RedisLogin login)
      : seed_(std::move(seed)), login_(std::move(login)) {}

  // A connection for one thread; it goes back to the pool unless it is broken.
  class Lease {
   public:
    Lease() = default;
    Lease(RedisNodes* nodes, std::unique_ptr<RedisConnection> connection, bool pooled)
        : nodes_(nodes), connection_(std::move(connection)), pooled_(pooled) {}
    Lease(Lease&&) = default;
    Lease& operator=(Lease&& other) noexcept;
    ~Lease() { Return(); }
    RedisConnection* operator->() const { return connection_.get(); }
    RedisConnection* get() const { return connection_.get(); }
    // It was used before: that the server closed it in the meantime is no news about the server.
    bool pooled() const { return pooled_; }

   private:
    void Return();
    RedisNodes* nodes_ = nullptr;
    std::unique_ptr<RedisConnection> connection_;
    bool pooled_ = false;
  };
  enum class From { kPool, kFresh };

  // Who has the slot now, as far as is known. ERRORS: those of asking.
  absl::StatusOr<NetAddress> NodeOf(int slot, Deadline deadline);
  absl::StatusOr<Lease> Connect(const NetAddress& address, Deadline deadline, From from);
  absl::StatusOr<std::vector<NetAddress>> Masters(Deadline deadline);

  // "MOVED 3999 10.0.0.1:6381" from `who`: the slot is there now. ASK likewise, but for one command
  // only, so nothing is learnt. ERRORS: kDataLoss: neither.
  absl::StatusOr<NetAddress> Redirected(const RespReply& error, const NetAddress& who);
  // The map of slots is asked for before it is used again.
  void Forget();
  const NetAddress& seed() const { return seed_; }

 private:
  absl::Status Learn(Deadline deadline);
  absl::Status LearnFrom(const NetAddress& address, Deadline deadline);
  void GiveBack(std::unique_ptr<RedisConnection> connection);

  const NetAddress seed_;
  const RedisLogin login_;
  std::mutex learn_mutex_;  // one thread asks; taken before mutex_
  std::mutex mutex_;        // guards what follows; not held while anything is sent
  bool known_ = false, cluster_ = false;
  std::vector<NetAddress> masters_;
  std::vector<int16_t> master_of_slot_;  // index into masters_, or -1
  std::map<NetAddress, std::vector<std::unique_ptr<RedisConnection>>> idle_;
};

}  // namespace vericache
