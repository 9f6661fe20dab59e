// JSON from strangers: parsed with limits, read field by field with errors that name the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vericache::server {

// Keeps the order of keys: what templates print and what clients get. Finding a key is linear.
using OrderedJson = nlohmann::ordered_json;
// Sorted keys: safe for objects of any size.
using Json = nlohmann::json;

// Far above any schema of a tool; deeper input would only serve to exhaust somebody's stack.
inline constexpr int kJsonDepthMax = 200;
// Keys of one object of OrderedJson, whose insertion is linear.
inline constexpr size_t kOrderedKeysMax = 4096;

// The body of a request. Of equal keys the last one counts. ERRORS: kInvalidArgument: no UTF-8, no
// JSON (with the offset), no object, too deep.
absl::StatusOr<Json> ParseBody(std::string_view text);
// Members `keys` of an object that ParseBody() has taken, in the order they were written.
absl::StatusOr<OrderedJson> ParseOrdered(std::string_view text,
                                         const std::vector<std::string_view>& keys);

// On one line; what is no UTF-8 becomes U+FFFD.
template <typename AnyJson>
std::string Dump(const AnyJson& json) {
  return json.dump(-1, ' ', false, AnyJson::error_handler_t::replace);
}

// The floats of logprobs as short as they can be: -0.1 and not -0.10000000149011612.
double ShortDouble(float value);

}  // namespace vericache::server
