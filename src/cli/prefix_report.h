// What `vericache prefix` prints, as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "vericache/prefixes.h"
#include "vericache/stats.h"

namespace vericache::cli {

// JSON: one line without line break. Text: lines, each with its line break.
std::string PrefixListJson(const std::vector<StoredPrefix>& prefixes);
std::string PrefixListText(const std::vector<StoredPrefix>& prefixes);
std::string PrefixStatJson(const std::vector<PrefixTier>& tiers);
std::string PrefixStatText(const std::vector<PrefixTier>& tiers);
std::string PrefixRemovalJson(const PrefixRemoval& removal, bool dry_run);
std::string PrefixRemovalText(const PrefixRemoval& removal, bool dry_run);
std::string PrefixCheckJson(const std::vector<PrefixCheckTier>& tiers);
std::string PrefixCheckText(const std::vector<PrefixCheckTier>& tiers);
std::string PrefixPushJson(const PrefixPushReport& report);
std::string PrefixPushText(const PrefixPushReport& report);

}  // namespace vericache::cli
