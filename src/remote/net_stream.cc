#include "remote/net_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <exception>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using TcpStream = asio::ip::tcp::socket;
using UnixStream = asio::local::stream_protocol::socket;
using TlsStream = asio::ssl::stream<asio::ip::tcp::socket>;

// Of connecting and of any one call, where the caller sets no limit.
constexpr auto kPatience = std::chrono::seconds(30);

Deadline Limited(Deadline deadline) {
  return std::min(deadline, std::chrono::steady_clock::now() + kPatience);
}

absl::Status Failed(const NetAddress& address, std::string_view what, const ErrorCode& error) {
  return absl::UnavailableError(StrCat(address.Text(), ": ", what, ": ", error.message()));
}

template <typename Stream>
class AsioStream : public NetStream {
 public:
  AsioStream(NetAddress address, std::unique_ptr<asio::io_context> io,
             std::unique_ptr<asio::ssl::context> tls, std::unique_ptr<Stream> stream)
      : address_(std::move(address)),
        io_(std::move(io)),
        tls_(std::move(tls)),
        stream_(std::move(stream)) {}

  absl::StatusOr<size_t> ReadSome(uint8_t* to, size_t size, Deadline deadline) override {
    std::optional<ErrorCode> done;
    size_t num_read = 0;
    if (closed_) return Closed();
    stream_->async_read_some(asio::buffer(to, size), [&](const ErrorCode& error, size_t n) {
      done = error;
      num_read = n;
    });
    VC_RETURN_IF_ERROR(Finish(&done, "reading", deadline));
    return num_read;
  }

  absl::Status WriteAll(const std::vector<std::string_view>& parts, Deadline deadline) override {
    std::vector<asio::const_buffer> buffers;
    for (std::string_view part : parts)
      if (!part.empty()) buffers.emplace_back(part.data(), part.size());
    if (closed_) return Closed();
    std::optional<ErrorCode> done;
    asio::async_write(*stream_, buffers, [&](const ErrorCode& error, size_t) { done = error; });
    return Finish(&done, "writing", deadline);
  }

  // Runs what was begun; at the deadline it is given up and the stream closed.
  absl::Status Finish(std::optional<ErrorCode>* done, std::string_view what, Deadline deadline) {
    io_->restart();
    const Deadline limit = Limited(deadline);
    while (!done->has_value() && io_->run_one_until(limit) > 0) {
    }
    const bool late = !done->has_value();
    if (late || **done) {
      closed_ = true;
      ErrorCode ignored;
      stream_->lowest_layer().close(ignored);
      io_->restart();
      io_->run();  // what was begun ends here, so that no handler outlives its variables
    }
    if (late)
      return absl::DeadlineExceededError(StrCat(address_.Text(), ": ", what, " took too long"));
    if (**done == asio::error::eof)
      return absl::UnavailableError(StrCat(address_.Text(), " has closed the connection"));
    return **done ? Failed(address_, what, **done) : absl::OkStatus();
  }

 private:
  absl::Status Closed() const {
    return absl::UnavailableError(StrCat(address_.Text(), ": the connection is closed"));
  }

  const NetAddress address_;
  std::unique_ptr<asio::io_context> io_;
  std::unique_ptr<asio::ssl::context> tls_;
  std::unique_ptr<Stream> stream_;
  bool closed_ = false;
};

absl::StatusOr<std::unique_ptr<asio::ssl::context>> MakeTlsContext(const TlsOptions& tls) {
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_client);
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                       asio::ssl::context::no_sslv3);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  ErrorCode error;
  if (tls.ca_file.empty()) {
    context->set_default_verify_paths(error);
  } else {
    context->load_verify_file(tls.ca_file, error);
  }
  if (error)
    return absl::FailedPreconditionError(
        StrCat("cannot use the CA file ", tls.ca_file, ": ", error.message()));
  context->set_verify_mode(tls.verify ? asio::ssl::verify_peer : asio::ssl::verify_none);
  return context;
}

absl::Status Handshake(const NetAddress& address, const TlsOptions& tls, TlsStream* stream,
                       AsioStream<TlsStream>* owner, Deadline deadline) {
  const std::string name = tls.server_name.empty() ? address.host : tls.server_name;
  SSL_set_tlsext_host_name(stream->native_handle(), name.c_str());
  if (tls.verify) stream->set_verify_callback(asio::ssl::host_name_verification(name));
  std::optional<ErrorCode> done;
  stream->async_handshake(asio::ssl::stream_base::client,
                          [&](const ErrorCode& error) { done = error; });
  const absl::Status status = owner->Finish(&done, "the TLS handshake", deadline);
  const long verdict = SSL_get_verify_result(stream->native_handle());
  if (!status.ok() && tls.verify && verdict != X509_V_OK)
    return absl::PermissionDeniedError(StrCat(
        address.Text(), ": its certificate is not accepted for ", name, " (",
        X509_verify_cert_error_string(verdict), "): set ca_file=, or correct the host name"));
  return status;
}

