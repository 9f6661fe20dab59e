// A server on a port of this machine that does what a test says, however wrong; over TLS where it
// is given a certificate.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace vericache {

class FakeServer {
 public:
  // One connection, served on a thread of its own until the function returns.
  class Peer {
   public:
    // ssl: null without TLS.
    Peer(int fd, SSL* ssl, const std::atomic<bool>* stop) : fd_(fd), ssl_(ssl), stop_(stop) {}
    // At least one byte, or "" at the end of the connection or the server.
    std::string Receive() {
      char buffer[65536];
      while (!*stop_) {
        pollfd waiting = {fd_, POLLIN, 0};
        const bool has_more = ssl_ != nullptr && SSL_pending(ssl_) > 0;
        if (!has_more && poll(&waiting, 1, 50) <= 0) continue;
        const ssize_t n = ssl_ == nullptr ? recv(fd_, buffer, sizeof(buffer), 0)
                                          : SSL_read(ssl_, buffer, sizeof(buffer));
        return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
      }
      return "";
    }
    // Up to and with `mark`; "" if it never comes.
    std::string ReceiveUntil(std::string_view mark) {
      for (;;) {
        const size_t at = held_.find(mark);
        if (at != held_.npos) {
          std::string text = held_.substr(0, at + mark.size());
          held_.erase(0, text.size());
          return text;
        }
        const std::string more = Receive();
        if (more.empty()) return "";
        held_ += more;
      }
    }
    std::string ReceiveBytes(size_t size) {
      while (held_.size() < size) {
        const std::string more = Receive();
        if (more.empty()) break;
        held_ += more;
      }
      const std::string text = held_.substr(0, size);
      held_.erase(0, text.size());
      return text;
    }
    bool Send(std::string_view text) {
      while (!text.empty()) {
        const ssize_t n = ssl_ == nullptr
                              ? send(fd_, text.data(), text.size(), MSG_NOSIGNAL)
                              : SSL_write(ssl_, text.data(), static_cast<int>(text.size()));
        if (n <= 0) return false;
        text.remove_prefix(static_cast<size_t>(n));
      }
      return true;
    }
    // A byte at a time with pauses, until somebody has enough.
    void Drip(std::string_view text, std::chrono::milliseconds pause) {
      for (char c : text) {
        if (*stop_ || !Send({&c, 1})) return;
        std::this_thread::sleep_for(pause);
      }
    }
    void HangUntilTheEnd() {
      while (!*stop_) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    // The connection breaks off instead of ending.
    void Reset() {
      const linger now = {1, 0};
      setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    }

   private:
    int fd_;
    SSL* ssl_;
    const std::atomic<bool>* stop_;
    std::string held_;
  };

  struct Certificate {
    std::string chain_file, key_file;  // PEM
  };

  explicit FakeServer(std::function<void(Peer&)> serve) : FakeServer(std::move(serve), {}) {}
  FakeServer(std::function<void(Peer&)> serve, const Certificate& certificate)
      : serve_(std::move(serve)) {
    if (!certificate.chain_file.empty()) UseTls(certificate);
    listen_fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(listen_fd_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listen_fd_, 64) != 0)
      std::abort();
    getsockname(listen_fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    accepting_ = std::thread([this] { Accept(); });
  }
  ~FakeServer() {
    stop_ = true;
    accepting_.join();
    for (std::thread& thread : threads_) thread.join();
    close(listen_fd_);
    SSL_CTX_free(tls_);
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  int port() const { return port_; }
  int num_connections() const { return num_connections_; }

 private:
  void UseTls(const Certificate& certificate) {
    signal(SIGPIPE, SIG_IGN);  // SSL_write() knows no MSG_NOSIGNAL
    tls_ = SSL_CTX_new(TLS_server_method());
    if (tls_ == nullptr ||
        SSL_CTX_use_certificate_chain_file(tls_, certificate.chain_file.c_str()) != 1 ||
        SSL_CTX_use_PrivateKey_file(tls_, certificate.key_file.c_str(), SSL_FILETYPE_PEM) != 1)
      std::abort();
  }
  void ServeOne(int fd) {
    SSL* ssl = tls_ == nullptr ? nullptr : SSL_new(tls_);
    if (ssl != nullptr) SSL_set_fd(ssl, fd);
    if (ssl == nullptr || SSL_accept(ssl) == 1) {
      Peer peer(fd, ssl, &stop_);
      serve_(peer);
    }
    SSL_free(ssl);
    close(fd);
  }
  void Accept() {
    while (!stop_) {
      pollfd waiting = {listen_fd_, POLLIN, 0};
      if (poll(&waiting, 1, 50) <= 0) continue;
      const int fd = accept(listen_fd_, nullptr, nullptr);
      if (fd < 0) continue;
      ++num_connections_;
      threads_.emplace_back([this, fd] { ServeOne(fd); });
    }
  }

  const std::function<void(Peer&)> serve_;
  int listen_fd_ = -1;
  int port_ = 0;
  SSL_CTX* tls_ = nullptr;
  std::atomic<bool> stop_{false};
  std::atomic<int> num_connections_{0};
  std::list<std::thread> threads_;  // of the accepting thread
  std::thread accepting_;
};

}  // namespace vericache
