// One request for completions on its way: hands its prompts to the service and turns what comes
// back into a reply, whole or as server-sent events.
//
// Everything after the hand-in happens on the connection's strand, so its state needs no lock. A
// reply's head goes out with the first text: until then an error is an HTTP status.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "server/http.h"
#include "server/metrics.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "vericache/serving.h"

namespace vericache::server {

struct JobContext {
  std::shared_ptr<CompletionService> service;
  Metrics* metrics = nullptr;
  // A receipt as JSON.
  std::function<std::string(const Receipt&)> receipt_json;
  std::string path;  // of the metrics
};

class CompletionJob : public std::enable_shared_from_this<CompletionJob> {
 public:
  // Renders, tokenizes and hands in: may wait. The reply is given in the end, come what may.
  static void Start(ApiRequest request, const JobContext& context,
                    std::shared_ptr<HttpReply> reply);

  CompletionJob(ApiRequest request, const JobContext& context, std::shared_ptr<HttpReply> reply);

 private:
  using Clock = std::chrono::steady_clock;
  class Sink;
  // A ServeDelta that owns what it shows, and when it came.
  struct Delta {
    int choice = 0;
    std::string text;
    size_t num_tokens = 0;
    std::vector<PositionLogprobs> logprobs;
    Clock::time_point when;
  };
  struct Choice {
    Choice(ReasoningStart start, const std::vector<std::string>& tools) : text(start, tools) {}
    ChoiceText text;
    std::vector<PositionLogprobs> logprobs;  // not yet sent
    LegacyLogprobs legacy;
    bool started = false, ended = false;
    int64_t num_tokens = 0, reasoning_tokens = 0;
    Clock::time_point last;
    ServeEnd end;
    std::string finish_reason;
  };

  absl::Status RenderChat();
  absl::Status FillEchoes();
  absl::Status SubmitAll();
  void CancelAll();
  void OnClientLeft();

  void OnDelta(Delta delta);
  void OnDraft(int choice, const std::string& text);
  void OnPrefill(int64_t done, int64_t total);
  void OnEnd(ServeEnd end);

  void StartStream();
  // Sends a piece; an unread stream ends the job.
  void Write(const std::string& piece);
  void SendDelta(int index, Choice* choice, const TextDelta& delta, const std::string& finish);
  OrderedJson TakeLogprobs(Choice* choice);
  void AddPromptLogprobs(Choice* choice);
  // The whole of an ended choice.
  OrderedJson ChoiceJson(int index, Choice* choice);
  void Fail(const absl::Status& status);
  // All choices have ended: receipts and sums on a handler's thread.
  void FinishReply();
  // Neither reasoning nor a stream can be told before all is there: echo with logprobs.
  bool IsDeferred() const { return request_.echo && request_.prompts[0].logprobs; }
  bool done() const { return failed_ || finished_; }
  double SecondsSoFar() const;
  void CountReply(int status);

  ApiRequest request_;
  const JobContext context_;
  const std::shared_ptr<HttpReply> reply_;
  const Clock::time_point start_ = Clock::now();
  ReplyHead head_;
  std::vector<std::string> echoes_;  // a prompt's text each, where asked for
  ReasoningStart reasoning_start_ = ReasoningStart::kOff;
  std::vector<Choice> choices_;  // of prompt i: from i * n on
  int num_ended_ = 0;
  bool streaming_ = false;  // the head has gone out
  bool failed_ = false, finished_ = false;

  std::mutex mutex_;  // of the two below: handing in and leaving may cross
  std::vector<ServeId> ids_;
  bool cancelled_ = false;
};

}  // namespace vericache::server
