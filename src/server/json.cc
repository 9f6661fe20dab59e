#include "server/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace vericache::server {

absl::StatusOr<Json> ParseBody(std::string_view text) {
  bool too_deep = false;
  const auto limit_depth = [&too_deep](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > kJsonDepthMax;
    return depth <= kJsonDepthMax;
  };
  try {
    Json body = Json::parse(text, limit_depth);
    if (too_deep)
      return absl::InvalidArgumentError(
          fmt::format("the JSON is nested more than {} levels deep", kJsonDepthMax));
    if (!body.is_object()) return absl::InvalidArgumentError("the body must be a JSON object");
    return body;
  } catch (const Json::parse_error& error) {
    return absl::InvalidArgumentError(
        fmt::format("the body is not JSON in UTF-8: error at byte {}", error.byte));
  } catch (const Json::out_of_range&) {
    // The parser's word for 1e999; anything it throws must end here.
    return absl::InvalidArgumentError("the body has a number that no double holds");
  }
}

absl::StatusOr<OrderedJson> ParseOrdered(std::string_view text,
                                         const std::vector<std::string_view>& keys) {
  using Event = OrderedJson::parse_event_t;
  // By depth, since the parser tells nothing of the end of what is left out.
  std::vector<size_t> num_keys(kJsonDepthMax + 2);
  bool too_many = false, wanted = false;
  const auto choose = [&](int depth, Event event, OrderedJson& parsed) {
    if (depth > kJsonDepthMax) return false;
    if (event == Event::object_start) num_keys[depth + 1] = 0;
    if (event != Event::key) return true;
    if (depth == 1)
      wanted =
          std::find(keys.begin(), keys.end(), parsed.get_ref<const std::string&>()) != keys.end();
    too_many |= wanted && ++num_keys[depth] > kOrderedKeysMax;
    return wanted && !too_many;
  };
  OrderedJson chosen = OrderedJson::parse(text, choose, /*allow_exceptions=*/false);
  if (too_many)
    return absl::InvalidArgumentError(
        fmt::format("an object of the JSON has more than {} keys", kOrderedKeysMax));
  if (!chosen.is_object()) return absl::InvalidArgumentError("the body must be a JSON object");
  return chosen;
}

double ShortDouble(float value) {
  const double shortest = std::strtod(fmt::format("{}", value).c_str(), nullptr);
  return static_cast<float>(shortest) == value ? shortest : static_cast<double>(value);
}

}  // namespace vericache::server
