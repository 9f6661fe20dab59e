// The draft KV of one sequence: a small lossy copy of the full KV that only the drafter reads.
//
// Per layer and KV head it keeps a ragged list of positions: groups of 32 kept keys in the layer's
// codec, then an f16 tail (layouts: kernels/kv_view.h). Keys keep their original rotation, so
// positions need not be stored. Dropping and quantising happen only when rows are committed, on the
// verifier's rows; drafting appends provisional rows to the tail, and Rollback() removes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kernels/kv_view.h"
#include "kv/codecs/draft_codec.h"
#include "kv/layer_views.h"

namespace vericache {

// Which positions each (layer, KV head) keeps: [layer * num_kv_heads + kv_head], strictly
// increasing, never empty, ending with the last position.
struct KeptSet {
  std::vector<std::vector<int32_t>> positions;
};

// How much of a draft KV one attention step reads. SOURCE: Quest, arXiv 2406.10774.
struct QueryTimeReads {
  double fraction = 1.0;  // of the groups of 32 keys, those with the best bounds; 1: all
  int whole_layers = 0;   // the first layers, which are read whole

  bool In(int layer) const { return fraction < 1.0 && layer >= whole_layers; }
  // Groups a step reads of `num_groups`.
  int64_t NumSelected(int64_t num_groups) const;
};

class DraftKv : public KvSource {
 public:
  // codec_of_layer: [num_layers]. An integer codec needs head_dim % 32 == 0; otherwise the layer
  // falls back to f16 (see falls_back()).
  DraftKv(const KvShape& shape, absl::Span<const DraftCodec> codec_of_layer,
          const KernelTable* kernels);
  // One codec for all layers.
  DraftKv(const KvShape& shape, const DraftCodec& codec, const KernelTable* kernels);

  // From now on steps read a share of the groups, in layers from `whole_layers` on. Without codes
  // the keys of such a layer form f16 groups, too.
  // REQUIRES: *this is empty; 0 < fraction <= 1.
  void SetQueryTimeReads(double fraction, int whole_layers);

  // What is really used.
  const DraftCodec& codec(int layer) const { return codecs_[layer]; }
  // A codec with codes was asked for and head_dim does not allow it.
  bool falls_back() const { return falls_back_; }

  // An independent copy of everything. COST: num_bytes().
  DraftKv Copy() const;

  // Replaces the contents of the layers at hand by the compressed form of `kept`; provisional rows
  // of these layers are forgotten. Layers of one full KV may come one call after another, all
  // before anything else is done with *this. REQUIRES: kept has num_layers * num_kv_heads lists
  // within num_tokens(). COST: reads the kept rows once.
  void Rebuild(const LayerViews& layers, const KeptSet& kept, ThreadPool* pool);
  // The same where everything is in RAM.
  void Rebuild(const FullKv& full, const KeptSet& kept, ThreadPool* pool) {
    Rebuild(AllLayers(full), kept, pool);
  }

  // Appends the exact rows [pos_begin, pos_end) of `full` for all layers and folds the oldest tail
  // keys into codec groups once the tail is long enough. Provisional rows are removed first.
  // ERRORS: of the tier, where some of the rows are spilled; *this is then unusable.
  absl::Status CommitRows(const FullKv& full, int64_t pos_begin, int64_t pos_end, ThreadPool* pool);

  // The same where no full KV is at hand: view_of(layer) holds at least these rows.
  void CommitRowsOf(absl::FunctionRef<FullKvView(int layer)> view_of, int64_t pos_begin,
                    int64_t pos_end, ThreadPool* pool);

  // KvSource: the drafter's provisional rows.
  void Append(int layer, const float* k, const float* v, int64_t num_rows) override;
  KvView Layer(int layer) override;
  // Forgets all provisional rows.
  void Rollback();
  // Forgets the newest `num_rows` of them in each layer: *this is as if they had never come.
  // REQUIRES: there are as many.
  void Rollback(int64_t num_rows);

