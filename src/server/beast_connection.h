// One connection: reads requests against the clock, writes replies, watches the client.
//
// Only for http_server.cc: Boost is compiled in that one file. How a request goes: the header is
// read, then the body; the handler gets it on a thread of the pool (quick ones at once); then two
// coroutines race: Answer() writes what the reply is given, Watch() reads ahead and so sees the
// client leave. All of a connection runs on its strand, so nothing here is locked.
#pragma once

#include <poll.h>

#include <atomic>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/text.h"
#include "server/beast_reply.h"
#include "server/http.h"
#include "server/http_server.h"

namespace vericache::server {

namespace ssl = boost::asio::ssl;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = net::ip::tcp;
using net::experimental::awaitable_operators::operator||;

// Read ahead of a reply: a pipelined request or two. Beyond it the client is only polled.
constexpr size_t kReadAheadMax = 64 << 10;
constexpr auto kPollPause = std::chrono::milliseconds(100);
// What a refused client may still send before it reads why.
constexpr uint64_t kDrainBytesMax = uint64_t{256} << 20;
constexpr double kDrainSecondsMax = 15;

inline Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// What the connections of a server share.
struct Shared {
  HttpOptions options;
  HttpHandler* handler = nullptr;
  std::atomic<int64_t> connections{0}, accepted{0}, refused{0}, timed_out{0}, clients_left{0};
  std::atomic<uint64_t> body_bytes{0};
  std::atomic<bool> stopping{false};
};

// Its share of the bytes of all bodies.
class BodyShare {
 public:
  explicit BodyShare(Shared* shared) : shared_(shared) {}
  ~BodyShare() { shared_->body_bytes -= bytes_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // False: there is no room.
  bool GrowTo(uint64_t bytes) {
    if (bytes <= bytes_) return true;
    shared_->body_bytes += bytes - bytes_;
    bytes_ = bytes;
    return shared_->body_bytes <= shared_->options.all_bodies_bytes_max;
  }

 private:
  Shared* const shared_;
  uint64_t bytes_ = 0;
};

class ConnectionBase {
 public:
  virtual ~ConnectionBase() = default;
  virtual void CloseIfIdle() = 0;
  virtual void CloseNow() = 0;
};

using Request = http::request<http::string_body>;

inline HttpRequest ToRequest(Request&& from) {
  HttpRequest request;
  request.method = std::string(from.method_string());
  if (from.method() == http::verb::head) request.method = "GET";
  const std::string target(from.target());
  request.path = target.substr(0, target.find('?'));
  request.authorization = std::string(from[http::field::authorization]);
  request.api_key = std::string(from["x-api-key"]);
  request.body = std::move(from.body());
  return request;
}

template <typename Body>
void AddCors(const std::string& origin, http::response<Body>* response) {
  if (origin.empty()) return;
  response->set(http::field::access_control_allow_origin, origin);
  response->set(http::field::access_control_expose_headers, "x-request-id");
}

template <typename Stream>
class Connection : public ConnectionBase, public std::enable_shared_from_this<Connection<Stream>> {
 public:
  Connection(Stream stream, std::shared_ptr<net::io_context> io, net::thread_pool* pool,
             Shared* shared)
      : io_(std::move(io)),
        stream_(std::move(stream)),
        deadline_(stream_.get_executor()),
        pool_(pool),
        shared_(shared),
        options_(shared->options) {}

  net::awaitable<void> Run() {
    error_code ignored;
    Lowest().set_option(tcp::no_delay(true), ignored);
    Lowest().set_option(net::socket_base::keep_alive(true), ignored);
    if constexpr (!std::is_same_v<Stream, tcp::socket>) {
      Arm(options_.header_s_max);
      const auto [error] = co_await stream_.async_handshake(ssl::stream_base::server, kToken);
      if (error) co_return;
    }
    while (co_await ServeOne()) {
    }
    deadline_.cancel();
    Lowest().shutdown(tcp::socket::shutdown_both, ignored);
    Lowest().close(ignored);
  }

