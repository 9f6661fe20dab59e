// A reply's queue between those who make it and the connection that writes it. Beast's names.
//
// Only for http_server.cc: Boost is compiled in that one file.
#pragma once

#include <boost/asio.hpp>
#include <boost/asio/experimental/as_tuple.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "server/http.h"

namespace vericache::server {

namespace net = boost::asio;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr auto kToken = net::experimental::as_tuple(net::use_awaitable);

class Reply : public HttpReply, public std::enable_shared_from_this<Reply> {
 public:
  // io: keeps the timer's context alive for those who hold a reply for long.
  Reply(std::shared_ptr<net::io_context> io, net::any_io_executor strand, net::thread_pool* pool,
        uint64_t unsent_max)
      : io_(std::move(io)), strand_(strand), pool_(pool), wake_(strand), unsent_max_(unsent_max) {}

  void Post(std::function<void()> work) override { net::post(strand_, std::move(work)); }

  void Defer(std::function<void()> work) override { net::post(*pool_, std::move(work)); }

  void Send(HttpResponse response) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_.ended) return;
    state_.head = std::move(response);
    state_.whole = state_.ended = true;
    left_ = nullptr;
    Wake();
  }

  void Start(HttpResponse head) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_.ended || state_.head.has_value()) return;
    state_.head = std::move(head);
    Wake();
  }

  WriteResult Write(std::string piece) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) return WriteResult::kClosed;
    if (state_.ended) return WriteResult::kOk;
    if (unsent_ + piece.size() > unsent_max_) return WriteResult::kFull;
    Add(std::move(piece));
    return WriteResult::kOk;
  }

  void WriteLast(std::string piece) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_ && !state_.ended) Add(std::move(piece));
  }

  void End() override { Finish(/*aborted=*/false); }
  void Abort() override { Finish(/*aborted=*/true); }

  void OnClientLeft(std::function<void()> left) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      net::post(strand_, std::move(left));
    } else if (!state_.ended) {
      left_ = std::move(left);
    }
  }

  // The connection's side; on the strand.
  struct State {
    std::optional<HttpResponse> head;
    std::string pieces;  // written so far and not taken
    bool whole = false, ended = false, aborted = false;
  };
  // Waits until there is something new and takes it: the head once, pieces, the end.
  net::awaitable<State> Take() {
    for (;;) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        woken_ = false;
        if (state_.head.has_value() || !state_.pieces.empty() || state_.ended) {
          State taken = std::move(state_);
          state_ = State();
          state_.whole = taken.whole;
          state_.ended = taken.ended;
          state_.aborted = taken.aborted;
          co_return taken;
        }
      }
      wake_.expires_at(Clock::time_point::max());
      co_await wake_.async_wait(kToken);
    }
  }
  void Written(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    unsent_ -= bytes;
  }
  // The client has gone. True if the reply was not whole; once, for a read and a write may both
  // find out.
  bool Close() {
    std::function<void()> left;
    bool unfinished = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      unfinished = !closed_ && !state_.ended;
      closed_ = true;
      left = std::move(left_);
      left_ = nullptr;
    }
    if (left) left();
    return unfinished;
  }

 private:
  void Add(std::string piece) {
    unsent_ += piece.size();
    state_.pieces += piece;
    Wake();
  }
  void Finish(bool aborted) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (state_.ended) return;
    state_.ended = true;
    state_.aborted = aborted;
    left_ = nullptr;
    Wake();
  }
  // Take() looks and begins to wait without leaving the strand: a wake posted to it is not lost.
  void Wake() {
    if (std::exchange(woken_, true)) return;
    net::post(strand_, [self = shared_from_this()] { self->wake_.cancel(); });
  }

  const std::shared_ptr<net::io_context> io_;
  const net::any_io_executor strand_;
  net::thread_pool* const pool_;
  net::steady_timer wake_;
  const uint64_t unsent_max_;
  std::mutex mutex_;
  State state_;
  uint64_t unsent_ = 0;
  bool woken_ = false, closed_ = false;
  std::function<void()> left_;
};

}  // namespace vericache::server
