// A byte stream to a server: TCP, TLS or a Unix socket, with a deadline on every call.
//
// The one file that compiles Asio and OpenSSL for the stores. After an error the stream is closed
// for good: half an answer may still be on its way, so nobody may go on with it.
// THREADS: one call at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "storage/blob_store.h"

namespace vericache {

struct NetAddress {
  std::string host;  // or the path of a Unix socket, if port == 0
  int port = 0;
  bool operator==(const NetAddress&) const = default;
  bool operator<(const NetAddress& other) const {
    return host != other.host ? host < other.host : port < other.port;
  }
  std::string Text() const;
};

struct TlsOptions {
  bool enabled = false;
  bool verify = true;       // certificate and host name
  std::string ca_file;      // "": the system's
  std::string server_name;  // to expect in the certificate; "": the host
};

class NetStream {
 public:
  // ERRORS: kUnavailable, kDeadlineExceeded; kPermissionDenied: the certificate.
  static absl::StatusOr<std::unique_ptr<NetStream>> Connect(const NetAddress& address,
                                                            const TlsOptions& tls,
                                                            Deadline deadline);
  virtual ~NetStream() = default;

  // At least one byte. ERRORS: kUnavailable: an error, or the other side has closed.
  virtual absl::StatusOr<size_t> ReadSome(uint8_t* to, size_t size, Deadline deadline) = 0;
  virtual absl::Status WriteAll(const std::vector<std::string_view>& parts, Deadline deadline) = 0;
};

}  // namespace vericache