  void CloseIfIdle() override {
    net::post(stream_.get_executor(), [self = this->shared_from_this()] {
      if (self->idle_) self->Lowest().cancel();
    });
  }
  void CloseNow() override {
    net::post(stream_.get_executor(), [self = this->shared_from_this()] {
      error_code ignored;
      self->Lowest().close(ignored);
    });
  }

 private:
  tcp::socket& Lowest() { return beast::get_lowest_layer(stream_); }

  // From now on what is under way is cancelled in `seconds`, until it is armed anew.
  void Arm(double seconds) { ArmAt(Clock::now() + Seconds(seconds)); }
  void ArmAt(Clock::time_point when) {
    late_ = false;
    deadline_.expires_at(when);
    deadline_.async_wait([self = this->shared_from_this()](error_code error) {
      // One that had fired when it was armed anew comes too late.
      if (error || self->deadline_.expiry() > Clock::now()) return;
      self->late_ = true;
      error_code ignored;
      self->Lowest().cancel(ignored);
    });
  }
  void Disarm() {
    late_ = false;
    deadline_.expires_at(Clock::time_point::max());
  }

  // One request and its reply; false: the connection ends.
  net::awaitable<bool> ServeOne() {
    if (buffer_.size() == 0) {
      Arm(options_.idle_s_max);
      idle_ = true;
      const bool more = !shared_->stopping && co_await ReadSome();
      idle_ = false;
      if (!more) co_return false;
    }
    http::request_parser<http::string_body> parser;
    parser.header_limit(options_.header_bytes_max);
    parser.body_limit(options_.body_bytes_max);
    BodyShare share(shared_);
    if (!co_await ReadRequest(&parser, &share)) co_return false;
    Disarm();
    Request request = parser.release();
    const bool keep = request.keep_alive() && !shared_->stopping;
    const bool head = request.method() == http::verb::head;
    const unsigned version = request.version();
    if (request.method() == http::verb::options) co_return co_await Preflight(request, keep);
    const auto reply =
        std::make_shared<Reply>(io_, stream_.get_executor(), pool_, options_.unsent_bytes_max);
    Dispatch(ToRequest(std::move(request)), reply);
    goes_on_ = false;
    co_await (Answer(reply, keep, head, version) || Watch(reply));
    co_return goes_on_;
  }

  void Dispatch(HttpRequest request, std::shared_ptr<Reply> reply) {
    HttpHandler* handler = shared_->handler;
    if (handler->IsQuick(request)) {
      handler->Handle(std::move(request), std::move(reply));
      return;
    }
    net::post(*pool_, [handler, request = std::move(request), reply = std::move(reply)]() mutable {
      handler->Handle(std::move(request), std::move(reply));
    });
  }

  net::awaitable<bool> ReadSome() {
    const auto [error, size] =
        co_await stream_.async_read_some(buffer_.prepare(kReadAheadMax / 4), kToken);
    if (error) co_return false;
    buffer_.commit(size);
    co_return true;
  }

  net::awaitable<bool> ReadRequest(http::request_parser<http::string_body>* parser,
                                   BodyShare* share) {
    Arm(options_.header_s_max);
    const auto [header_error, unused] =
        co_await http::async_read_header(stream_, buffer_, *parser, kToken);
    if (header_error) co_return co_await Refuse(header_error);
    const uint64_t length = parser->content_length().value_or(0);
    if (!share->GrowTo(length)) co_return co_await Refuse(503, kNoRoom);
    if (beast::iequals(parser->get()[http::field::expect], "100-continue")) {
      http::response<http::empty_body> go_on(http::status::continue_, parser->get().version());
      co_await http::async_write(stream_, go_on, kToken);
    }
    const Clock::time_point start = Clock::now();
    while (!parser->is_done()) {
      const double brought = static_cast<double>(parser->get().body().size());
      ArmAt(start + Seconds(options_.body_grace_s + brought / options_.body_rate_min));
      const auto [error, size] = co_await http::async_read_some(stream_, buffer_, *parser, kToken);
      if (error) co_return co_await Refuse(error);
      if (!share->GrowTo(parser->get().body().size())) co_return co_await Refuse(503, kNoRoom);
    }
    co_return true;
  }

