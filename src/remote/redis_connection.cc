#include "remote/redis_connection.h"

#include <utility>

#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

constexpr size_t kShownErrorBytes = 160;

bool AnyOf(const RespReply& reply, std::initializer_list<const char*> codes) {
  for (const char* code : codes)
    if (reply.is_error(code)) return true;
  return false;
}

}  // namespace

absl::Status StatusOfReply(const NetAddress& address, const RespReply& reply, ReplyText text) {
  if (reply.kind != RespReply::Kind::kError)
    return absl::DataLossError(StrCat(address.Text(), ": an answer of another kind"));
  std::string shown = text == ReplyText::kShown
                          ? reply.text.substr(0, kShownErrorBytes)
                          : reply.text.substr(0, std::min(reply.text.find(' '), size_t{20}));
  for (char& c : shown)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  const std::string message = StrCat("Redis at ", address.Text(), " says: ", shown);
  if (AnyOf(reply, {"OOM"})) return absl::ResourceExhaustedError(message);
  if (AnyOf(reply, {"NOAUTH", "WRONGPASS", "NOPERM"})) return absl::PermissionDeniedError(message);
  if (AnyOf(reply, {"WRONGTYPE"})) return absl::NotFoundError(message);  // no blob of ours
  if (AnyOf(reply, {"READONLY"})) return absl::FailedPreconditionError(message);
  return absl::UnavailableError(message);
}

RedisConnection::RedisConnection(NetAddress address, std::unique_ptr<NetStream> stream)
    : address_(std::move(address)),
      stream_(std::move(stream)),
      reader_([this](uint8_t* to, size_t size) { return stream_->ReadSome(to, size, deadline_); }) {
}

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Open(const NetAddress& address,
                                                                       const RedisLogin& login,
                                                                       Deadline deadline) {
  VC_ASSIGN_OR_RETURN(std::unique_ptr<NetStream> stream,
                      NetStream::Connect(address, login.tls, deadline));
  std::unique_ptr<RedisConnection> connection(new RedisConnection(address, std::move(stream)));
  connection->SetDeadline(deadline);
  VC_RETURN_IF_ERROR(connection->Login(login));
  return connection;
}

absl::Status RedisConnection::Login(const RedisLogin& login) {
  const auto check = [&](const absl::StatusOr<RespReply>& reply) {
    if (!reply.ok()) return reply.status();
    return reply->kind == RespReply::Kind::kError
               ? StatusOfReply(address_, *reply, ReplyText::kCodeOnly)
               : absl::OkStatus();
  };
  if (!login.password.empty()) {
    VC_RETURN_IF_ERROR(check(login.user.empty() ? Call({"AUTH", login.password})
                                                : Call({"AUTH", login.user, login.password})));
  }
  if (login.protocol == 3) VC_RETURN_IF_ERROR(check(Call({"HELLO", "3"})));
  if (login.db != 0) VC_RETURN_IF_ERROR(check(Call({"SELECT", std::to_string(login.db)})));
  return absl::OkStatus();
}

absl::Status RedisConnection::Send(const std::vector<std::string_view>& parts) {
  absl::Status status = stream_->WriteAll(parts, deadline_);
  if (!status.ok()) Break();
  return status;
}

absl::StatusOr<RespReply> RedisConnection::Call(const std::vector<std::string_view>& args) {
  VC_RETURN_IF_ERROR(Send({RespCommand(args)}));
  absl::StatusOr<RespReply> reply = reader_.Read();
  if (!reply.ok()) Break();
  return reply;
}

}  // namespace vericache
