// Says what a file is that is not a GGUF, from its first bytes, and what to do about it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace vericache {

// One line, to be put after the path: "is a zip archive, not a GGUF model: unpack it ...".
std::string DescribeNonGguf(absl::Span<const uint8_t> bytes);

}  // namespace vericache
