#include "scheduler/stagger.h"

#include <algorithm>

#include "base/check.h"

namespace vericache {
namespace {

// A pass may wait for the link this share of its length before the slot counts as unfit: the
// predictions are no better.
constexpr double kStallTolerance = 0.05;
// A second in which a pass waits for the link holds up everybody; a second in which a request waits
// for its slot only itself.
constexpr double kStallWeight = 16;

}  // namespace

StaggerRings::StaggerRings(int64_t staging_bytes, int64_t max_pass_rows)
    : staging_bytes_(staging_bytes), max_pass_rows_(max_pass_rows), slots_(kSlots) {}

void StaggerRings::SetRates(double draft_pass_s, double link_bytes_per_s) {
  draft_pass_s_ = std::max(draft_pass_s, 1e-9);
  link_bytes_per_s_ = std::max(link_bytes_per_s, 1.0);
}

// Fills an entry for a verification at `slot`, nullopt if it does not fit. With `accept_stall` it
// fits wherever the smallest staging is free.
std::optional<StaggerRings::Entry> StaggerRings::Fit(int slot, const StreamNeed& need,
                                                     bool accept_stall) const {
  Entry entry;
  entry.verify_s = need.verify_s;
  entry.rows = need.rows;
  if (slots_[slot].rows + need.rows > max_pass_rows_) return std::nullopt;
  entry.at = {slot, slot, 0, 0, false};
  if (need.bytes <= 0) {
    entry.link_s = {0};
    return entry;
  }
  const int64_t free_now = staging_bytes_ - slots_[slot].staging_bytes;
  // Not less for a few bytes: staging is handed out in whole slots.
  const int64_t min_staging = need.min_staging_bytes;
  if (min_staging > free_now) return std::nullopt;

  const double pass_s = SlotSeconds(slot) + need.verify_s;
  const double link_free_s = std::max(0.0, pass_s - slots_[slot].link_s);
  const double fetch_s = static_cast<double>(need.bytes) / link_bytes_per_s_;
  // What the link cannot bring during the pass has to be there before. Walk back from the slot,
  // taking free link time, as long as the staging for all of it is free on the way.
  double ahead_s = std::max(0.0, fetch_s - link_free_s);
  ahead_s = std::min(ahead_s, static_cast<double>(free_now) / link_bytes_per_s_);
  double taken_s = 0;
  std::vector<double> backwards;
  for (int i = slot - 1; i >= 0 && taken_s < ahead_s; --i) {
    const int64_t free_here = staging_bytes_ - slots_[i].staging_bytes;
    // All of the entry's staging is held from its first slot on.
    const double room_s = static_cast<double>(free_here) / link_bytes_per_s_;
    if (free_here < min_staging) break;
    ahead_s = std::min(ahead_s, room_s);
    if (taken_s >= ahead_s) break;
    const double free_s = std::max(0.0, SlotSeconds(i) - slots_[i].link_s);
    const double take = std::min(free_s, ahead_s - taken_s);
    backwards.push_back(take);
    taken_s += take;
  }
  while (!backwards.empty() && backwards.back() <= 0) backwards.pop_back();

  entry.at.stall_s = std::max(0.0, fetch_s - taken_s - link_free_s);
  const double alone_ahead_s =
      std::min(fetch_s, static_cast<double>(staging_bytes_) / link_bytes_per_s_);
  const double unavoidable_s =
      std::max(0.0, fetch_s - alone_ahead_s - (draft_pass_s_ + need.verify_s));
  const double tolerated_s = unavoidable_s + kStallTolerance * (pass_s + unavoidable_s);
  if (!accept_stall && entry.at.stall_s > tolerated_s) return std::nullopt;

  entry.at.fetch_slot = slot - static_cast<int>(backwards.size());
  entry.at.staging_bytes = std::max(min_staging, static_cast<int64_t>(taken_s * link_bytes_per_s_));
  entry.link_s.assign(backwards.rbegin(), backwards.rend());
  entry.link_s.push_back(fetch_s - taken_s);
  return entry;
}

void StaggerRings::Put(RequestId id, Entry entry) {
  for (int i = entry.at.fetch_slot; i <= entry.at.verify_slot; ++i) {
    slots_[i].link_s += entry.link_s[i - entry.at.fetch_slot];
    slots_[i].staging_bytes += entry.at.staging_bytes;
    VC_CHECK(slots_[i].staging_bytes <= staging_bytes_);
  }
  slots_[entry.at.verify_slot].verify_s += entry.verify_s + entry.at.stall_s;
  slots_[entry.at.verify_slot].rows += entry.rows;
  entry.verify_s += entry.at.stall_s;
  VC_CHECK(entries_.emplace(id, std::move(entry)).second);
}

bool StaggerRings::Reserve(RequestId id, int slot, const StreamNeed& need) {
  VC_CHECK(!entries_.contains(id));
  if (slot < 0 || slot >= kSlots) return false;
  std::optional<Entry> entry = Fit(slot, need, /*accept_stall=*/false);
  if (!entry.has_value()) return false;
  Put(id, *std::move(entry));
  return true;
}

std::optional<int> StaggerRings::ReserveNear(RequestId id, int wanted, int lo, int hi,
                                             const StreamNeed& need) {
  const int reach = std::max(hi - wanted, wanted - lo);
  for (int distance = 0; distance <= reach; ++distance) {
    for (const int slot : {wanted - distance, wanted + distance}) {
      if (slot < lo || slot > hi || (distance == 0 && slot != wanted)) continue;
      if (Reserve(id, slot, need)) return slot;
      if (distance == 0) break;
    }
  }
  return std::nullopt;
}

std::optional<int> StaggerRings::ReserveSoonest(RequestId id, int lo, const StreamNeed& need) {
  VC_CHECK(!entries_.contains(id));
  std::optional<Entry> best;
  double best_cost_s = 0, waited_s = 0;
  for (int slot = std::max(lo, 0); slot < kSlots; ++slot) {
    if (best.has_value() && waited_s >= best_cost_s) break;
    std::optional<Entry> entry = Fit(slot, need, /*accept_stall=*/true);
    if (entry.has_value()) {
      const double cost_s = waited_s + kStallWeight * entry->at.stall_s;
      if (!best.has_value() || cost_s < best_cost_s) {
        best_cost_s = cost_s;
        best = std::move(entry);
      }
    }
    waited_s += SlotSeconds(slot);
  }
  if (!best.has_value()) return std::nullopt;
  const int slot = best->at.verify_slot;
  Put(id, *std::move(best));
  return slot;
}

bool StaggerRings::ReserveNow(RequestId id, const StreamNeed& need) {
  VC_CHECK(!entries_.contains(id));
  std::optional<Entry> entry = Fit(0, need, /*accept_stall=*/true);
  if (!entry.has_value()) return false;
  Put(id, *std::move(entry));
  return true;
}

void StaggerRings::Release(RequestId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  const Entry& entry = found->second;
  for (int i = std::max(entry.at.fetch_slot, 0); i <= entry.at.verify_slot; ++i) {
    Slot& slot = slots_[i];
    slot.link_s = std::max(0.0, slot.link_s - entry.link_s[i - entry.at.fetch_slot]);
    slot.staging_bytes -= entry.at.staging_bytes;
    VC_CHECK(slot.staging_bytes >= 0);
  }
  Slot& last = slots_[entry.at.verify_slot];
  last.verify_s = std::max(0.0, last.verify_s - entry.verify_s);
  last.rows -= entry.rows;
  entries_.erase(found);
}

const Reservation* StaggerRings::Find(RequestId id) const {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : &found->second.at;
}

void StaggerRings::MarkFetchStarted(RequestId id) {
  const auto found = entries_.find(id);
  VC_CHECK(found != entries_.end());
  found->second.at.fetch_started = true;
}

double StaggerRings::SecondsUntilEnd(int slot) const {
  double sum = 0;
  for (int i = 0; i <= std::min(slot, kSlots - 1); ++i) sum += SlotSeconds(i);
  return sum;
}

int64_t StaggerRings::StagingHeldNow() const {
  int64_t sum = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry.at.fetch_started) sum += entry.at.staging_bytes;
  }
  return sum;
}

void StaggerRings::Advance() {
  slots_.pop_front();
  slots_.emplace_back();
  for (auto& [id, entry] : entries_) {
    VC_CHECK(entry.at.verify_slot > 0);
    --entry.at.verify_slot;
    if (entry.at.fetch_slot > 0) {
      --entry.at.fetch_slot;
    } else {
      entry.link_s.erase(entry.link_s.begin());
    }
  }
}

void StaggerRings::CheckIntegrity() const {
  std::vector<int64_t> staging(kSlots, 0);
  for (const auto& [id, entry] : entries_) {
    VC_CHECK(entry.at.fetch_slot >= 0 && entry.at.fetch_slot <= entry.at.verify_slot);
    VC_CHECK(static_cast<int>(entry.link_s.size()) ==
             entry.at.verify_slot - entry.at.fetch_slot + 1);
    for (int i = entry.at.fetch_slot; i <= entry.at.verify_slot; ++i) {
      staging[i] += entry.at.staging_bytes;
    }
  }
  for (int i = 0; i < kSlots; ++i) {
    VC_CHECK(staging[i] == slots_[i].staging_bytes && staging[i] <= staging_bytes_);
  }
}

}  // namespace vericache
