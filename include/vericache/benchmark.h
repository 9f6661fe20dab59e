// Times one kind of work at a time on a loaded engine, at any depth. FOR BENCHMARKS ONLY.
//
// The K/V of the positions before the measured ones are pseudo-random numbers of ordinary size,
// written in a moment where a prefill would take minutes. Work behind them costs what real work
// costs, and what it computes means nothing. So a Benchmark hands out times and hashes, never a
// Session, a Completion or text: nothing of it can be saved, receipted or taken for an answer.
//
//   auto benchmark = vericache::Benchmark::Create(engine.get(), {.num_tokens = 32000});
//   auto sample = benchmark->Decode(/*depth=*/8192, /*num_steps=*/32);
//   ... 32 / sample->seconds tokens a second ...
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "vericache/engine.h"

namespace vericache {

struct BenchmarkOptions {
  int64_t num_tokens = 0;  // the greatest depth that will be asked for
  uint64_t seed = 1;
  // Asked between passes; false ends the work with kCancelled. May be empty.
  std::function<bool()> keep_going;
};

struct WorkSample {
  double seconds = 0;
  std::string output_hash;  // equal work has equal outputs; an unequal hash means: no number
};

struct DraftSample {
  WorkSample work;
  double kept_fraction = 0;  // bytes the draft KV really has at this depth / full bytes
};

// The lengths of one round of another run (`vericache run --trace`).
struct TraceRound {
  int drafted = 0;
  int accepted = 0;  // of them
};

struct RoundsSample {
  WorkSample work;         // all rounds; the hash is that of plain decoding of as many tokens
  int64_t num_tokens = 0;  // emitted
  double draft_s = 0, verify_s = 0;
};

// Every measurement starts from the same state and leaves it behind: the first `depth` positions
// of the K/V and a pending token. The first call at a depth decodes some tokens untimed.
// ERRORS of all: kInvalidArgument (a count below 1, a bad spec); kOutOfRange (depth beyond
// num_tokens, or depth and work beyond the context); kCancelled; kResourceExhausted; kInternal
// (outputs differ from those of plain decoding).
class Benchmark {
 public:
  // COST: num_tokens * kv_bytes_per_token of memory, about half a second a GB.
  // REQUIRES: `engine` outlives *this and does nothing else meanwhile.
  static absl::StatusOr<Benchmark> Create(Engine* engine, const BenchmarkOptions& options);
  ~Benchmark();
  Benchmark(Benchmark&&) noexcept;
  Benchmark& operator=(Benchmark&&) noexcept;

  // K/V of `num_tokens` further tokens, and the logits of the last.
  absl::StatusOr<WorkSample> Prefill(int64_t depth, int64_t num_tokens);
  // `num_steps` plain steps of one token on the full KV.
  absl::StatusOr<WorkSample> Decode(int64_t depth, int64_t num_steps);
  // One verification of `width` positions, all of which hold: pass, logits, commit.
  absl::StatusOr<WorkSample> Verify(int64_t depth, int width);
  // `num_steps` draft steps on a draft KV of the first `depth` positions. depth >= 1; `spec` needs
  // no query scores ("snapkv" and "verify" do: there are no queries), which changes nothing: the
  // time of a step does not depend on which keys were kept.
  // COST: the first call with a spec at a depth compresses the K/V; draft KVs are kept.
  absl::StatusOr<DraftSample> Draft(int64_t depth, std::string_view spec, int64_t num_steps);

  // Rounds as long as those of a trace, on a draft KV of the first `depth` positions: drafting,
  // verifications and the new choice of keys all run, but how many drafted tokens hold is the
  // trace's: as many are put right as it had accepted, and the next is put wrong. What comes out is
  // what plain decoding gives, or it is an error. `spec` must need no scores; depth >= 1.
  // COST: compresses the K/V before the clock starts.
  absl::StatusOr<RoundsSample> Rounds(int64_t depth, std::string_view spec,
                                      absl::Span<const TraceRound> rounds);

  // A plain read of memory by the engine's threads, in 1e9 bytes a second: best of `num_tries`.
  // COST: 512 MiB of memory from the first call on.
  absl::StatusOr<double> ReadGbps(int num_tries);

 private:
  struct Impl;
  explicit Benchmark(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace vericache
