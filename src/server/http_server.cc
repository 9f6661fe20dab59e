#include "server/http_server.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "base/text.h"
#include "server/beast_connection.h"

namespace vericache::server {
namespace {

absl::Status ListenError(const HttpOptions& options, const error_code& error) {
  const std::string where = StrCat(options.host, " port ", options.port);
  if (error == net::error::address_in_use)
    return absl::AlreadyExistsError(
        StrCat(where, " is taken by another program: choose another --port, or 0 for a free one"));
  if (error == net::error::access_denied)
    return absl::PermissionDeniedError(
        StrCat("no permission to listen on ", where, ": choose a --port above 1023"));
  return absl::InvalidArgumentError(
      StrCat("cannot listen on ", where, ": ", error.message(), "; see --host and --port"));
}

// So that connections_max can be reached.
void RaiseFileLimit(int connections_max) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, connections_max + 512);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = wanted;
  setrlimit(RLIMIT_NOFILE, &limit);
}

class Server : public HttpServer {
 public:
  Server(const HttpOptions& options, HttpHandler* handler)
      : io_(std::make_shared<net::io_context>(std::max(1, options.io_threads))),
        pool_(std::max(1, options.handler_threads)),
        acceptor_(net::make_strand(*io_)) {
    shared_.options = options;
    shared_.handler = handler;
  }

  ~Server() override {
    if (!stopped_) Stop(0);
  }

  absl::Status Open() {
    const HttpOptions& options = shared_.options;
    VC_RETURN_IF_ERROR(LoadTls());
    error_code error;
    const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
    const net::ip::address address = net::ip::make_address(host, error);
    if (error || options.port < 0 || options.port > 65535)
      return absl::InvalidArgumentError(
          StrCat("'", options.host, "' is no IP address such as 127.0.0.1, 0.0.0.0 or ::1"));
    const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
    acceptor_.open(endpoint.protocol(), error);
    // An address in TIME_WAIT is free; one that somebody listens on is not.
    if (!error) acceptor_.set_option(net::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(net::socket_base::max_listen_connections, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    if (error) return ListenError(options, error);
    RaiseFileLimit(options.connections_max);
    net::co_spawn(acceptor_.get_executor(), Accept(), net::detached);
    for (int i = 0; i < std::max(1, options.io_threads); ++i)
      threads_.emplace_back([io = io_] { Work(io.get()); });
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  HttpCounts counts() const override {
    return {shared_.connections, shared_.accepted, shared_.refused, shared_.timed_out,
            shared_.clients_left};
  }

  void Stop(double seconds) override {
    stopped_ = true;
    shared_.stopping = true;
    net::post(acceptor_.get_executor(), [this] {
      error_code ignored;
      acceptor_.close(ignored);
      retry_.cancel();
    });
    ForEach(&ConnectionBase::CloseIfIdle);
    {
      std::unique_lock<std::mutex> lock(mutex_);
      all_gone_.wait_for(lock, Seconds(seconds), [this] { return open_.empty(); });
    }
    ForEach(&ConnectionBase::CloseNow);
    pool_.join();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  // What a reply's maker throws (no memory) ends that reply and nothing else.
  static void Work(net::io_context* io) {
    for (;;) {
      try {
        io->run();
        return;
      } catch (const std::exception&) {
      }
    }
  }

  void ForEach(void (ConnectionBase::*call)()) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (ConnectionBase* connection : open_) (connection->*call)();
  }

  absl::Status LoadTls() {
    const HttpOptions& options = shared_.options;
    if (options.tls_cert.empty() && options.tls_key.empty()) return absl::OkStatus();
    if (options.tls_cert.empty() || options.tls_key.empty())
      return absl::InvalidArgumentError("TLS needs both --tls-cert and --tls-key");
    tls_.emplace(ssl::context::tls_server);
    tls_->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 |
                      ssl::context::no_tlsv1_1);
    error_code error;
    tls_->use_certificate_chain_file(options.tls_cert, error);
    if (error)
      return absl::InvalidArgumentError(
          StrCat("--tls-cert ", options.tls_cert, ": ", error.message()));
    tls_->use_private_key_file(options.tls_key, ssl::context::pem, error);
    if (error)
      return absl::InvalidArgumentError(
          StrCat("--tls-key ", options.tls_key, ": ", error.message()));
    return absl::OkStatus();
  }

  net::awaitable<void> Accept() {
    for (;;) {
      tcp::socket socket(net::make_strand(*io_));
      const auto [error] = co_await acceptor_.async_accept(socket, kToken);
      if (shared_.stopping) co_return;
      if (error) {  // no file handles left, or the client has gone already
        retry_.expires_after(kPollPause);
        co_await retry_.async_wait(kToken);
        continue;
      }
      ++shared_.accepted;
      if (shared_.connections >= shared_.options.connections_max) {
        RefuseNow(&socket);
      } else if (tls_.has_value()) {
        Serve(ssl::stream<tcp::socket>(std::move(socket), *tls_));
      } else {
        Serve(std::move(socket));
      }
    }
  }

  // Without a coroutine and without waiting: there are too many connections.
  void RefuseNow(tcp::socket* socket) {
    ++shared_.refused;
    const HttpResponse response = shared_.handler->ErrorResponse(503, "too many connections");
    const std::string text =
        StrCat("HTTP/1.1 503 Service Unavailable\r\nContent-Type: ", response.content_type,
               "\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: ", response.body.size(),
               "\r\n\r\n", response.body);
    if (!tls_.has_value())
      send(socket->native_handle(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    error_code ignored;
    socket->shutdown(tcp::socket::shutdown_send, ignored);
  }

  template <typename Stream>
  void Serve(Stream stream) {
    const auto executor = stream.get_executor();
    const auto connection =
        std::make_shared<Connection<Stream>>(std::move(stream), io_, &pool_, &shared_);
    ++shared_.connections;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      open_.insert(connection.get());
    }
    net::co_spawn(executor, connection->Run(), [this, connection](std::exception_ptr) {
      --shared_.connections;
      const std::lock_guard<std::mutex> lock(mutex_);
      open_.erase(connection.get());
      if (open_.empty()) all_gone_.notify_all();
    });
  }

  const std::shared_ptr<net::io_context> io_;
  net::thread_pool pool_;
  tcp::acceptor acceptor_;
  net::steady_timer retry_{acceptor_.get_executor()};
  std::optional<ssl::context> tls_;
  std::vector<std::thread> threads_;
  Shared shared_;
  int port_ = 0;
  bool stopped_ = false;
  std::mutex mutex_;
  std::condition_variable all_gone_;
  std::set<ConnectionBase*> open_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpOptions& options,
                                                               HttpHandler* handler) {
  auto server = std::make_unique<Server>(options, handler);
  VC_RETURN_IF_ERROR(server->Open());
  return absl::StatusOr<std::unique_ptr<HttpServer>>(std::move(server));
}

}  // namespace vericache::server
