// Reads members of a JSON object with their type and range; null is as good as none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "server/json.h"

namespace vericache::server {

// Every method leaves `*value` alone where the member is missing or null.
// ERRORS: kInvalidArgument naming the field (BadField).
class Fields {
 public:
  // prefix: in front of names in errors, such as "vericache.". `object` must outlive *this.
  explicit Fields(const Json& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // null if the member is missing or null.
  const Json* Find(std::string_view key) const;
  absl::Status Flag(std::string_view key, bool* value) const;
  // 5 and 5.0, within [min, max].
  absl::Status Integer(std::string_view key, int64_t min, int64_t max, int64_t* value) const;
  absl::Status Integer(std::string_view key, int min, int max, int* value) const;
  absl::Status Unsigned(std::string_view key, uint64_t* value) const;
  // Within [min, max].
  absl::Status Real(std::string_view key, float min, float max, float* value) const;
  absl::Status Text(std::string_view key, size_t size_max, std::string* value) const;
  // An error about the member: "'prefix.key' must be ...".
  absl::Status Bad(std::string_view key, std::string_view message) const;

 private:
  const Json& object_;
  const std::string prefix_;
};

}  // namespace vericache::server
