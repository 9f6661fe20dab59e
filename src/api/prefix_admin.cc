#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"
#include "kv/prefix_record.h"
#include "remote/open_store.h"
#include "remote/store_url.h"
#include "storage/blob_store.h"
#include "vericache/prefixes.h"

namespace vericache {
namespace {

constexpr size_t kKeysAtOnce = 64;
constexpr size_t kLeastIdDigits = 4;
constexpr size_t kIdDigits = 64;

struct Found {
  PrefixRecord record;
  BlobKey key{};
  int64_t age_s = -1;
  std::vector<std::string> tiers;
};
using FoundMap = std::map<BlobKey, Found>;

// Names of all blobs of a prefix, its record apart.
std::vector<BlobKey> BlobsOf(const PrefixRecord& record) {
  std::vector<BlobKey> keys = record.blocks;
  keys.insert(keys.end(), record.scores.begin(), record.scores.end());
  for (const PrefixRecord::Draft& draft : record.drafts) keys.push_back(draft.key);
  return keys;
}

// The records of one store, put into `all`. A record that cannot be read is passed over.
absl::Status ReadRecords(BlobStore* store, FoundMap* all) {
  std::vector<BlobInfo> infos;
  VC_RETURN_IF_ERROR(store->List(kPrefixRecordHex, [&](const BlobInfo& info) {
    infos.push_back(info);
    return true;
  }));
  std::vector<BlobKey> keys;
  for (const BlobInfo& info : infos) keys.push_back(info.key);
  absl::Status status;
  for (size_t begin = 0; begin < keys.size(); begin += kKeysAtOnce) {
    const auto window = absl::MakeConstSpan(keys).subspan(begin, kKeysAtOnce);
    store->GetMany(window, kNoDeadline, [&](size_t idx, absl::StatusOr<BlobBytes> blob) {
      if (!blob.ok() && !absl::IsNotFound(blob.status())) status = blob.status();
      if (!blob.ok()) return true;
      absl::StatusOr<PrefixRecord> record = ParsePrefixRecord({blob->data(), blob->size()});
      if (!record.ok() || PrefixRecordKey(record->blocks.back()) != window[idx]) return true;
      Found& found = (*all)[window[idx]];
      if (found.tiers.empty())
        found.record = *std::move(record);
      else
        found.record = MergedPrefixRecord(*record, std::move(found.record));
      found.key = window[idx];
      found.tiers.push_back(store->Name());
      const int64_t age_s = infos[begin + idx].age_s;
      if (age_s >= 0 && (found.age_s < 0 || age_s < found.age_s)) found.age_s = age_s;
      return true;
    });
    VC_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

StoredPrefix ToPublic(const Found& found) {
  const PrefixRecord& r = found.record;
  StoredPrefix prefix;
  prefix.id = HexOf(r.blocks.back());
  prefix.model_name = r.model_name;
  prefix.model_digest = r.model_digest;
  prefix.kv_format = r.kv_format;
  prefix.label = r.label;
  prefix.num_tokens = r.num_tokens;
  prefix.full_bytes = r.block_bytes * r.blocks.size();
  for (const PrefixRecord::Draft& draft : r.drafts)
    prefix.drafts.push_back({draft.spec, draft.num_tokens, draft.num_bytes});
  prefix.created_s = r.created_s;
  const int64_t since = std::max<int64_t>(0, std::time(nullptr) - r.created_s);
  prefix.age_s = found.age_s >= 0 ? std::min(found.age_s, since) : since;
  prefix.tiers = found.tiers;
  return prefix;
}

bool Fits(const StoredPrefix& prefix, const PrefixFilter& filter) {
  if (!filter.ids.empty() &&
      std::none_of(filter.ids.begin(), filter.ids.end(),
                   [&](const std::string& id) { return prefix.id.starts_with(id); }))
    return false;
  if (!filter.model.empty() && prefix.model_name != filter.model &&
      !(filter.model.size() >= kLeastIdDigits && prefix.model_digest.starts_with(filter.model)))
    return false;
  return filter.older_than_s < 0 || prefix.age_s >= filter.older_than_s;
}

absl::Status CheckFilter(const PrefixFilter& filter, const std::vector<StoredPrefix>& all) {
  if (filter.ids.empty() && filter.model.empty() && filter.older_than_s < 0 && !filter.everything)
    return absl::InvalidArgumentError("say which prefixes: ids, a model, an age, or all of them");
  for (const std::string& id : filter.ids) {
    if (id.size() < kLeastIdDigits || id.size() > kIdDigits)
      return absl::InvalidArgumentError(
          StrCat("'", id, "' is not the beginning of an id: give 4 to 64 of its digits"));
    const auto count =
        std::count_if(all.begin(), all.end(), [&](const auto& p) { return p.id.starts_with(id); });
    if (count != 1)
      return absl::InvalidArgumentError(StrCat(count == 0 ? "no prefix" : "more than one prefix",
                                               " has an id that begins with ", id));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPrefixStore(std::string_view store) { return CheckStores(store); }
std::string PrefixStoreName(std::string_view store) { return RedactedStoreList(store); }

struct PrefixAdmin::Impl {
  std::vector<std::unique_ptr<BlobStore>> tiers;
  bool read_only = true;

  // ERRORS: no tier answers.
  absl::StatusOr<FoundMap> ReadAll() {
    FoundMap all;
    absl::Status status;
    bool some = false;
    for (const auto& tier : tiers) {
      absl::Status of_tier = ReadRecords(tier.get(), &all);
      some |= of_tier.ok();
      if (!of_tier.ok()) status = std::move(of_tier);
    }
    if (!some) return status;
    return all;
  }
  PrefixTier StatOf(BlobStore* tier);
  PrefixCheckTier CheckTier(BlobStore* tier, Checking checking, uint64_t before, uint64_t total,
                            const Progress& progress);
};

PrefixAdmin::PrefixAdmin(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PrefixAdmin::~PrefixAdmin() = default;

absl::StatusOr<std::unique_ptr<PrefixAdmin>> PrefixAdmin::Open(const PrefixStoreOptions& options) {
  auto impl = std::make_unique<Impl>();
  impl->read_only = options.read_only;
  StoreOptions store;
  store.read_only = options.read_only;
  store.environment = options.environment;
  store.on_notice = options.on_notice;
  // Each by itself: a near tier must not hide what a far one has.
  for (std::string_view one : Split(options.store, ',')) {
    VC_ASSIGN_OR_RETURN(std::unique_ptr<BlobStore> tier, OpenStore(one, store));
    impl->tiers.push_back(std::move(tier));
  }
  return std::unique_ptr<PrefixAdmin>(new PrefixAdmin(std::move(impl)));
}

absl::StatusOr<std::vector<StoredPrefix>> PrefixAdmin::List() {
  VC_ASSIGN_OR_RETURN(const FoundMap all, impl_->ReadAll());
  std::vector<StoredPrefix> prefixes;
  for (const auto& [key, found] : all) prefixes.push_back(ToPublic(found));
  std::stable_sort(prefixes.begin(), prefixes.end(),
                   [](const auto& a, const auto& b) { return a.created_s > b.created_s; });
  return prefixes;
}

PrefixTier PrefixAdmin::Impl::StatOf(BlobStore* tier) {
  PrefixTier stat;
  stat.name = tier->Name();
  FoundMap records;
  absl::Status status = ReadRecords(tier, &records);
  std::set<BlobKey> named;
  for (const auto& [key, found] : records)
    for (const BlobKey& blob : BlobsOf(found.record)) named.insert(blob);
  stat.num_prefixes = static_cast<int64_t>(records.size());
  if (status.ok()) {
    status = tier->List("", [&](const BlobInfo& info) {
      ++stat.num_blobs;
      stat.num_bytes += info.num_bytes;
      if (named.contains(info.key) || records.contains(info.key)) return true;
      ++stat.unlisted_blobs;
      stat.unlisted_bytes += info.num_bytes;
      return true;
    });
  }
  stat.error = std::string(status.message());
  return stat;
}

std::vector<PrefixTier> PrefixAdmin::Stat() {
  std::vector<PrefixTier> stats;
  for (const auto& tier : impl_->tiers) stats.push_back(impl_->StatOf(tier.get()));
  return stats;
}

absl::StatusOr<PrefixRemoval> PrefixAdmin::Remove(const PrefixFilter& filter, Removing removing) {
  if (removing == Removing::kReally && impl_->read_only)
    return absl::FailedPreconditionError("the prefix store is read only");
  VC_ASSIGN_OR_RETURN(const FoundMap all, impl_->ReadAll());
  std::vector<StoredPrefix> prefixes;
  for (const auto& [key, found] : all) prefixes.push_back(ToPublic(found));
  VC_RETURN_IF_ERROR(CheckFilter(filter, prefixes));
  PrefixRemoval removal;
  std::set<BlobKey> needed, records;
  std::map<BlobKey, uint64_t> unneeded;
  size_t next = 0;
  for (const auto& [key, found] : all) {
    const StoredPrefix& prefix = prefixes[next++];
    const bool goes = Fits(prefix, filter);
    const PrefixRecord& r = found.record;
    if (!goes) {
      for (const BlobKey& blob : BlobsOf(r)) needed.insert(blob);
      continue;
    }
    removal.prefixes.push_back(prefix);
    records.insert(key);
    for (const BlobKey& blob : r.blocks) unneeded[blob] = r.block_bytes;
    for (const BlobKey& blob : r.scores) unneeded.emplace(blob, 0);
    for (const PrefixRecord::Draft& draft : r.drafts) unneeded[draft.key] = draft.num_bytes;
  }
  for (const BlobKey& blob : needed) unneeded.erase(blob);
  for (const auto& [key, bytes] : unneeded) removal.num_bytes += bytes;
  removal.num_blobs = static_cast<int64_t>(unneeded.size());
  if (removing == Removing::kDryRun) return removal;
  for (const auto& tier : impl_->tiers) {
    // Records last: what is interrupted can be removed by another call.
    for (const auto& [key, bytes] : unneeded) VC_RETURN_IF_ERROR(tier->Remove(key));
    for (const BlobKey& key : records) VC_RETURN_IF_ERROR(tier->Remove(key));
  }
  return removal;
}

PrefixCheckTier PrefixAdmin::Impl::CheckTier(BlobStore* tier, Checking checking, uint64_t before,
                                             uint64_t total, const Progress& progress) {
  PrefixCheckTier check;
  check.name = tier->Name();
  std::vector<BlobKey> keys;
  FoundMap records;
  absl::Status status = tier->List("", [&](const BlobInfo& info) {
    keys.push_back(info.key);
    return true;
  });
  if (status.ok()) status = ReadRecords(tier, &records);
  std::set<BlobKey> sound;
  std::vector<BlobKey> bad;
  for (size_t begin = 0; begin < keys.size() && status.ok(); begin += kKeysAtOnce) {
    const auto window = absl::MakeConstSpan(keys).subspan(begin, kKeysAtOnce);
    tier->GetMany(window, kNoDeadline, [&](size_t idx, absl::StatusOr<BlobBytes> blob) {
      if (!blob.ok() && !absl::IsNotFound(blob.status())) status = blob.status();
      if (!status.ok()) return false;
      ++check.num_blobs;
      if (blob.ok()) sound.insert(window[idx]);
      if (!blob.ok()) bad.push_back(window[idx]);
      check.num_bytes += blob.ok() ? blob->size() : 0;
      if (progress) progress(before + check.num_bytes, total);
      return true;
    });
  }
  check.sound = static_cast<int64_t>(sound.size());
  check.damaged = static_cast<int64_t>(bad.size());
  for (const auto& [key, found] : records) {
    const std::vector<BlobKey> blobs = BlobsOf(found.record);
    if (!status.ok() || std::all_of(blobs.begin(), blobs.end(),
                                    [&](const BlobKey& blob) { return sound.contains(blob); }))
      continue;
    ++check.incomplete_prefixes;
    bad.push_back(key);
  }
  for (const BlobKey& key : bad) {
    if (checking != Checking::kRepair || !status.ok()) break;
    status = tier->Remove(key);
    check.repaired += status.ok();
  }
  check.error = std::string(status.message());
  return check;
}

std::vector<PrefixCheckTier> PrefixAdmin::Check(Checking checking, const Progress& progress) {
  uint64_t total = 0;
  for (const auto& tier : impl_->tiers)
    (void)tier->List("", [&](const BlobInfo& info) { return total += info.num_bytes, true; });
  std::vector<PrefixCheckTier> checks;
  uint64_t before = 0;
  for (const auto& tier : impl_->tiers) {
    checks.push_back(impl_->CheckTier(tier.get(), checking, before, total, progress));
    before += checks.back().num_bytes;
  }
  return checks;
}

}  // namespace vericache
