// The requests of a batch, the settings that make each answer what it is, and answers from before.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "vericache/stats.h"

namespace vericache::cli {

struct BatchJob {
  size_t line = 0;  // of the requests file, from 1
  std::string id;   // "" where the line gives none
  Request request;
  absl::Status error;   // of the line itself: there is no request
  std::string digest;   // hex SHA-256 of model, request and settings
  std::string answer;   // its line of the output, without line break; "": not there yet
  bool kept = false;    // the answer is from an earlier run
  bool failed = false;  // the answer holds an error
};

// One job a line that is not blank. `defaults` is what lines do not say. `unused` (may be null)
// gets "LINE: MEMBER" for the first member that is not read, or "".
std::vector<BatchJob> ReadJobs(std::string_view text, const Request& defaults, std::string* unused);

// Sets the digests of all jobs that have a request.
void SetDigests(const std::string& model_sha256, const RopeOptions& rope,
                std::vector<BatchJob>* jobs);

// Answers without an error, by custom_id and digest.
using OldAnswers = std::map<std::pair<std::string, std::string>, std::string>;
// Adds the complete lines of an output or side file. Lines that are damaged, or of something else,
// are passed over; gives their number.
size_t AddOldAnswers(std::string_view text, OldAnswers* answers);
// Gives jobs the answers they have; gives the number of answers that belong to none.
size_t TakeOldAnswers(const OldAnswers& answers, std::vector<BatchJob>* jobs);

// Sets the job's answer.
void SetAnswer(const absl::StatusOr<Completion>& result, BatchJob* job);

}  // namespace vericache::cli
