#include "remote/tiered_store.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/text.h"

namespace vericache {
namespace {

Deadline ShareOf(Deadline deadline, bool last) {
  if (last || deadline == kNoDeadline) return deadline;
  const Deadline now = std::chrono::steady_clock::now();
  return now < deadline ? now + (deadline - now) / 2 : deadline;
}

}  // namespace

TieredStore::TieredStore(std::vector<std::unique_ptr<BlobStore>> tiers, WriteBack write_back)
    : tiers_(std::move(tiers)), write_back_(write_back) {
  VC_CHECK(!tiers_.empty());
  if (write_back_ == WriteBack::kOn && tiers_.size() > 1) thread_ = std::thread([this] { Loop(); });
}

TieredStore::~TieredStore() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void TieredStore::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stop_ || !copies_.empty(); });
    if (copies_.empty()) return;
    const Copy copy = std::move(copies_.front());
    copies_.pop_front();
    busy_ = true;
    lock.unlock();
    // A full or broken nearer tier costs its hits, nothing else.
    for (size_t i = 0; i < copy.num_tiers; ++i)
      if (!tiers_[i]->Contains(copy.key)) (void)tiers_[i]->Put(copy.key, {copy.bytes});
    lock.lock();
    copies_bytes_ -= copy.bytes.size();
    busy_ = false;
    if (copies_.empty()) idle_.notify_all();
  }
}

void TieredStore::WaitForWriteBack() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return copies_.empty() && !busy_; });
}

void TieredStore::WriteBackTo(size_t num_tiers, const BlobKey& key, const BlobBytes& blob) {
  if (num_tiers == 0 || !thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    if (copies_bytes_ + blob.size() > kMaxWriteBackBytes) return;
    copies_bytes_ += blob.size();
    copies_.push_back(
        {key, std::string(reinterpret_cast<const char*>(blob.data()), blob.size()), num_tiers});
  }
  wake_.notify_one();
}

absl::Status TieredStore::Put(const BlobKey& key, absl::Span<const std::string_view> parts) {
  absl::Status error;
  bool stored = false;
  for (const auto& tier : tiers_) {
    absl::Status status = tier->Put(key, parts);
    stored |= status.ok();
    if (!status.ok()) error = std::move(status);
  }
  return stored ? absl::OkStatus() : error;
}

absl::StatusOr<BlobBytes> TieredStore::Get(const BlobKey& key, Deadline deadline) {
  absl::Status error = absl::NotFoundError("no such blob");
  for (size_t i = 0; i < tiers_.size(); ++i) {
    absl::StatusOr<BlobBytes> blob = tiers_[i]->Get(key, ShareOf(deadline, i + 1 == tiers_.size()));
    if (blob.ok()) {
      WriteBackTo(i, key, *blob);
      return blob;
    }
    if (!absl::IsNotFound(blob.status())) error = blob.status();
  }
  return error;
}

// Runs of blobs from one tier: where the nearest ends the next goes on, and each run begins with
// the nearest again.
void TieredStore::GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) {
  size_t next = 0;
  bool wanted = true;
  while (wanted && next < keys.size()) {
    absl::Status error = absl::NotFoundError("no such blob");
    const size_t begin = next;
    for (size_t i = 0; i < tiers_.size() && wanted && next == begin; ++i) {
      tiers_[i]->GetMany(keys.subspan(begin), ShareOf(deadline, i + 1 == tiers_.size()),
                         [&](size_t idx, absl::StatusOr<BlobBytes> blob) {
                           if (!blob.ok()) {
                             if (!absl::IsNotFound(blob.status())) error = blob.status();
                             return false;
                           }
                           WriteBackTo(i, keys[begin + idx], *blob);
                           next = begin + idx + 1;
                           return wanted = sink(begin + idx, std::move(blob));
                         });
    }
    if (wanted && next == begin) wanted = sink(next++, error);
  }
}