// Connects `stream` and gives it its owner.
template <typename Stream, typename Begin>
absl::StatusOr<std::unique_ptr<AsioStream<Stream>>> Own(const NetAddress& address,
                                                        std::unique_ptr<asio::io_context> io,
                                                        std::unique_ptr<asio::ssl::context> tls,
                                                        std::unique_ptr<Stream> stream,
                                                        Deadline deadline, Begin begin) {
  std::optional<ErrorCode> done;
  auto owner = std::make_unique<AsioStream<Stream>>(address, std::move(io), std::move(tls),
                                                    std::move(stream));
  begin(&done);
  VC_RETURN_IF_ERROR(owner->Finish(&done, "connecting", deadline));
  return owner;
}

absl::StatusOr<std::unique_ptr<NetStream>> ConnectUnix(const NetAddress& address,
                                                       Deadline deadline) {
  auto io = std::make_unique<asio::io_context>(1);
  auto stream = std::make_unique<UnixStream>(*io);
  UnixStream* raw = stream.get();
  if (address.host.size() >= 108)
    return absl::InvalidArgumentError(StrCat(address.host, ": too long for a socket's name"));
  VC_ASSIGN_OR_RETURN(auto owner, Own(address, std::move(io), nullptr, std::move(stream), deadline,
                                      [&](std::optional<ErrorCode>* done) {
                                        raw->async_connect(
                                            asio::local::stream_protocol::endpoint(address.host),
                                            [done](const ErrorCode& error) { *done = error; });
                                      }));
  return std::unique_ptr<NetStream>(std::move(owner));
}

absl::StatusOr<std::unique_ptr<NetStream>> ConnectTcp(const NetAddress& address,
                                                      const TlsOptions& tls, Deadline deadline) {
  auto io = std::make_unique<asio::io_context>(1);
  // A numeric address asks nobody. For a name getaddrinfo() has time limits of its own.
  asio::ip::tcp::resolver resolver(*io);
  ErrorCode error;
  const auto found = resolver.resolve(address.host, std::to_string(address.port), error);
  if (error) return Failed(address, "looking up the name", error);
  const auto connect = [&found](TcpStream* socket) {
    return [&found, socket](std::optional<ErrorCode>* done) {
      asio::async_connect(
          *socket, found,
          [done](const ErrorCode& e, const asio::ip::tcp::endpoint&) { *done = e; });
    };
  };
  const auto set_no_delay = [](TcpStream* socket) {
    ErrorCode ignored;
    socket->set_option(asio::ip::tcp::no_delay(true), ignored);
  };
  if (!tls.enabled) {
    auto socket = std::make_unique<TcpStream>(*io);
    TcpStream* raw = socket.get();
    VC_ASSIGN_OR_RETURN(auto owner, Own(address, std::move(io), nullptr, std::move(socket),
                                        deadline, connect(raw)));
    set_no_delay(raw);
    return std::unique_ptr<NetStream>(std::move(owner));
  }
  VC_ASSIGN_OR_RETURN(std::unique_ptr<asio::ssl::context> context, MakeTlsContext(tls));
  auto stream = std::make_unique<TlsStream>(*io, *context);
  TlsStream* raw = stream.get();
  VC_ASSIGN_OR_RETURN(auto owner, Own(address, std::move(io), std::move(context), std::move(stream),
                                      deadline, connect(&raw->next_layer())));
  set_no_delay(&raw->next_layer());
  VC_RETURN_IF_ERROR(Handshake(address, tls, raw, owner.get(), deadline));
  return std::unique_ptr<NetStream>(std::move(owner));
}

}  // namespace

std::string NetAddress::Text() const {
  if (port == 0) return host;
  return host.find(':') == host.npos ? StrCat(host, ":", port) : StrCat("[", host, "]:", port);
}

absl::StatusOr<std::unique_ptr<NetStream>> NetStream::Connect(const NetAddress& address,
                                                              const TlsOptions& tls,
                                                              Deadline deadline) {
  // No exception crosses a folder; Asio's constructors may throw where descriptors have run out.
  try {
    return address.port == 0 ? ConnectUnix(address, deadline) : ConnectTcp(address, tls, deadline);
  } catch (const std::exception& e) {
    return absl::UnavailableError(StrCat(address.Text(), ": ", e.what()));
  }
}

}  // namespace vericache
