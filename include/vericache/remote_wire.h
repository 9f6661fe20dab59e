// The bytes of remote drafting's messages (docs/remote_drafting.md).
//
// A message is: "VCRD", u32 version, u8 kind, its fields, XXH3-64 of all before. Integers are
// little-endian; texts and lists have a u32 count in front. What is read is bounded by the bytes
// at hand.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "vericache/remote.h"

namespace vericache {

std::string EncodeRemote(const RemoteOpen& message);
std::string EncodeRemote(const RemoteVerify& message);
std::string EncodeRemote(const RemoteVerified& message);
// The name of a session: the answer to RemoteOpen, and what closes it.
std::string EncodeSession(std::string_view session);

// ERRORS: kFailedPrecondition: another version; kDataLoss: damaged or of another kind.
absl::StatusOr<RemoteOpen> DecodeRemoteOpen(std::string_view bytes);
absl::StatusOr<RemoteVerify> DecodeRemoteVerify(std::string_view bytes);
absl::StatusOr<RemoteVerified> DecodeRemoteVerified(std::string_view bytes);
absl::StatusOr<std::string> DecodeSession(std::string_view bytes);

}  // namespace vericache