absl::StatusOr<int64_t> TieredStore::CountPresent(absl::Span<const BlobKey> keys,
                                                  Deadline deadline) {
  int64_t count = 0;
  absl::Status error;
  for (bool grew = true; grew && count < static_cast<int64_t>(keys.size());) {
    grew = false;
    for (size_t i = 0; i < tiers_.size() && count < static_cast<int64_t>(keys.size()); ++i) {
      const absl::StatusOr<int64_t> more =
          tiers_[i]->CountPresent(keys.subspan(count), ShareOf(deadline, i + 1 == tiers_.size()));
      if (!more.ok()) error = more.status();
      // The second time round a failing tier would cost its time again.
      if (more.value_or(0) > 0) grew = error.ok(), count += *more;
    }
  }
  if (count == 0 && !error.ok()) return error;
  return count;
}

// A nearer tier's find leaves only what comes before it to be asked of the others.
absl::StatusOr<size_t> TieredStore::FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) {
  size_t first = keys.size();
  absl::Status error;
  for (size_t i = 0; i < tiers_.size() && first > 0; ++i) {
    const absl::StatusOr<size_t> of_tier =
        tiers_[i]->FindFirst(keys.first(first), ShareOf(deadline, i + 1 == tiers_.size()));
    if (!of_tier.ok()) error = of_tier.status();
    first = of_tier.value_or(first);
  }
  if (first == keys.size() && !error.ok()) return error;
  return first;
}

bool TieredStore::ContainsEverywhere(const BlobKey& key) {
  for (const auto& tier : tiers_)
    if (!tier->Contains(key)) return false;
  return true;
}

absl::Status TieredStore::Remove(const BlobKey& key) {
  absl::Status status;
  for (const auto& tier : tiers_)
    if (absl::Status of_tier = tier->Remove(key); !of_tier.ok()) status = std::move(of_tier);
  return status;
}

void TieredStore::Touch(absl::Span<const BlobKey> keys) {
  for (const auto& tier : tiers_) tier->Touch(keys);
}

void TieredStore::BeginRecord(absl::Span<const BlobKey> keys) {
  for (const auto& tier : tiers_) tier->BeginRecord(keys);
}

void TieredStore::EndRecord() {
  for (const auto& tier : tiers_) tier->EndRecord();
}

absl::Status TieredStore::List(std::string_view hex_prefix,
                               const std::function<bool(const BlobInfo&)>& visit) {
  std::set<BlobKey> seen;
  absl::Status status;
  bool wanted = true;
  for (const auto& tier : tiers_) {
    if (!wanted) break;
    absl::Status of_tier = tier->List(hex_prefix, [&](const BlobInfo& info) {
      if (seen.insert(info.key).second) wanted = visit(info);
      return wanted;
    });
    if (!of_tier.ok()) status = std::move(of_tier);
  }
  return status;
}

std::vector<NamedStoreStats> TieredStore::TierStats() {
  std::vector<NamedStoreStats> all;
  for (const auto& tier : tiers_)
    for (NamedStoreStats& stats : tier->TierStats()) all.push_back(std::move(stats));
  return all;
}

BlobStoreStats TieredStore::Stats() {
  BlobStoreStats sum;
  for (const auto& tier : tiers_) sum.Add(tier->Stats());
  return sum;
}

StoreLink TieredStore::Link() {
  StoreLink all;
  for (const auto& tier : tiers_) {
    const StoreLink link = tier->Link();
    all.is_remote |= link.is_remote;
    if (link.bytes_per_s > 0 && (all.bytes_per_s == 0 || link.bytes_per_s < all.bytes_per_s))
      all.bytes_per_s = link.bytes_per_s;
    all.round_trip_s = std::max(all.round_trip_s, link.round_trip_s);
    all.least_wait_s = std::max(all.least_wait_s, link.least_wait_s);
  }
  return all;
}

std::string TieredStore::Name() const {
  std::string names;
  for (const auto& tier : tiers_) names += (names.empty() ? "" : ", ") + tier->Name();
  return names;
}

}  // namespace vericache
