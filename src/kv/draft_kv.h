// The draft KV of one sequence: a small lossy copy of the full KV that only the drafter reads.
//
// Per layer and KV head it keeps a ragged list of positions: groups of 32 kept keys in the codec's
// format, then an f16 tail (layouts: kernels/kv_view.h). Keys keep their original rotation, so
// positions need not be stored. Dropping and quantising happen only when rows are committed, on the
// verifier's rows; drafting appends provisional rows to the tail, and Rollback() removes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/kv_view.h"
#include "kv/draft_spec.h"
#include "kv/full_kv.h"

namespace vericache {

// Which positions each (layer, KV head) keeps: [layer * num_kv_heads + kv_head], strictly
// increasing, never empty, ending with the last position.
struct KeptSet {
  std::vector<std::vector<int32_t>> positions;
};

// Newest kept keys that stay in f16 under an integer codec (compressors.md, "Ours").
inline constexpr int64_t kTailKeys = 64;

class DraftKv : public KvSource {
 public:
  // An integer codec needs head_dim % 32 == 0; otherwise it falls back to f16 (see codec()).
  DraftKv(const KvShape& shape, DraftFormat codec, const KernelTable* kernels);

  DraftFormat codec() const { return codec_; }

  // An independent copy of everything. COST: num_bytes().
  DraftKv Copy() const;

  // Replaces the contents by the compressed form of `kept` of `full`.
  // REQUIRES: kept has num_layers * num_kv_heads lists within full.num_tokens().
  // COST: reads the kept rows of `full` once.
  void Rebuild(const FullKv& full, const KeptSet& kept, ThreadPool* pool);

  // Appends the exact rows [pos_begin, pos_end) of `full` for all layers and folds the oldest tail
  // keys into codec groups once the tail is long enough. Provisional rows are removed first.
  void CommitRows(const FullKv& full, int64_t pos_begin, int64_t pos_end, ThreadPool* pool);

  // KvSource: the drafter's provisional rows.
  void Append(int layer, const float* k, const float* v, int64_t num_rows) override;
  KvView Layer(int layer) override;
  // Forgets all provisional rows.
  void Rollback();

  // Codes, scales and tail rows, of all heads, provisional rows included.
  size_t num_bytes() const;
  // The same for a fresh draft of `num_kept` keys a head, by layout alone.
  static size_t LayoutBytes(const KvShape& shape, DraftFormat codec, int64_t num_kept);
  // Committed positions this draft stands for (kept or not).
  int64_t num_tokens() const { return num_tokens_; }

  // Raw bytes for session files. REQUIRES: no provisional rows.
  void AppendTo(std::string* out) const;
  // Reads what AppendTo wrote, for the same shape and codec, from the front of `*bytes`.
  // ERRORS: kDataLoss: sizes that do not fit; *this is then unusable.
  absl::Status ReadFrom(std::string_view* bytes);

 private:
  struct Head {
    int64_t num_groups = 0;
    AlignedBuffer<uint8_t> k_data, v_data;
    AlignedBuffer<uint16_t> k_scale, k_min, v_scale, v_min;
    int64_t num_tail = 0;
    AlignedBuffer<uint16_t> tail_k, tail_v;

    void Clear() {  // keeps the memory: a draft may be chosen anew every round
      num_groups = num_tail = 0;
      k_data.ResizeKeep(0);
      v_data.ResizeKeep(0);
      for (auto* buffer : {&k_scale, &k_min, &v_scale, &v_min, &tail_k, &tail_v})
        buffer->ResizeKeep(0);
    }
  };
  Head& HeadAt(int layer, int kv_head) { return heads_[layer * shape_.num_kv_heads + kv_head]; }
  // Rows on their way between formats, of one thread.
  struct Scratch {
    std::vector<uint16_t> k16, v16;  // [head_dim]
    std::vector<float> k, v;         // [32 keys][head_dim]
  };
  void ReserveScratch(size_t num_threads);
  void PushTail(Head* head, const uint16_t* k, const uint16_t* v);
  void DropTailFront(Head* head, int64_t count);
  void EncodeGroup(Head* head, const float* k, const float* v);
  void FoldTail(Head* head, Scratch* scratch);
  void RebuildHead(const FullKv& full, int layer, int kv_head, absl::Span<const int32_t> kept,
                   Scratch* scratch);

  KvShape shape_;
  const KernelTable* kernels_;
  DraftFormat codec_;
  int64_t num_tokens_ = 0;
  std::vector<Head> heads_;
  std::vector<DraftHeadView> views_;  // [num_kv_heads] of the layer asked for last
  std::vector<Scratch> scratch_;      // per thread
  std::vector<int64_t> provisional_;  // [num_layers] rows appended since the last commit
};

}  // namespace vericache