  static constexpr char kNoRoom[] = "too many request bodies at once: try again";

  // Says what is wrong with a request that was not read whole. Gives false.
  net::awaitable<bool> Refuse(error_code error) {
    if (late_) {
      ++shared_->timed_out;
      co_return co_await Refuse(408, "the request did not come in time");
    }
    if (error == http::error::body_limit)
      co_return co_await Refuse(
          413, StrCat("the body is larger than ", options_.body_bytes_max, " bytes"));
    if (error == http::error::header_limit)
      co_return co_await Refuse(
          431, StrCat("the header is larger than ", options_.header_bytes_max, " bytes"));
    // No HTTP, as opposed to a connection that ended.
    if (error.category() == make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message)
      co_return co_await Refuse(400, StrCat("no valid HTTP request: ", error.message()));
    co_return false;
  }

  net::awaitable<bool> Refuse(int status, std::string message) {
    HttpResponse response = shared_->handler->ErrorResponse(status, message);
    if (!co_await WriteWhole(std::move(response), /*keep=*/false, /*head=*/false, 11))
      co_return false;
    // Closing with bytes unread would reset the connection and the client might never read why.
    error_code ignored;
    Lowest().shutdown(tcp::socket::shutdown_send, ignored);
    Arm(kDrainSecondsMax);
    std::vector<char> unread(64 << 10);
    for (uint64_t drained = 0; drained < kDrainBytesMax;) {
      const auto [error, size] = co_await Lowest().async_read_some(net::buffer(unread), kToken);
      if (error) break;
      drained += size;
    }
    co_return false;
  }

  net::awaitable<bool> Preflight(const Request& request, bool keep) {
    http::response<http::empty_body> response(http::status::no_content, request.version());
    response.keep_alive(keep);
    AddCors(options_.cors_origin, &response);
    if (!options_.cors_origin.empty()) {
      response.set(http::field::access_control_allow_methods, "GET, POST, OPTIONS");
      const auto wanted = request[http::field::access_control_request_headers];
      response.set(http::field::access_control_allow_headers,
                   wanted.empty() ? "authorization, content-type, x-api-key" : wanted);
      response.set(http::field::access_control_max_age, "86400");
    }
    response.set(http::field::allow, "GET, POST, OPTIONS");
    ArmWrite(0);
    const auto [error, size] = co_await http::async_write(stream_, response, kToken);
    co_return !error && keep;
  }

  void ArmWrite(size_t bytes) {
    Arm(options_.write_s_max + static_cast<double>(bytes) / options_.body_rate_min);
  }

  template <typename Body>
  void SetHead(const HttpResponse& from, bool keep, http::response<Body>* response) {
    response->result(static_cast<unsigned>(from.status));
    response->set(http::field::server, "vericache");
    response->set(http::field::content_type, from.content_type);
    for (const auto& [name, value] : from.headers) response->set(name, value);
    AddCors(options_.cors_origin, response);
    response->keep_alive(keep);
  }

  net::awaitable<bool> WriteWhole(HttpResponse from, bool keep, bool head, unsigned version) {
    http::response<http::string_body> response;
    response.version(version);
    SetHead(from, keep, &response);
    response.content_length(from.body.size());
    ArmWrite(from.body.size());
    if (!head) response.body() = std::move(from.body);
    http::response_serializer<http::string_body> serializer(response);
    if (head) {
      const auto [error, size] = co_await http::async_write_header(stream_, serializer, kToken);
      co_return Wrote(error);
    }
    const auto [error, size] = co_await http::async_write(stream_, serializer, kToken);
    co_return Wrote(error);
  }

