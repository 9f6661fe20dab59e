#include "server/completion_job.h"

#include <fmt/format.h>

#include <ctime>
#include <exception>
#include <utility>

#include "base/status_macros.h"
#include "server/api_error.h"
#include "server/random_id.h"

namespace vericache::server {
namespace {

// Before this a reply may still become an HTTP error; after it the client should see life.
constexpr double kSilenceSecondsMax = 5;
// As nginx counts a client that left before its reply.
constexpr int kClientLeft = 499;

HttpResponse ErrorReply(const absl::Status& status) {
  const ApiError error = ApiErrorOf(status);
  HttpResponse response;
  response.status = error.http_status;
  response.body = ErrorJson(error);
  if (error.retry_later) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace

// Copies what the engine's thread tells and posts it to the strand.
class CompletionJob::Sink : public ServeSink {
 public:
  Sink(std::shared_ptr<CompletionJob> job, int first_choice)
      : job_(std::move(job)), first_(first_choice) {}

  void OnDelta(const ServeDelta& delta) override {
    Delta copy;
    copy.choice = first_ + delta.choice;
    copy.text = std::string(delta.text);
    copy.num_tokens = delta.token_ids.size();
    copy.logprobs.assign(delta.logprobs.begin(), delta.logprobs.end());
    copy.when = Clock::now();
    Post([copy = std::move(copy)](CompletionJob* job) mutable { job->OnDelta(std::move(copy)); });
  }
  void OnEnd(ServeEnd end) override {
    end.choice += first_;
    auto shared = std::make_shared<ServeEnd>(std::move(end));
    Post([shared](CompletionJob* job) { job->OnEnd(std::move(*shared)); });
  }
  void OnDraft(int choice, std::string_view text) override {
    Post([choice = first_ + choice, copy = std::string(text)](CompletionJob* job) {
      job->OnDraft(choice, copy);
    });
  }
  void OnPrefill(int64_t done, int64_t total) override {
    Post([done, total](CompletionJob* job) { job->OnPrefill(done, total); });
  }

 private:
  void Post(std::function<void(CompletionJob*)> work) {
    job_->reply_->Post([job = job_, work = std::move(work)] {
      // What is thrown on the way must end the reply: its client would wait for ever.
      try {
        work(job.get());
      } catch (const std::exception& error) {
        job->Fail(absl::InternalError(error.what()));
      }
    });
  }

  const std::shared_ptr<CompletionJob> job_;
  const int first_;
};

CompletionJob::CompletionJob(ApiRequest request, const JobContext& context,
                             std::shared_ptr<HttpReply> reply)
    : request_(std::move(request)), context_(context), reply_(std::move(reply)) {
  const bool chat = request_.endpoint == Endpoint::kChat;
  head_.endpoint = request_.endpoint;
  head_.id = RandomId(chat ? "chatcmpl-" : "cmpl-");
  head_.created = static_cast<int64_t>(std::time(nullptr));
  head_.model = request_.model;
  head_.include_usage = request_.include_usage;
}

void CompletionJob::Start(ApiRequest request, const JobContext& context,
                          std::shared_ptr<HttpReply> reply) {
  const auto job = std::make_shared<CompletionJob>(std::move(request), context, std::move(reply));
  absl::Status status =
      job->request_.endpoint == Endpoint::kChat ? job->RenderChat() : job->FillEchoes();
  if (status.ok()) {
    const size_t num_choices = job->request_.prompts.size() * job->request_.prompts[0].num_choices;
    job->choices_.reserve(num_choices);
    for (size_t i = 0; i < num_choices; ++i)
      job->choices_.emplace_back(job->reasoning_start_, job->request_.tool_names);
    job->reply_->OnClientLeft([weak = job->weak_from_this()] {
      if (const auto leaving = weak.lock()) leaving->OnClientLeft();
    });
    status = job->SubmitAll();
  }
  if (!status.ok()) {
    job->CancelAll();
    job->reply_->Post([job, status] { job->Fail(status); });
  }
}

absl::Status CompletionJob::RenderChat() {
  Request* chat = &request_.prompts[0].request;
  VC_ASSIGN_OR_RETURN(CompletionService::RenderedPrompt prompt,
                      context_.service->RenderPrompt(*chat));
  if (!request_.tool_names.empty() && prompt.text.find(request_.tool_names[0]) == std::string::npos)
    return BadField("tools", "do not appear in the prompt: the model's chat template takes none");
  if (request_.split_reasoning) reasoning_start_ = ReasoningStartOf(prompt.text);
  // Rendered once: the ids stand for the messages.
  chat->messages_json.clear();
  chat->tools_json.clear();
  chat->template_kwargs_json.clear();
  chat->prompt_token_ids = std::move(prompt.token_ids);
  return absl::OkStatus();
}

absl::Status CompletionJob::FillEchoes() {
  if (!request_.echo) return absl::OkStatus();
  for (const ServeRequest& prompt : request_.prompts)
    echoes_.push_back(prompt.request.prompt_token_ids.empty()
                          ? prompt.request.prompt
                          : context_.service->Detokenize(prompt.request.prompt_token_ids));
  return absl::OkStatus();
}

absl::Status CompletionJob::SubmitAll() {
  int first = 0;
  for (const ServeRequest& prompt : request_.prompts) {
    VC_ASSIGN_OR_RETURN(
        const ServeId id,
        context_.service->Submit(prompt, std::make_shared<Sink>(shared_from_this(), first)));
    first += prompt.num_choices;
    bool too_late = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ids_.push_back(id);
      too_late = cancelled_;
    }
    if (too_late) {
      context_.service->Cancel(id);
      return absl::CancelledError("the client has left");
    }
  }
  return absl::OkStatus();
}

void CompletionJob::CancelAll() {
  std::vector<ServeId> ids;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    ids = ids_;
  }
  for (const ServeId id : ids) context_.service->Cancel(id);
}

void CompletionJob::OnClientLeft() {
  if (done()) return;
  failed_ = true;
  CountReply(kClientLeft);
  CancelAll();
}

double CompletionJob::SecondsSoFar() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

void CompletionJob::CountReply(int status) { context_.metrics->Replied(context_.path, status); }

void CompletionJob::Fail(const absl::Status& status) {
  if (done()) return;
  failed_ = true;
  CancelAll();
  const ApiError error = ApiErrorOf(status);
  context_.metrics->Failed(error.code);
  CountReply(streaming_ ? 200 : error.http_status);
  if (streaming_) {
    // Without [DONE]: the stream is not whole.
    reply_->WriteLast("data: " + ErrorJson(error) + "\n\n");
    reply_->End();
  } else {
    reply_->Send(ErrorReply(status));
  }
}

void CompletionJob::StartStream() {
  if (std::exchange(streaming_, true)) return;
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {
      {"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}, {"X-Request-Id", head_.id}};
  reply_->Start(std::move(head));
}

void CompletionJob::Write(const std::string& piece) {
  if (done()) return;
  StartStream();
  if (reply_->Write(piece) != HttpReply::WriteResult::kFull) return;
  context_.metrics->SlowReader();
  Fail(WithCode(absl::UnavailableError("the client reads too slowly: the stream was cut"),
                "slow_reader"));
}

OrderedJson CompletionJob::TakeLogprobs(Choice* choice) {
  if (!request_.prompts[0].logprobs) return nullptr;
  const TokenBytesFn bytes = [this](int32_t id) { return context_.service->TokenBytes(id); };
  const std::vector<PositionLogprobs> taken = std::exchange(choice->logprobs, {});
  if (request_.endpoint == Endpoint::kChat) return ChatLogprobs(taken, bytes);
  for (const PositionLogprobs& position : taken) choice->legacy.Add(position, bytes);
  return choice->legacy.Take();
}

void CompletionJob::AddPromptLogprobs(Choice* choice) {
  const TokenBytesFn bytes = [this](int32_t id) { return context_.service->TokenBytes(id); };
  const std::vector<int32_t>& ids = choice->end.completion.prompt_token_ids;
  if (!ids.empty()) choice->legacy.AddUnscored(ids[0], bytes);
  for (const PositionLogprobs& position : choice->end.prompt_logprobs)
    choice->legacy.Add(position, bytes);
}

void CompletionJob::SendDelta(int index, Choice* choice, const TextDelta& delta,
                              const std::string& finish) {
  if (delta.empty() && finish.empty() && choice->logprobs.empty()) return;
  const bool chat = request_.endpoint == Endpoint::kChat;
  if (!std::exchange(choice->started, true)) {
    if (chat)
      Write(Event(OneChoice(
          head_, ChatChunkChoice(index, {{"role", "assistant"}, {"content", ""}}, nullptr, ""))));
    if (!echoes_.empty())
      Write(
          Event(OneChoice(head_, TextChoice(index, echoes_[index / request_.prompts[0].num_choices],
                                            nullptr, ""))));
  }
  OrderedJson logprobs = choice->logprobs.empty() ? OrderedJson() : TakeLogprobs(choice);
  // The reason stands in a chunk of its own, as clients expect it.
  if (!delta.empty() || !logprobs.is_null()) {
    OrderedJson json = chat ? ChatChunkChoice(index, DeltaJson(delta, choice->text.calls()),
                                              std::move(logprobs), "")
                            : TextChoice(index, delta.content, std::move(logprobs), "");
    Write(Event(OneChoice(head_, std::move(json))));
  }
  if (finish.empty()) return;
  Write(Event(OneChoice(head_, chat ? ChatChunkChoice(index, OrderedJson::object(), nullptr, finish)
                                    : TextChoice(index, "", nullptr, finish))));
}

void CompletionJob::OnDelta(Delta delta) {
  if (done()) return;
  Choice* choice = &choices_[delta.choice];
  if (choice->num_tokens == 0) {
    context_.metrics->FirstToken(std::chrono::duration<double>(delta.when - start_).count());
  } else if (delta.num_tokens > 0) {
    context_.metrics->Tokens(static_cast<int64_t>(delta.num_tokens),
                             std::chrono::duration<double>(delta.when - choice->last).count());
  }
  choice->last = delta.when;
  choice->num_tokens += static_cast<int64_t>(delta.num_tokens);
  if (choice->text.in_reasoning())
    choice->reasoning_tokens += static_cast<int64_t>(delta.num_tokens);
  choice->logprobs.insert(choice->logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
  const TextDelta text = choice->text.Push(delta.text);
  if (request_.stream && !IsDeferred()) SendDelta(delta.choice, choice, text, "");
}

void CompletionJob::OnDraft(int choice, const std::string& text) {
  if (done() || !request_.stream || choices_[choice].ended) return;
  OrderedJson event = {{"id", head_.id},
                       {"object", "vericache.draft"},
                       {"created", head_.created},
                       {"model", head_.model},
                       {"choices", OrderedJson::array()}};
  event["vericache"] = {{"index", choice}, {"draft", text}};
  Write(NamedEvent("vericache.draft", event));
}

void CompletionJob::OnPrefill(int64_t done_tokens, int64_t total) {
  if (done() || !request_.stream || SecondsSoFar() < kSilenceSecondsMax) return;
  Write(fmt::format(": prefill {} of {} tokens\n\n", done_tokens, total));
}

OrderedJson CompletionJob::ChoiceJson(int index, Choice* choice) {
  if (request_.endpoint == Endpoint::kChat)
    return {{"index", index},
            {"message", MessageJson(choice->text)},
            {"logprobs", TakeLogprobs(choice)},
            {"finish_reason", choice->finish_reason}};
  std::string text = choice->text.content();
  if (!echoes_.empty()) text.insert(0, echoes_[index / request_.prompts[0].num_choices]);
  if (request_.prompts[0].prompt_logprobs) AddPromptLogprobs(choice);
  return TextChoice(index, text, TakeLogprobs(choice), choice->finish_reason);
}

void CompletionJob::OnEnd(ServeEnd end) {
  const int index = end.choice;
  Choice* choice = &choices_[index];
  choice->ended = true;
  choice->end = std::move(end);
  ++num_ended_;
  if (!choice->end.status.ok()) {
    const bool cancelled = choice->end.status.code() == absl::StatusCode::kCancelled;
    context_.metrics->ChoiceEnded({"", cancelled ? "cancelled" : "error", nullptr});
    // Nobody but a stop cancels what this job has not given up itself.
    Fail(cancelled
             ? WithCode(absl::UnavailableError("the server is stopping: the answer is not whole"),
                        "server_stopping")
             : choice->end.status);
    return;
  }
  if (done()) return;
  const TextDelta rest = choice->text.Finish();
  choice->finish_reason = choice->end.completion.finish_reason;
  if (choice->finish_reason == "stop" && !choice->text.calls().empty())
    choice->finish_reason = "tool_calls";
  context_.metrics->ChoiceEnded(
      {request_.prompts[0].request.draft, choice->finish_reason, &choice->end.completion});
  if (request_.stream) {
    if (IsDeferred()) {
      Write(Event(OneChoice(head_, ChoiceJson(index, choice))));
    } else {
      SendDelta(index, choice, rest, choice->finish_reason);
    }
  }
  if (num_ended_ < static_cast<int>(choices_.size()) || done()) return;
  finished_ = true;
  context_.metrics->RequestEnded(SecondsSoFar());
  reply_->Defer([self = shared_from_this()] {
    try {
      self->FinishReply();
    } catch (const std::exception&) {
      self->reply_->Abort();
    }
  });
}

void CompletionJob::FinishReply() {
  const ServeRequest& first = request_.prompts[0];
  UsageSum usage(first.request.sampling.seed, first.request.draft);
  for (size_t i = 0; i < choices_.size(); ++i) {
    const int within = static_cast<int>(i) % first.num_choices;
    usage.Add(within, choices_[i].end.completion, choices_[i].reasoning_tokens);
    if (!request_.receipt || !context_.receipt_json) continue;
    SamplingOptions sampling = first.request.sampling;
    sampling.choice = static_cast<uint32_t>(within);
    const absl::StatusOr<Receipt> receipt =
        context_.service->MakeReceipt(choices_[i].end.completion, sampling);
    usage.AddReceipt(receipt.ok() ? context_.receipt_json(*receipt) : "null");
  }
  CountReply(200);
  if (request_.stream) {
    if (request_.include_usage || request_.receipt) {
      OrderedJson last = Chunk(head_, OrderedJson::array());
      last["usage"] = usage.ToJson();
      reply_->WriteLast(Event(last));
    }
    reply_->WriteLast("data: [DONE]\n\n");
    reply_->End();
    return;
  }
  OrderedJson choices = OrderedJson::array();
  for (size_t i = 0; i < choices_.size(); ++i)
    choices.push_back(ChoiceJson(static_cast<int>(i), &choices_[i]));
  HttpResponse response;
  response.headers = {{"X-Request-Id", head_.id}};
  response.body = Dump(WholeReply(head_, std::move(choices), usage.ToJson()));
  reply_->Send(std::move(response));
}

}  // namespace vericache::server
