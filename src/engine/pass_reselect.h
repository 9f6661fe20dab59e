// verify's choice in a verification's own pass, or in that of a prompt's last rows: a layer's draft
// KV is made anew as it passes by.
//
// The attention of the pass knows already what its queries look at, so the choice costs hardly more
// than writing the draft KV; asked for afterwards, the scores cost half of that attention again,
// and over spilled KV a second read of every byte. The price: it is not known yet how many of the
// drafted tokens hold, so rows of wrongly drafted ones may have a vote. That costs nothing but
// acceptance: what the draft KV keeps is free (docs/exactness.md).
// What is kept is chosen among committed positions; the accepted rows are appended afterwards.
#pragma once

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "engine/sequence.h"
#include "kernels/kernels.h"

namespace vericache {

class PassReselector : public ForwardObserver {
 public:
  // More voters hardly choose better, and what they say takes memory: 2 bytes a key and query head.
  // Fewer choose worse (0.5b, 16K, 14 drafted: 8 accept 86 of 126, 16 accept 87 of 112): rather let
  // some vote that may not hold.
  static constexpr int64_t kVoters = 16;

  // Rebuilds sequence->draft in the pass of `num_rows` rows, from position first_pos on.
  // REQUIRES: sequence->draft, whose spec reselects; *sequence outlives the pass.
  PassReselector(Sequence* sequence, int64_t first_pos, int64_t num_rows,
                 const KernelTable* kernels, ThreadPool* pool);
  const VoteWish* WantsVotes(int layer) override;
  void OnVotes(int layer, const LayerKeys& keys) override;

  // Rows of a pass of `num_rows` that vote: the newest of those that are likely to hold, where
  // rounds have emitted `mean_run` tokens of late, and some more if those are few. [begin, end).
  struct Voters {
    int64_t begin, end;
  };
  static Voters VotersOf(int64_t num_rows, double mean_run, int64_t window);

 private:
  Sequence* sequence_;
  const KernelTable* kernels_;
  ThreadPool* pool_;
  VoteWish wish_;
  AlignedBuffer<float> votes_;
};

}  // namespace vericache
