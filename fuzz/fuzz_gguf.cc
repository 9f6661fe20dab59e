// Any bytes as a model file: refused with one line, or readable to the last byte.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "gguf/reader.h"
#include "gguf/test_util.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = vericache::GgufFile::FromMemory(absl::MakeConstSpan(data, size), "m.gguf");
  if (!file.ok()) {
    VC_CHECK(file.status().message().find('\n') == absl::string_view::npos);
    VC_CHECK(file.status().message().size() < 1000);
    return 0;
  }
  volatile uint64_t sum = vericache::TouchEverything(**file);  // keeps the reads alive
  (void)sum;
  return 0;
}
