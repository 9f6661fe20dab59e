#include "cli/batch_jobs.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/hash.h"
#include "cli/errors.h"
#include "cli/json_out.h"
#include "cli/request_line.h"
#include "vericache/engine.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::json;

// Answers have five levels; what is deeper is none.
constexpr int kAnswerDepthMax = 8;
// Part of every digest: another number makes all older answers those of other settings.
constexpr int kDigestForm = 1;

absl::Status ReadJob(std::string_view text, const Request& defaults, BatchJob* job,
                     std::string* unused) {
  absl::StatusOr<RequestLine> line = ParseRequestLine(text, defaults.sampling, &job->id);
  if (!line.ok()) return line.status();
  *unused = line->unused;
  job->request = defaults;
  job->request.sampling = line->sampling;
  if (line->max_tokens.has_value()) job->request.max_tokens = *line->max_tokens;
  if (line->draft_len.has_value()) job->request.draft_len = *line->draft_len;
  if (!line->draft.empty()) job->request.draft = line->draft;
  job->request.priority = line->priority;
  absl::StatusOr<std::string> draft = CanonicalDraftSpec(job->request.draft);
  if (!draft.ok()) return draft.status();
  job->request.draft = *std::move(draft);
  return SetPrompt(*line, &job->request);
}

bool IsText(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string();
}

// An answer that the context cut short would go on in a larger one.
bool IsCutByContext(const Json& answer, const Request& request) {
  return answer["finish_reason"] == "length" &&
         static_cast<int64_t>(answer["token_ids"].size()) < request.max_tokens;
}

}  // namespace

std::vector<BatchJob> ReadJobs(std::string_view text, const Request& defaults,
                               std::string* unused) {
  std::vector<BatchJob> jobs;
  std::string first_unused;
  (void)ForEachLine(text, [&](size_t number, std::string_view line) {
    BatchJob job;
    job.line = number;
    std::string member;
    job.error = ReadJob(line, defaults, &job, &member);
    if (first_unused.empty() && !member.empty())
      first_unused = fmt::format("{}: {}", number, member);
    jobs.push_back(std::move(job));
    return absl::OkStatus();
  });
  if (unused != nullptr) *unused = first_unused;
  return jobs;
}

void SetDigests(const std::string& model_sha256, const RopeOptions& rope,
                std::vector<BatchJob>* jobs) {
  for (BatchJob& job : *jobs) {
    if (!job.error.ok()) continue;
    const Request& r = job.request;
    // Threads, memory and the other requests do not change an answer; the draft changes its stats.
    Json settings =
        Json::array({kDigestForm, model_sha256, r.prompt, r.messages_json, r.tools_json,
                     r.max_tokens, SamplingText(r.sampling), r.draft, r.draft_len, r.ignore_eos});
    if (!rope.scaling.empty()) settings.push_back({rope.scaling, rope.scale, rope.orig_context});
    const std::string text = settings.dump();
    job.digest = HexOf(Sha256Of(text.data(), text.size()));
  }
}

size_t AddOldAnswers(std::string_view text, OldAnswers* answers) {
  size_t num_other = 0;
  (void)ForEachLine(text, [&](size_t, std::string_view line) {
    const auto limit_depth = [](int depth, Json::parse_event_t, Json&) {
      return depth <= kAnswerDepthMax;
    };
    const Json answer = Json::parse(line, limit_depth, /*allow_exceptions=*/false);
    const bool whole = answer.is_object() && IsText(answer, "request_digest") &&
                       IsText(answer, "text") && IsText(answer, "logits_hash") &&
                       IsText(answer, "finish_reason") && answer.contains("token_ids") &&
                       answer["token_ids"].is_array() && answer.contains("error") &&
                       answer["error"].is_null();
    if (!whole) {
      ++num_other;
      return absl::OkStatus();
    }
    std::string id = IsText(answer, "custom_id") ? answer["custom_id"].get<std::string>() : "";
    answers->insert_or_assign({std::move(id), answer["request_digest"].get<std::string>()},
                              std::string(line));
    return absl::OkStatus();
  });
  return num_other;
}

size_t TakeOldAnswers(const OldAnswers& answers, std::vector<BatchJob>* jobs) {
  std::set<std::pair<std::string, std::string>> used;
  for (BatchJob& job : *jobs) {
    if (!job.error.ok()) continue;
    const auto found = answers.find({job.id, job.digest});
    if (found == answers.end()) continue;
    used.insert(found->first);
    if (IsCutByContext(Json::parse(found->second), job.request)) continue;
    job.answer = found->second;
    job.kept = true;
  }
  return answers.size() - used.size();
}

void SetAnswer(const absl::StatusOr<Completion>& result, BatchJob* job) {
  job->failed = !result.ok();
  const std::string error =
      result.ok()
          ? ""
          : fmt::format("line {}: {}", job->line, OneLine(std::string(result.status().message())));
  job->answer = BatchLineJson(job->id, error, job->digest, result.ok() ? &*result : nullptr);
}

}  // namespace vericache::cli
