#include "cli/prefix_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/errors.h"
#include "cli/progress.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownIdDigits = 12;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// "3 d", "5 h", "12 min", "40 s".
std::string Age(int64_t seconds) {
  if (seconds >= 172800) return fmt::format("{} d", seconds / 86400);
  if (seconds >= 7200) return fmt::format("{} h", seconds / 3600);
  if (seconds >= 120) return fmt::format("{} min", seconds / 60);
  return fmt::format("{} s", seconds);
}

Json ToJson(const StoredPrefix& prefix) {
  Json drafts = Json::array();
  for (const StoredDraft& draft : prefix.drafts)
    drafts.push_back(
        {{"draft", draft.spec}, {"num_tokens", draft.num_tokens}, {"num_bytes", draft.num_bytes}});
  return {{"id", prefix.id},
          {"label", prefix.label},
          {"model", prefix.model_name},
          {"model_sha256", prefix.model_digest},
          {"kv_format", prefix.kv_format},
          {"num_tokens", prefix.num_tokens},
          {"full_bytes", prefix.full_bytes},
          {"drafts", std::move(drafts)},
          {"created_s", prefix.created_s},
          {"age_s", prefix.age_s},
          {"stores", prefix.tiers}};
}

std::string Drafts(const StoredPrefix& prefix) {
  std::string text;
  for (const StoredDraft& draft : prefix.drafts)
    text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", OneLine(draft.spec),
                        FormatBytes(draft.num_bytes));
  return text.empty() ? "-" : text;
}

std::string Line(const StoredPrefix& prefix) {
  const std::string label = prefix.label.empty() ? "" : "  " + OneLine(prefix.label);
  return fmt::format(
      "{}  {:>8} tokens  {:>10}  {:>7}  {}  drafts: {}{}\n", prefix.id.substr(0, kShownIdDigits),
      prefix.num_tokens, FormatBytes(prefix.full_bytes), Age(prefix.age_s),
      OneLine(prefix.model_name.empty() ? prefix.model_digest.substr(0, 12) : prefix.model_name),
      Drafts(prefix), label);
}

}  // namespace

std::string PrefixListJson(const std::vector<StoredPrefix>& prefixes) {
  Json list = Json::array();
  for (const StoredPrefix& prefix : prefixes) list.push_back(ToJson(prefix));
  return Dump({{"prefixes", std::move(list)}});
}

std::string PrefixListText(const std::vector<StoredPrefix>& prefixes) {
  std::string text;
  for (const StoredPrefix& prefix : prefixes) text += Line(prefix);
  return text.empty() ? "no prefixes\n" : text;
}

std::string PrefixStatJson(const std::vector<PrefixTier>& tiers) {
  Json list = Json::array();
  for (const PrefixTier& tier : tiers)
    list.push_back({{"store", tier.name},
                    {"num_prefixes", tier.num_prefixes},
                    {"num_blobs", tier.num_blobs},
                    {"num_bytes", tier.num_bytes},
                    {"unlisted_blobs", tier.unlisted_blobs},
                    {"unlisted_bytes", tier.unlisted_bytes},
                    {"error", tier.error.empty() ? Json() : Json(tier.error)}});
  return Dump({{"stores", std::move(list)}});
}

std::string PrefixStatText(const std::vector<PrefixTier>& tiers) {
  std::string text;
  for (const PrefixTier& tier : tiers) {
    text += fmt::format("{}: {} prefixes, {} in {} blobs; in no prefix's list: {} in {} blobs\n",
                        OneLine(tier.name), tier.num_prefixes, FormatBytes(tier.num_bytes),
                        tier.num_blobs, FormatBytes(tier.unlisted_bytes), tier.unlisted_blobs);
    if (!tier.error.empty()) text += fmt::format("  not all: {}\n", OneLine(tier.error));
  }
  return text;
}

std::string PrefixRemovalJson(const PrefixRemoval& removal, bool dry_run) {
  Json list = Json::array();
  for (const StoredPrefix& prefix : removal.prefixes) list.push_back(ToJson(prefix));
  return Dump({{"dry_run", dry_run},
               {"prefixes", std::move(list)},
               {"num_blobs", removal.num_blobs},
               {"num_bytes", removal.num_bytes}});
}

std::string PrefixRemovalText(const PrefixRemoval& removal, bool dry_run) {
  std::string text;
  for (const StoredPrefix& prefix : removal.prefixes) text += Line(prefix);
  return text + fmt::format("{} {} prefixes, {} in {} blobs that no other prefix needs\n",
                            dry_run ? "would remove" : "removed", removal.prefixes.size(),
                            FormatBytes(removal.num_bytes), removal.num_blobs);
}

std::string PrefixCheckJson(const std::vector<PrefixCheckTier>& tiers) {
  Json list = Json::array();
  for (const PrefixCheckTier& tier : tiers)
    list.push_back({{"store", tier.name},
                    {"num_blobs", tier.num_blobs},
                    {"sound", tier.sound},
                    {"damaged", tier.damaged},
                    {"num_bytes", tier.num_bytes},
                    {"incomplete_prefixes", tier.incomplete_prefixes},
                    {"repaired", tier.repaired},
                    {"error", tier.error.empty() ? Json() : Json(tier.error)}});
  return Dump({{"stores", std::move(list)}});
}

std::string PrefixCheckText(const std::vector<PrefixCheckTier>& tiers) {
  std::string text;
  for (const PrefixCheckTier& tier : tiers) {
    text += fmt::format("{}: {} of {} blobs are sound ({}), {} damaged, {} prefixes incomplete{}\n",
                        OneLine(tier.name), tier.sound, tier.num_blobs, FormatBytes(tier.num_bytes),
                        tier.damaged, tier.incomplete_prefixes,
                        tier.repaired > 0 ? fmt::format("; {} removed", tier.repaired) : "");
    if (!tier.error.empty()) text += fmt::format("  not all: {}\n", OneLine(tier.error));
  }
  return text;
}

std::string PrefixPushJson(const PrefixPushReport& report) {
  Json drafts = Json::array();
  for (const auto& [spec, bytes] : report.drafts)
    drafts.push_back({{"draft", spec}, {"num_bytes", bytes}});
  return Dump({{"prompt_tokens", report.prompt_tokens},
               {"stored_tokens", report.stored_tokens},
               {"cached_tokens", report.cached_tokens},
               {"full_bytes", report.full_bytes},
               {"drafts", std::move(drafts)}});
}

std::string PrefixPushText(const PrefixPushReport& report) {
  std::string text =
      fmt::format("stored {} of {} prompt tokens (whole blocks), {} of full KV\n",
                  report.stored_tokens, report.prompt_tokens, FormatBytes(report.full_bytes));
  for (const auto& [spec, bytes] : report.drafts)
    text += fmt::format("stored draft KV {}, {}\n", spec, FormatBytes(bytes));
  return text;
}

}  // namespace vericache::cli
