// One connection to one Redis server, logged in, with its replies in step.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "remote/net_stream.h"
#include "remote/resp.h"

namespace vericache {

struct RedisLogin {
  TlsOptions tls;
  std::string user, password;
  int db = 0;
  int protocol = 2;  // 3: HELLO 3 first
};

class RedisConnection {
 public:
  // ERRORS: kUnavailable, kDeadlineExceeded, kPermissionDenied (certificate, user, password).
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Open(const NetAddress& address,
                                                               const RedisLogin& login,
                                                               Deadline deadline);

  // Until the next call of it, for everything that is sent and read.
  void SetDeadline(Deadline deadline) { deadline_ = deadline; }
  absl::Status Send(const std::vector<std::string_view>& parts);
  // An error reply is a reply.
  absl::StatusOr<RespReply> Call(const std::vector<std::string_view>& args);
  // For pipelines: what was sent is answered in this order. After an error: Break().
  RespReader& replies() { return reader_; }

  // Nobody may use it any more: an error, or replies that nobody read.
  void Break() { broken_ = true; }
  bool broken() const { return broken_; }
  const NetAddress& address() const { return address_; }

 private:
  RedisConnection(NetAddress address, std::unique_ptr<NetStream> stream);
  absl::Status Login(const RedisLogin& login);

  const NetAddress address_;
  std::unique_ptr<NetStream> stream_;
  Deadline deadline_ = kNoDeadline;
  RespReader reader_;
  bool broken_ = false;
};

// What an error reply means. The first word only, where it answers a command that holds a password:
// servers quote arguments in their errors.
enum class ReplyText { kShown, kCodeOnly };
absl::Status StatusOfReply(const NetAddress& address, const RespReply& reply, ReplyText text);

}  // namespace vericache
