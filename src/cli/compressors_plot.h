// Run length over kept_fraction as an SVG file: the paper's motivation figure on the user's data.
#pragma once

#include <string>

#include "cli/compressors.h"

namespace vericache::cli {

// One panel for each kind of prompt, one point for each spec; both axes are logarithmic. Up and to
// the left is better. A whole SVG document.
std::string CompressorsPlot(const CompressorsReport& report);

}  // namespace vericache::cli
