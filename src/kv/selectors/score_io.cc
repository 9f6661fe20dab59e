#include "kv/selectors/score_io.h"

#include <cstring>

namespace vericache {
namespace {

constexpr uint64_t kMaxKeyBytes = 256;

void AppendInt(uint64_t value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

bool TakeInt(std::string_view* bytes, uint64_t max, uint64_t* value) {
  if (bytes->size() < sizeof(*value)) return false;
  std::memcpy(value, bytes->data(), sizeof(*value));
  bytes->remove_prefix(sizeof(*value));
  return *value <= max;
}

}  // namespace

void AppendScores(const ScoreSets& sets, std::string* out) {
  for (const auto& [key, scores] : sets) {
    AppendInt(key.size(), out);
    out->append(key);
    AppendInt(static_cast<uint64_t>(scores->num_scored), out);
    for (const std::vector<float>& of_head : scores->of_head)
      out->append(reinterpret_cast<const char*>(of_head.data()),
                  static_cast<size_t>(scores->num_scored) * sizeof(float));
  }
}

absl::Status ReadScores(std::string_view bytes, int64_t num_lists, int64_t num_tokens,
                        ScoreSets* sets) {
  const absl::Status damaged = absl::DataLossError("the scores do not fit their own sizes");
  while (!bytes.empty()) {
    uint64_t key_bytes = 0, num_scored = 0;
    if (!TakeInt(&bytes, kMaxKeyBytes, &key_bytes) || bytes.size() < key_bytes) return damaged;
    const std::string key(bytes.substr(0, key_bytes));
    bytes.remove_prefix(key_bytes);
    if (!TakeInt(&bytes, static_cast<uint64_t>(num_tokens), &num_scored)) return damaged;
    const size_t list_bytes = num_scored * sizeof(float);
    if (list_bytes > 0 && bytes.size() / list_bytes < static_cast<size_t>(num_lists))
      return damaged;
    KeyScores scores;
    scores.num_scored = static_cast<int64_t>(num_scored);
    for (int64_t list = 0; list < num_lists; ++list) {
      std::vector<float>& of_head = scores.of_head.emplace_back(num_scored);
      if (list_bytes > 0) std::memcpy(of_head.data(), bytes.data(), list_bytes);
      bytes.remove_prefix(list_bytes);
    }
    if (!sets->emplace(key, std::make_shared<const KeyScores>(std::move(scores))).second)
      return damaged;
  }
  return absl::OkStatus();
}

}  // namespace vericache
