// What /metrics tells: Prometheus' text format, by the core of prometheus-cpp.
//
// Names and meanings: docs/serving.md. THREADS: safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/http_server.h"
#include "vericache/serving.h"

namespace vericache::server {

// One choice that ended.
struct ChoiceRecord {
  std::string draft;                       // as asked for; its selector is a label
  std::string finish_reason;               // "stop", "length", "tool_calls", or "error"
  const Completion* completion = nullptr;  // null: there is none
};

class Metrics {
 public:
  Metrics();
  ~Metrics();

  void Replied(const std::string& path, int http_status);
  void Failed(const std::string& code);
  void FirstToken(double seconds);             // since the request came
  void Tokens(int64_t count, double seconds);  // since those before, all together
  void ChoiceEnded(const ChoiceRecord& record);
  void RequestEnded(double seconds);
  void SlowReader();

  // stats: null while the model loads.
  std::string Text(const ServiceStats* stats, const HttpCounts& http);

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

// "verify" of "verify:0.25+int4": few enough to be a label.
std::string SelectorOf(const std::string& draft);

}  // namespace vericache::server
