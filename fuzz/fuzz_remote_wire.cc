// Messages of remote drafting: whatever comes in is read or refused. Version and sum are made
// right, too, so that the fields behind them are reached.
#include <cstdint>
#include <cstring>
#include <string>

#include "base/hash.h"
#include "vericache/remote_wire.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vericache;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  for (int sealed = 0; sealed < 2; ++sealed) {
    if (const auto m = DecodeRemoteOpen(bytes); m.ok()) (void)EncodeRemote(*m);
    if (const auto m = DecodeRemoteVerify(bytes); m.ok()) (void)EncodeRemote(*m);
    if (const auto m = DecodeRemoteVerified(bytes); m.ok()) (void)EncodeRemote(*m);
    if (const auto m = DecodeSession(bytes); m.ok()) (void)EncodeSession(*m);
    if (bytes.size() < sizeof(uint64_t)) return 0;
    if (bytes.size() >= 16) std::memcpy(bytes.data() + 4, &kRemoteProtocol, sizeof(uint32_t));
    const uint64_t sum = Xxh3_64(bytes.data(), bytes.size() - sizeof(uint64_t));
    std::memcpy(bytes.data() + bytes.size() - sizeof(sum), &sum, sizeof(sum));
  }
  return 0;
}