  // Makes room for `num_rows` more rows, so that steps allocate nothing until then.
  void ReserveRows(int64_t num_rows);

  // Codes, scales and tail rows, of all heads, provisional rows included.
  size_t num_bytes() const;
  // What one attention step over all layers reads of them: num_bytes() but for query-time reading,
  // where it is the bounds of all groups, the selected groups and the tails.
  size_t read_bytes_per_step() const;
  // num_bytes() of a fresh draft of `num_kept` keys a head, by layout alone.
  static size_t LayoutBytes(const KvShape& shape, absl::Span<const DraftCodec> codec_of_layer,
                            int64_t num_kept, const QueryTimeReads& reads = {});
  static size_t LayoutBytes(const KvShape& shape, const DraftCodec& codec, int64_t num_kept,
                            const QueryTimeReads& reads = {});
  // Committed positions this draft stands for (kept or not).
  int64_t num_tokens() const { return num_tokens_; }

  // Raw bytes for session files. REQUIRES: no provisional rows.
  void AppendTo(std::string* out) const;
  // Reads what AppendTo wrote, for the same shape, codecs and query-time reads, from the front of
  // `*bytes`.
  // ERRORS: kDataLoss: sizes that do not fit; *this is then unusable.
  absl::Status ReadFrom(std::string_view* bytes);

 private:
  struct Head {
    int64_t num_groups = 0;
    AlignedBuffer<uint8_t> k_data, v_data;
    AlignedBuffer<uint16_t> k_scale, k_min, v_scale, v_min;  // of codes; k's also bound f16 groups
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
  // Of one group of 32 keys in one layer; all 0 where keys stay in the tail.
  struct GroupSizes {
    size_t k_bytes, v_bytes;    // codes or f16 values
    size_t k_scales, v_scales;  // values in each of scale and min
  };
  // 32 keys on their way between formats, of one thread.
  struct Scratch {
    AlignedBuffer<uint16_t> k16, v16;  // [head_dim][32 keys], [32 keys][padded_head_dim]
    AlignedBuffer<float> k, v;         // the same
  };
  Head& HeadAt(int layer, int kv_head) { return heads_[layer * shape_.num_kv_heads + kv_head]; }
  // Whether old keys leave the tail for groups.
  bool HasGroups(int layer) const { return codecs_[layer].has_codes() || reads_.In(layer); }
  GroupSizes SizesOf(int layer) const;
  // Groups that `num_keys` kept keys make, where they do.
  static int64_t NumFreshGroups(const DraftCodec& codec, int64_t num_keys);
  void ReserveScratch(size_t num_threads);
  void AddTailGroup(Head* head, int64_t num_keys);
  void PopTail(Head* head, int64_t num_keys);
  void PushTail(Head* head, const uint16_t* k, const uint16_t* v);
  void PushTailRows(const FullKvView& view, int kv_head, absl::Span<const int32_t> positions,
                    Head* head);
  void DropTailFront(Head* head, int64_t count);
  void ResizeGroups(Head* head, int layer, int64_t num_groups);
  void EncodeGroup(Head* head, int layer, int64_t group, Scratch* scratch);
  void FoldTail(Head* head, int layer, Scratch* scratch);
  void EncodeKept(const FullKvView& view, int layer, int kv_head, absl::Span<const int32_t> kept,
                  int64_t begin, int64_t end, Scratch* scratch);
  void CommitHead(const FullKvView& view, int layer, int kv_head, int64_t pos_begin,
                  int64_t pos_end, Scratch* scratch);

  KvShape shape_;
  const KernelTable* kernels_;
  std::vector<DraftCodec> codecs_;  // [num_layers]
  bool falls_back_ = false;
  QueryTimeReads reads_;
  int64_t num_tokens_ = 0;
  std::vector<Head> heads_;
  std::vector<DraftHeadView> views_;  // [num_kv_heads] of the layer asked for last
  std::vector<Scratch> scratch_;      // per thread
  std::vector<int64_t> provisional_;  // [num_layers] rows appended since the last commit
};

}  // namespace vericache