  bool Wrote(error_code error) {
    if (late_) ++shared_->timed_out;
    Disarm();
    return !error;
  }

  net::awaitable<bool> WriteStreamHead(HttpResponse from, bool keep, unsigned version) {
    http::response<http::empty_body> response;
    response.version(version);
    SetHead(from, keep, &response);
    if (version >= 11) response.chunked(true);
    http::response_serializer<http::empty_body> serializer(response);
    ArmWrite(0);
    const auto [error, size] = co_await http::async_write_header(stream_, serializer, kToken);
    co_return Wrote(error);
  }

  net::awaitable<bool> WritePieces(const std::string& pieces, unsigned version) {
    ArmWrite(pieces.size());
    if (version >= 11) {
      const auto [error, size] =
          co_await net::async_write(stream_, http::make_chunk(net::buffer(pieces)), kToken);
      co_return Wrote(error);
    }
    const auto [error, size] = co_await net::async_write(stream_, net::buffer(pieces), kToken);
    co_return Wrote(error);
  }

  // Writes the reply; sets goes_on_ if another request may follow.
  net::awaitable<void> Answer(std::shared_ptr<Reply> reply, bool keep, bool head,
                              unsigned version) {
    const bool whole = co_await AnswerParts(reply, &keep, head, version);
    if (!whole && reply->Close()) ++shared_->clients_left;
    // So that Watch() ends whatever kind of stream it reads.
    error_code ignored;
    Lowest().cancel(ignored);
    goes_on_ = whole && keep;
  }

  net::awaitable<bool> AnswerParts(std::shared_ptr<Reply> reply, bool* keep, bool head,
                                   unsigned version) {
    if (version < 11) *keep = false;
    for (;;) {
      Reply::State part = co_await reply->Take();
      if (part.whole) co_return co_await WriteWhole(std::move(*part.head), *keep, head, version);
      if (part.head.has_value() && !co_await WriteStreamHead(std::move(*part.head), *keep, version))
        co_return false;
      if (!part.pieces.empty()) {
        if (!co_await WritePieces(part.pieces, version)) co_return false;
        reply->Written(part.pieces.size());
      }
      if (!part.ended) continue;
      if (part.aborted) *keep = false;
      if (part.aborted || version < 11) co_return true;
      ArmWrite(0);
      const auto [error, size] =
          co_await net::async_write(stream_, http::make_chunk_last(), kToken);
      co_return Wrote(error);
    }
  }

  // Returns when the client has left; reads ahead meanwhile.
  net::awaitable<void> Watch(std::shared_ptr<Reply> reply) {
    bool here = true;
    while (here) {
      if (buffer_.size() < kReadAheadMax) {
        const auto [error, size] =
            co_await stream_.async_read_some(buffer_.prepare(kReadAheadMax / 4), kToken);
        if (error == net::error::operation_aborted && !late_) co_return;
        here = !error;
        if (here) buffer_.commit(size);
      } else {
        net::steady_timer pause(stream_.get_executor(), kPollPause);
        const auto [error] = co_await pause.async_wait(kToken);
        if (error) co_return;
        pollfd poll_fd = {Lowest().native_handle(), POLLRDHUP, 0};
        here = poll(&poll_fd, 1, 0) <= 0;
      }
    }
    if (reply->Close()) ++shared_->clients_left;
    // Answer() may be in the middle of a write.
    error_code ignored;
    Lowest().close(ignored);
  }

  const std::shared_ptr<net::io_context> io_;
  Stream stream_;
  net::steady_timer deadline_;
  net::thread_pool* const pool_;
  Shared* const shared_;
  const HttpOptions& options_;
  beast::flat_buffer buffer_;
  bool late_ = false, idle_ = false, goes_on_ = false;
};

}  // namespace vericache::server
