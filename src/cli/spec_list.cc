#include "cli/spec_list.h"

#include <algorithm>

#include "base/status_macros.h"
#include "base/text.h"
#include "vericache/engine.h"

namespace vericache::cli {

absl::Status ParseSpecList(const std::string& text, std::vector<std::string>* specs) {
  std::vector<std::string> given;
  for (const std::string_view part : Split(text, ',')) {
    if (part.find('=') != part.npos && !given.empty()) {
      given.back() += "," + std::string(part);
    } else {
      given.emplace_back(part);
    }
  }
  specs->clear();
  for (const std::string& spec : given) {
    VC_ASSIGN_OR_RETURN(const std::string canonical, CanonicalDraftSpec(spec));
    if (canonical == "off") return absl::InvalidArgumentError("'off' drafts nothing");
    if (std::find(specs->begin(), specs->end(), canonical) == specs->end())
      specs->push_back(canonical);
  }
  return absl::OkStatus();
}

}  // namespace vericache::cli
