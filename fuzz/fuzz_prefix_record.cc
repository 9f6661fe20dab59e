// Any bytes as the record of a stored prefix: refused, or a record that encodes to the same bytes.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kv/prefix_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto record = vericache::ParsePrefixRecord({data, size});
  if (!record.ok()) return 0;
  const std::string again = vericache::EncodePrefixRecord(*record);
  VC_CHECK(again.size() == size && std::memcmp(again.data(), data, size) == 0);
  return 0;
}
