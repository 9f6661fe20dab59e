#include "api/serve_job.h"

#include <utility>

#include "base/status_macros.h"
#include "base/text.h"
#include "tokenizer/utf8.h"

namespace vericache {
namespace {

constexpr int kMaxChoices = 128;
constexpr int kMaxTopLogprobs = 20;
constexpr int kMaxPriority = 1000000;
constexpr size_t kMaxStops = 64, kMaxStopBytes = 4096;
constexpr float kBanned = -100;  // what clients give for "never"

absl::Status CheckRange(const char* field, int value, int low, int high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(field, " is ", value, ", expected ", low, " to ", high));
}

absl::Status CheckStops(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStops)
    return absl::InvalidArgumentError(
        StrCat("stop has ", stops.size(), " strings, expected at most ", kMaxStops));
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) return absl::InvalidArgumentError(StrCat("stop[", i, "] is empty"));
    if (stops[i].size() > kMaxStopBytes)
      return absl::InvalidArgumentError(StrCat("stop[", i, "] has ", stops[i].size(),
                                               " bytes, expected at most ", kMaxStopBytes));
    if (FindInvalidUtf8(stops[i]) != std::string_view::npos)
      return absl::InvalidArgumentError(StrCat("stop[", i, "] is not UTF-8"));
  }
  return absl::OkStatus();
}

// Bans of all tokens would shift every logit alike and so mean nothing.
absl::Status CheckBans(const std::vector<std::pair<int32_t, float>>& bias, int64_t num_ids) {
  if (static_cast<int64_t>(bias.size()) < num_ids) return absl::OkStatus();
  // Of one id twice both count, as in the sampler.
  std::vector<float> sums(num_ids, 0.0F);
  for (const auto& [id, value] : bias)
    if (id >= 0 && id < num_ids) sums[id] += value;
  for (const float sum : sums)
    if (sum > kBanned) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat("logit_bias bans all ", num_ids, " tokens: leave one above ", kBanned));
}

absl::Status CheckFields(const ServeRequest& request) {
  VC_RETURN_IF_ERROR(CheckRange("num_choices", request.num_choices, 1, kMaxChoices));
  VC_RETURN_IF_ERROR(CheckRange("top_logprobs", request.top_logprobs, 0, kMaxTopLogprobs));
  VC_RETURN_IF_ERROR(CheckRange("priority", request.request.priority, -kMaxPriority, kMaxPriority));
  return CheckStops(request.stop);
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<ServeChoice>>> MakeServeJob(
    EngineAccess::Impl* engine, const RequestLoop& loop, LogprobMaker* logprobs, ServeId id,
    ServeRequest request, std::shared_ptr<ServeSink> sink) {
  VC_RETURN_IF_ERROR(CheckFields(request));
  VC_RETURN_IF_ERROR(
      CheckBans(request.request.sampling.logit_bias, engine->tokenizer->vocab_size()));
  auto job = std::make_shared<ServeJob>();
  job->id = id;
  job->request = std::move(request.request);
  job->num_choices = request.num_choices;
  job->choices_to_start = request.num_choices;
  job->needs_logits = request.logprobs || request.prompt_logprobs;
  job->sink = std::move(sink);
  std::vector<std::unique_ptr<ServeChoice>> choices;
  for (int i = 0; i < job->num_choices; ++i) {
    auto choice = std::make_unique<ServeChoice>();
    job->request.sampling.choice = i;
    VC_ASSIGN_OR_RETURN(choice->sequence, engine->MakeSequence(job->request, nullptr));
    Sequence& s = *choice->sequence;
    job->sizes = engine->FitDraft(job->request, loop, job->num_choices, &s);
    if (i == 0) {
      VC_RETURN_IF_ERROR(loop.CheckFits(s, job->sizes, static_cast<RequestId>(id)));
      // The prompt is rendered once.
      job->request.messages_json.clear();
      job->request.prompt.clear();
      job->request.prompt_token_ids = s.tokens;
    }
    choice->job = job;
    choice->index = i;
    choice->stream.emplace(engine->tokenizer.get(), logprobs, request, i, job->sink);
    choice->stream->Watch(&s);
    choices.push_back(std::move(choice));
  }
  job->request.sampling.choice = 0;
  job->prompt = std::move(job->request.prompt_token_ids);
  return choices;
}

}  // namespace vericache
