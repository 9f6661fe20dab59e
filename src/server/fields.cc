#include "server/fields.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "server/api_error.h"

namespace vericache::server {

absl::Status Fields::Bad(std::string_view key, std::string_view message) const {
  return BadField(prefix_ + std::string(key), message);
}

const Json* Fields::Find(std::string_view key) const {
  const auto it = object_.find(std::string(key));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

absl::Status Fields::Flag(std::string_view key, bool* value) const {
  const Json* json = Find(key);
  if (json == nullptr) return absl::OkStatus();
  if (!json->is_boolean()) return Bad(key, "must be true or false");
  *value = json->get<bool>();
  return absl::OkStatus();
}

absl::Status Fields::Integer(std::string_view key, int64_t min, int64_t max, int64_t* value) const {
  const Json* json = Find(key);
  if (json == nullptr) return absl::OkStatus();
  const absl::Status bad = Bad(key, fmt::format("must be a whole number from {} to {}", min, max));
  int64_t number = 0;
  if (json->is_number_float()) {
    const double real = json->get<double>();
    if (!(std::fabs(real) < 0x1p53) || real != std::floor(real)) return bad;
    number = static_cast<int64_t>(real);
  } else if (!json->is_number_integer() ||
             (json->is_number_unsigned() &&
              json->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))) {
    return bad;
  } else {
    number = json->get<int64_t>();
  }
  if (number < min || number > max) return bad;
  *value = number;
  return absl::OkStatus();
}

absl::Status Fields::Integer(std::string_view key, int min, int max, int* value) const {
  int64_t number = *value;
  VC_RETURN_IF_ERROR(Integer(key, int64_t{min}, int64_t{max}, &number));
  *value = static_cast<int>(number);
  return absl::OkStatus();
}

absl::Status Fields::Unsigned(std::string_view key, uint64_t* value) const {
  const Json* json = Find(key);
  if (json == nullptr) return absl::OkStatus();
  if (!json->is_number_unsigned())
    return Bad(key, "must be a whole number from 0 to 18446744073709551615");
  *value = json->get<uint64_t>();
  return absl::OkStatus();
}

absl::Status Fields::Real(std::string_view key, float min, float max, float* value) const {
  const Json* json = Find(key);
  if (json == nullptr) return absl::OkStatus();
  const double number =
      json->is_number() ? json->get<double>() : std::numeric_limits<double>::quiet_NaN();
  if (!(number >= min && number <= max))
    return Bad(key, fmt::format("must be a number from {} to {}", min, max));
  *value = static_cast<float>(number);
  return absl::OkStatus();
}

absl::Status Fields::Text(std::string_view key, size_t size_max, std::string* value) const {
  const Json* json = Find(key);
  if (json == nullptr) return absl::OkStatus();
  if (!json->is_string()) return Bad(key, "must be a text");
  const std::string& text = json->get_ref<const std::string&>();
  if (text.size() > size_max) return Bad(key, fmt::format("has more than {} bytes", size_max));
  *value = text;
  return absl::OkStatus();
}

}  // namespace vericache::server
