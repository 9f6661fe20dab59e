// A verifier whose messages go through bytes and whose replies go wrong as a test says.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "vericache/remote.h"
#include "vericache/remote_wire.h"

namespace vericache {

class FaultyVerifier : public RemoteVerifier {
 public:
  explicit FaultyVerifier(RemoteVerifier* inner) : inner_(inner) {}

  // Of the n-th call of Verify() from 0 on: nothing is asked.
  std::function<bool(int call)> is_dead;
  // Asked and answered, but the answer does not arrive.
  std::function<bool(int call)> loses_reply;
  // Changes the bytes of an answer, or the answer.
  std::function<void(int call, std::string* bytes)> garbles;
  std::function<void(int call, RemoteVerified* reply)> lies;

  absl::StatusOr<std::string> Open(const RemoteOpen& request) override {
    if (is_dead && is_dead(calls_)) return absl::UnavailableError("dead");
    const absl::StatusOr<RemoteOpen> read = DecodeRemoteOpen(EncodeRemote(request));
    return read.ok() ? inner_->Open(*read) : read.status();
  }
  absl::StatusOr<RemoteVerified> Verify(const RemoteVerify& request) override {
    const int call = calls_++;
    if (is_dead && is_dead(call)) return absl::UnavailableError("dead");
    const absl::StatusOr<RemoteVerify> read = DecodeRemoteVerify(EncodeRemote(request));
    if (!read.ok()) return read.status();
    absl::StatusOr<RemoteVerified> reply = inner_->Verify(*read);
    if (!reply.ok()) return reply;
    if (loses_reply && loses_reply(call)) return absl::UnavailableError("the reply was lost");
    if (lies) lies(call, &*reply);
    std::string bytes = EncodeRemote(*reply);
    if (garbles) garbles(call, &bytes);
    return DecodeRemoteVerified(bytes);
  }
  void Close(const std::string& session) override { inner_->Close(session); }
  std::string name() const override { return "faulty"; }
  int calls() const { return calls_; }

 private:
  RemoteVerifier* inner_;
  std::atomic<int> calls_{0};
};

}  // namespace vericache
