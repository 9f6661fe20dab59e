// Two rings over the coming steps: link time and staging memory, reserved for verifications ahead.
//
// A slot is a step. It has a predicted length in seconds (a draft pass, plus the verifications put
// there), the link seconds promised in it, and the staging bytes held during it (and, to keep a
// pass within its limit, the rows of its verifications):
//
//   slot       0      1      2     ...    s
//   link s   [ A  ] [ A B ] [ B ]       [ C ]   <= the slot's seconds
//   staging  [ a  ] [ a+b ] [a+b]       [ c ]   <= staging_bytes
//
// A verification at slot s streams F bytes. What the link can bring during the pass itself needs
// only the smallest staging; the rest, S bytes, is read ahead in the slots before s and held until
// s is over. It fits if the pass then waits for the link no longer than it would have to with the
// link and the staging ring to itself.
// Steps, not time slices: a step that takes longer than predicted moves everything behind it, and
// no reservation has to be corrected.
// SOURCE: arXiv 2605.17613, staggered verification (two rings over the next W iterations).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "scheduler/step_plan.h"

namespace vericache {

struct StreamNeed {
  int64_t bytes = 0;              // to come over the link; 0: all in RAM, only verify_s counts
  int64_t min_staging_bytes = 0;  // a pass cannot run with less
  double verify_s = 0;            // what the verification adds to the slot's pass
  int rows = 1;                   // of the slot's pass
};

struct Reservation {
  int verify_slot = 0;  // from now: 0 is the step about to be planned
  int fetch_slot = 0;   // the transfer begins here, <= verify_slot
  int64_t staging_bytes = 0;
  double stall_s = 0;          // predicted wait of the pass for the link
  bool fetch_started = false;  // then fetch_slot stays 0
};

class StaggerRings {
 public:
  static constexpr int kSlots = 2 * kMaxDraftLen;

  StaggerRings(int64_t staging_bytes, int64_t max_pass_rows);

  // A draft pass's seconds and the link's speed as predicted now; for later reservations.
  void SetRates(double draft_pass_s, double link_bytes_per_s);

  // Reserves a verification at `slot` if it fits. REQUIRES: no reservation of `id` exists.
  bool Reserve(RequestId id, int slot, const StreamNeed& need);
  // Tries wanted, wanted-1, wanted+1, wanted-2, ... within [lo, hi]. Returns the slot taken.
  std::optional<int> ReserveNear(RequestId id, int wanted, int lo, int hi, const StreamNeed& need);
  // For a draft that is complete at slot lo: the slot that costs the least, time until then and
  // waiting for the link together. Goes no further than a full staging ring helps.
  std::optional<int> ReserveSoonest(RequestId id, int lo, const StreamNeed& need);
  // Takes slot 0 although the pass will wait for the link; false if even min_staging or the rows
  // are not free.
  bool ReserveNow(RequestId id, const StreamNeed& need);
  void Release(RequestId id);

  const Reservation* Find(RequestId id) const;
  void MarkFetchStarted(RequestId id);
  // Seconds from now to the end of `slot`.
  double SecondsUntilEnd(int slot) const;
  double draft_pass_s() const { return draft_pass_s_; }
  int64_t StagingHeldNow() const;  // by fetches that have started

  // One step is over. REQUIRES: no reservation is left in slot 0.
  void Advance();
  void CheckIntegrity() const;  // VC_CHECKs that the slots are the sum of the reservations

 private:
  struct Slot {
    double verify_s = 0, link_s = 0;
    int64_t staging_bytes = 0, rows = 0;
  };
  struct Entry {
    Reservation at;
    double verify_s = 0;
    int rows = 0;
    std::vector<double> link_s;  // for each slot from fetch_slot to verify_slot
  };
  std::optional<Entry> Fit(int slot, const StreamNeed& need, bool accept_stall) const;
  void Put(RequestId id, Entry entry);
  double SlotSeconds(int slot) const { return draft_pass_s_ + slots_[slot].verify_s; }

  int64_t staging_bytes_, max_pass_rows_;
  double draft_pass_s_ = 0.02, link_bytes_per_s_ = 1e9;
  std::deque<Slot> slots_;
  std::map<RequestId, Entry> entries_;
};

}  // namespace vericache
