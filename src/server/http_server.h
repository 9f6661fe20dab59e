// HTTP/1.1 over TCP or TLS: connections, limits and deadlines. The one file that knows Beast.
//
// A few threads hold any number of connections; each is a coroutine on a strand of its own. While a
// handler works on a request its connection is watched, and a client that closes it, or only its
// half of it, has left.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/http.h"

namespace vericache::server {

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0: a free one
  int io_threads = 2;
  int handler_threads = 4;
  int connections_max = 1024;  // beyond: 503
  uint32_t header_bytes_max = 32 << 10;
  uint64_t body_bytes_max = uint64_t{32} << 20;
  // Of the bodies that are held at once, those of waiting handlers included: beyond it 503.
  uint64_t all_bodies_bytes_max = uint64_t{512} << 20;
  // Whole header, from its first byte. A body has `body_grace_s`, and more only while it brings
  // `body_rate_min` bytes a second on the whole.
  double header_s_max = 10;
  double body_grace_s = 10;
  double body_rate_min = 16 << 10;
  double idle_s_max = 75;                         // between two requests
  double write_s_max = 60;                        // for a reader that takes nothing at all
  uint64_t unsent_bytes_max = uint64_t{1} << 20;  // of a reply in pieces
  std::string cors_origin = "*";                  // "": no CORS headers
  std::string tls_cert, tls_key;                  // PEM files; "": no TLS
};

struct HttpCounts {
  int64_t connections = 0;  // now
  int64_t accepted = 0, refused = 0;
  int64_t timed_out = 0;     // header, body or write took too long
  int64_t clients_left = 0;  // before their reply was whole
};

class HttpServer {
 public:
  // Binds and listens; connections are answered from here on. `handler` must outlive the server.
  // ERRORS: one line that says which address and why: kAlreadyExists (taken), kPermissionDenied,
  //         kInvalidArgument (no such address, TLS files).
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const HttpOptions& options,
                                                            HttpHandler* handler);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  virtual HttpCounts counts() const = 0;
  // Takes no more connections; waits until replies under way are written, `seconds` at most; closes
  // all. Once.
  virtual void Stop(double seconds) = 0;
};

}  // namespace vericache::server
