// Scores of a stored prefix: several sets by DraftSpec::score_key(), as bytes for session files.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kv/selectors/selector.h"

namespace vericache {

using ScoreSets = std::map<std::string, std::shared_ptr<const KeyScores>>;

// Each set: length and text of its key, num_scored, then fp32 scores [list][num_scored].
void AppendScores(const ScoreSets& sets, std::string* out);
// Reads all of `bytes`, for `num_lists` pairs of layer and KV head over at most `num_tokens`
// positions. ERRORS: kDataLoss: anything that AppendScores() would not have written.
absl::Status ReadScores(std::string_view bytes, int64_t num_lists, int64_t num_tokens,
                        ScoreSets* sets);

}  // namespace vericache
