// verify over spilled KV: chooses a layer's draft KV anew while that layer is in memory.
//
// A verification reads every spilled byte once; a second read to choose from would cost as much
// again. So each layer's choice is made as it passes by, before it is known how many of the drafted
// tokens hold, by the queries of the pass itself: wrongly drafted ones may have a vote. That costs
// nothing but acceptance: what the draft KV keeps is free (docs/exactness.md).
// What is kept is chosen among committed positions; the accepted rows are appended afterwards.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "engine/sequence.h"
#include "kernels/kernels.h"

namespace vericache {

class PassReselector : public ForwardObserver {
 public:
  // Rebuilds sequence->draft in the pass that verifies `num_rows` rows.
  // REQUIRES: sequence->draft, whose spec reselects; *sequence outlives the pass.
  PassReselector(Sequence* sequence, int64_t num_rows, int num_heads, const KernelTable* kernels,
                 ThreadPool* pool);
  void OnLayer(const LayerRows& rows) override;

  // Rows of a pass of `num_rows` that vote: the newest of those that are likely to hold, where
  // rounds have emitted `mean_run` tokens of late. [begin, end).
  struct Voters {
    int64_t begin, end;
  };
  static Voters VotersOf(int64_t num_rows, double mean_run, int64_t window);

 private:
  Sequence* sequence_;
  const int num_heads_;
  const KernelTable* kernels_;
  ThreadPool* pool_;
  Voters voters_;
  QueryRows queries_;
};

}  // namespace vericache
