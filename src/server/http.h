// What handlers know of HTTP: requests, replies, and nothing of sockets.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vericache::server {

struct HttpRequest {
  std::string method;         // "POST"
  std::string path;           // without query
  std::string authorization;  // value of that header, or ""
  std::string api_key;        // value of X-API-Key, or ""
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};

// One answer in the making: either Send(), or Start(), Write()..., End(). THREADS: all methods may
// be called from any thread and return at once; what is called in one order arrives in it.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  // Runs `work` on the connection's strand: after what was posted before, never beside it.
  virtual void Post(std::function<void()> work) = 0;
  // Runs `work`, which may take its time, on a thread of the handlers.
  virtual void Defer(std::function<void()> work) = 0;

  virtual void Send(HttpResponse response) = 0;
  // The head of a reply that comes in pieces; `head.body` is ignored.
  virtual void Start(HttpResponse head) = 0;
  enum class WriteResult {
    kOk,
    kClosed,  // the client has gone
    kFull,    // it reads too slowly: the piece was not taken
  };
  virtual WriteResult Write(std::string piece) = 0;
  // Like Write(), beyond the limit: a last word to a slow reader.
  virtual void WriteLast(std::string piece) = 0;
  virtual void End() = 0;
  // The reply ends here and so does the connection: the client sees that it is not whole.
  virtual void Abort() = 0;

  // Calls `left` on the strand, once, if the client goes away before the end of the reply; at once
  // if it has gone already.
  virtual void OnClientLeft(std::function<void()> left) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // True for what never waits: it is handled on an IO thread, however busy the others are.
  virtual bool IsQuick(const HttpRequest& request) const = 0;
  // May wait, unless IsQuick(). Every request gets one reply in the end. Does not throw.
  virtual void Handle(HttpRequest request, std::shared_ptr<HttpReply> reply) = 0;
  // Answers the server gives by itself (431, 408, 413, 503), in the shape of the others.
  virtual HttpResponse ErrorResponse(int status, std::string_view message) const = 0;
};

}  // namespace vericache::server
