// Lists of draft specs on the command line: "int4,verify:0.25,window=8+int4,sink:0.1".
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace vericache::cli {

// Canonical specs, each once, in the order given. A part with "=" goes on with the spec before it.
// ERRORS: kInvalidArgument: a bad spec, "off", or none at all.
absl::Status ParseSpecList(const std::string& text, std::vector<std::string>* specs);

}  // namespace vericache::cli
