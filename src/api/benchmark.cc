// Each measurement makes a sequence on a fork of one synthetic full KV and runs the engine's own
// parts on it, so what is timed is the code that makes answers. Room for the new rows is reserved
// before the clock starts: real decoding pays for a block once in 64 tokens.
#include "vericache/benchmark.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "api/engine_impl.h"
#include "api/synthetic_kv.h"
#include "base/hash.h"
#include "base/read_probe.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "kv/selectors/selector.h"

namespace vericache {
namespace {

// What plain decoding gives at a depth, in the order of its steps.
struct Continuation {
  std::vector<TokenId> tokens;
  std::vector<Sha256Digest> digests;  // the logits chain after each token
};

// True if one is the start of the other.
bool Agree(const Continuation& a, const Continuation& b) {
  const size_t n = std::min(a.tokens.size(), b.tokens.size());
  return std::equal(a.tokens.begin(), a.tokens.begin() + n, b.tokens.begin()) &&
         std::equal(a.digests.begin(), a.digests.begin() + n, b.digests.begin());
}

std::string HashOf(absl::Span<const DraftToken> tokens) {
  static_assert(sizeof(DraftToken) == sizeof(TokenId));
  return HexOf(Xxh3_128(tokens.data(), tokens.size() * sizeof(DraftToken)));
}

}  // namespace

struct Benchmark::Impl {
  Engine::Impl& engine;
  BenchmarkOptions options;
  FullKv full;
  std::vector<TokenId> ids;  // [context_length], fed behind the synthetic K/V
  RoundRunner runner;
  Drafter drafter;
  Verifier verifier;
  std::map<int64_t, Continuation> continuations;                 // by depth
  std::map<std::pair<int64_t, std::string>, DraftKv> draft_kvs;  // by depth and spec
  std::optional<ReadProbe> read_probe;

  Impl(Engine::Impl* impl, const BenchmarkOptions& benchmark_options)
      : engine(*impl),
        options(benchmark_options),
        full(impl->NewFullKv()),
        runner(impl->model.get(), impl->forward.get(), impl->pool.get()),
        drafter(impl->model.get(), impl->forward.get()),
        verifier(impl->model.get(), impl->forward.get(), impl->pool.get()) {}

  absl::Status KeepGoing() const {
    if (options.keep_going && !options.keep_going()) return absl::CancelledError("stopped");
    return absl::OkStatus();
  }
  absl::Status Check(int64_t depth, int64_t work, const char* what) const;
  std::unique_ptr<Sequence> SequenceAt(int64_t depth, int64_t num_new);
  absl::StatusOr<WorkSample> Decode(int64_t depth, int64_t num_steps);
  absl::StatusOr<DraftKv> MakeDraftKv(int64_t depth, DraftSpec spec) const;
  absl::StatusOr<DraftKv*> DraftKvOf(int64_t depth, const DraftSpec& spec);
  absl::StatusOr<WorkSample> DraftSteps(Sequence* sequence, int64_t num_steps);
  absl::StatusOr<std::unique_ptr<Sequence>> DraftingAt(int64_t depth, const DraftSpec& spec,
                                                       int most_drafted);
  absl::StatusOr<RoundsSample> RunRounds(Sequence* s, const Continuation& known,
                                         absl::Span<const TraceRound> rounds);
};

absl::Status Benchmark::Impl::Check(int64_t depth, int64_t work, const char* what) const {
  if (work < 1)
    return absl::InvalidArgumentError(StrCat(what, " is ", work, ", expected 1 or more"));
  if (depth < 0 || depth > full.num_tokens())
    return absl::OutOfRangeError(
        StrCat("depth ", depth, ": this benchmark holds ", full.num_tokens(), " tokens"));
  if (depth + work >= engine.info.context_length)
    return absl::OutOfRangeError(StrCat("depth ", depth, " and ", work, " tokens do not fit into ",
                                        "a context of ", engine.info.context_length));
  return engine.model->file->CheckStillWhole();
}

// `depth` positions with K/V, then `num_new` tokens without.
std::unique_ptr<Sequence> Benchmark::Impl::SequenceAt(int64_t depth, int64_t num_new) {
  auto s =
      SequenceOverSynthetic(engine, full, depth, absl::MakeConstSpan(ids).first(depth + num_new));
  s->max_tokens = engine.info.context_length - s->num_prompt;
  s->rounds.reserve(kMaxDraftLen);
  return s;
}

absl::StatusOr<WorkSample> Benchmark::Impl::Decode(int64_t depth, int64_t num_steps) {
  const std::unique_ptr<Sequence> s = SequenceAt(depth, 1);
  VC_RETURN_IF_ERROR(s->full.Reserve(num_steps));
  Continuation made;
  made.digests.reserve(num_steps);
  const double start = NowSeconds();
  for (int64_t i = 0; i < num_steps; ++i) {
    VC_RETURN_IF_ERROR(KeepGoing());
    Sequence* sequence = s.get();
    runner.Run({&sequence, 1});
    if (s->finish == FinishReason::kError) return s->error;
    made.digests.push_back(s->chain.digest());
  }
  WorkSample sample{NowSeconds() - start, s->chain.Hex()};
  made.tokens.assign(s->tokens.begin() + s->num_prompt, s->tokens.end());
  Continuation& known = continuations[depth];
  if (!Agree(made, known))
    return absl::InternalError(StrCat("plain decoding at depth ", depth, " gave other outputs ",
                                      "than before: please report this"));
  if (made.tokens.size() > known.tokens.size()) known = std::move(made);
  return sample;
}

absl::StatusOr<DraftKv> Benchmark::Impl::MakeDraftKv(int64_t depth, DraftSpec spec) const {
  // There are no queries to vote and no scores; as many keys are kept as they would keep.
  if (spec.uses_queries() || spec.score_kind() != ScoreKind::kNone)
    spec.selector = SelectorKind::kSink;
  if (spec.selector == SelectorKind::kKept)
    return absl::InvalidArgumentError("a benchmark has no prompt that a file of positions fits");
  const FullKv prefix = full.Fork(depth);
  SelectInput input;
  const LayerViews layers = AllLayers(prefix);
  input.layers = &layers;
  input.kernels = engine.model->kernels;
  input.pool = engine.pool.get();
  DraftKv draft = NewDraftKv(engine.model->config.kv_shape(), spec, engine.model->kernels);
  draft.Rebuild(layers, SelectPositions(spec, input), engine.pool.get());
  return draft;
}

absl::StatusOr<DraftKv*> Benchmark::Impl::DraftKvOf(int64_t depth, const DraftSpec& spec) {
  const std::pair<int64_t, std::string> key(depth, spec.ToString());
  const auto found = draft_kvs.find(key);
  if (found != draft_kvs.end()) return &found->second;
  VC_ASSIGN_OR_RETURN(DraftKv draft, MakeDraftKv(depth, spec));
  return &draft_kvs.emplace(key, std::move(draft)).first->second;
}

// A sequence whose next rounds draft what `spec` says.
absl::StatusOr<std::unique_ptr<Sequence>> Benchmark::Impl::DraftingAt(int64_t depth,
                                                                      const DraftSpec& spec,
                                                                      int most_drafted) {
  std::unique_ptr<Sequence> s = SequenceAt(depth, 1);
  s->spec = spec;
  VC_ASSIGN_OR_RETURN(DraftKv draft, MakeDraftKv(depth, spec));
  s->draft.emplace(std::move(draft));
  if (const int window = QueryRowsWanted(spec); window > 0 && spec.reselects())
    s->queries.emplace(engine.model->config, engine.model->kernels, window);
  return s;
}

absl::StatusOr<RoundsSample> Benchmark::Impl::RunRounds(Sequence* s, const Continuation& known,
                                                        absl::Span<const TraceRound> rounds) {
  const int64_t vocab = engine.model->config.vocab_size;
  RoundsSample sample;
  sample.work.seconds = NowSeconds();
  for (const TraceRound& round : rounds) {
    VC_RETURN_IF_ERROR(KeepGoing());
    const int64_t first = s->num_emitted();
    s->draft_length = DraftLength::Fixed(round.drafted);
    s->adversary = [&](DraftToken made, int64_t pos) {
      const int64_t nth = pos - s->num_prompt - first;
      if (nth > round.accepted) return made;
      const TokenId right = known.tokens[first + nth];
      return DraftToken{nth < round.accepted ? right : static_cast<TokenId>((right + 1) % vocab)};
    };
    runner.Run({&s, 1});
    if (s->finish == FinishReason::kError) return s->error;
    const RoundStats& stats = s->rounds.back();
    if (stats.drafted != round.drafted || stats.accepted != round.accepted)
      return absl::InternalError(StrCat("a round accepted ", stats.accepted, " of ", stats.drafted,
                                        " where the trace has ", round.accepted, " of ",
                                        round.drafted, ": please report this"));
    sample.draft_s += static_cast<double>(stats.draft_ns) * 1e-9;
    sample.verify_s += static_cast<double>(stats.verify_ns) * 1e-9;
  }
  sample.work.seconds = NowSeconds() - sample.work.seconds;
  sample.work.output_hash = s->chain.Hex();
  sample.num_tokens = s->num_emitted();
  return sample;
}

absl::StatusOr<WorkSample> Benchmark::Impl::DraftSteps(Sequence* sequence, int64_t num_steps) {
  sequence->drafted.reserve(num_steps);
  const double start = NowSeconds();
  for (int64_t i = 0; i < num_steps; ++i) {
    VC_RETURN_IF_ERROR(KeepGoing());
    drafter.Step({&sequence, 1});
    if (sequence->drafted.back().id < 0)
      return NonFiniteLogits(sequence->full.num_tokens() + i + 1);
  }
  return WorkSample{NowSeconds() - start, HashOf(sequence->drafted)};
}

Benchmark::Benchmark(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Benchmark::~Benchmark() = default;
Benchmark::Benchmark(Benchmark&&) noexcept = default;
Benchmark& Benchmark::operator=(Benchmark&&) noexcept = default;

absl::StatusOr<Benchmark> Benchmark::Create(Engine* engine, const BenchmarkOptions& options) {
  Engine::Impl& e = *engine->impl_;
  if (options.num_tokens < 0 || options.num_tokens >= e.info.context_length)
    return absl::OutOfRangeError(StrCat("a benchmark of ", options.num_tokens,
                                        " tokens does not fit into a context of ",
                                        e.info.context_length));
  auto impl = std::make_unique<Impl>(&e, options);
  VC_RETURN_IF_ERROR(FillSynthetic(options.num_tokens, options.seed, e.pool.get(), &impl->full));
  uint64_t state = options.seed;
  for (int64_t i = 0; i < e.info.context_length; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth, MMIX
    impl->ids.push_back(static_cast<TokenId>((state >> 33) % e.tokenizer->vocab_size()));
  }
  return Benchmark(std::move(impl));
}

absl::StatusOr<WorkSample> Benchmark::Prefill(int64_t depth, int64_t num_tokens) {
  Impl& impl = *impl_;
  VC_RETURN_IF_ERROR(impl.Check(depth, num_tokens, "the number of tokens"));
  const std::unique_ptr<Sequence> s = impl.SequenceAt(depth, num_tokens);
  s->max_tokens = 1;
  VC_RETURN_IF_ERROR(s->full.Reserve(num_tokens));
  PrefillOptions options;
  options.chunk_rows = impl.engine.options.prefill_chunk;
  options.progress = [&](int64_t, int64_t) { return impl.KeepGoing().ok(); };
  vericache::Prefill prefill(impl.engine.model.get(), impl.engine.forward.get(),
                             impl.engine.pool.get());
  const double start = NowSeconds();
  VC_RETURN_IF_ERROR(prefill.Run(s.get(), options));
  const double seconds = NowSeconds() - start;
  if (s->finish == FinishReason::kError) return s->error;
  return WorkSample{seconds, s->chain.Hex()};
}

absl::StatusOr<WorkSample> Benchmark::Decode(int64_t depth, int64_t num_steps) {
  VC_RETURN_IF_ERROR(impl_->Check(depth, num_steps, "the number of steps"));
  if (!impl_->continuations.contains(depth)) {
    VC_RETURN_IF_ERROR(impl_->Decode(depth, 1).status());  // touches what is cold
  }
  return impl_->Decode(depth, num_steps);
}

// Drafts what plain decoding gave, so that every position holds and none is left out.
absl::StatusOr<WorkSample> Benchmark::Verify(int64_t depth, int width) {
  Impl& impl = *impl_;
  VC_RETURN_IF_ERROR(impl.Check(depth, width, "the width"));
  if (width > kMaxDraftLen + 1)
    return absl::InvalidArgumentError(
        StrCat("the width is ", width, ", expected at most ", kMaxDraftLen + 1));
  if (static_cast<int>(impl.continuations[depth].tokens.size()) < width) {
    VC_RETURN_IF_ERROR(impl.Decode(depth, width).status());
  }
  const Continuation& known = impl.continuations[depth];
  VC_RETURN_IF_ERROR(impl.KeepGoing());
  const std::unique_ptr<Sequence> s = impl.SequenceAt(depth, 1);
  for (int i = 0; i + 1 < width; ++i) s->drafted.push_back({known.tokens[i]});
  VC_RETURN_IF_ERROR(s->full.Reserve(width));
  Sequence* sequence = s.get();
  const double start = NowSeconds();
  impl.verifier.Verify({&sequence, 1});
  const double seconds = NowSeconds() - start;
  if (s->finish == FinishReason::kError) return s->error;
  if (s->num_emitted() != width || s->chain.digest() != known.digests[width - 1])
    return absl::InternalError(StrCat("a verification of ", width, " positions at depth ", depth,
                                      " differs from plain decoding: please report this"));
  return WorkSample{seconds, s->chain.Hex()};
}

absl::StatusOr<DraftSample> Benchmark::Draft(int64_t depth, std::string_view spec_text,
                                             int64_t num_steps) {
  Impl& impl = *impl_;
  VC_RETURN_IF_ERROR(impl.Check(depth, num_steps, "the number of steps"));
  VC_ASSIGN_OR_RETURN(const DraftSpec spec, ParseDraftSpec(spec_text));
  if (!spec.enabled || depth < 1)
    return absl::InvalidArgumentError(
        "a draft step needs a draft spec other than off and a depth of 1 or more");
  VC_RETURN_IF_ERROR(impl.KeepGoing());
  const bool is_new = !impl.draft_kvs.contains({depth, spec.ToString()});
  VC_ASSIGN_OR_RETURN(DraftKv* const draft, impl.DraftKvOf(depth, spec));
  DraftSample sample;
  const std::unique_ptr<Sequence> s = impl.SequenceAt(depth, 1);
  sample.kept_fraction =
      static_cast<double>(draft->num_bytes()) / static_cast<double>(s->full.num_bytes());
  s->draft.emplace(std::move(*draft));
  absl::StatusOr<WorkSample> work = WorkSample();
  if (is_new) {
    work = impl.DraftSteps(s.get(), 1);  // touches what is cold
    s->draft->Rollback();
    s->drafted.clear();
  }
  if (work.ok()) work = impl.DraftSteps(s.get(), num_steps);
  s->draft->Rollback();
  *draft = std::move(*s->draft);
  if (!work.ok()) return work.status();
  sample.work = *std::move(work);
  return sample;
}

absl::StatusOr<RoundsSample> Benchmark::Rounds(int64_t depth, std::string_view spec_text,
                                               absl::Span<const TraceRound> rounds) {
  Impl& impl = *impl_;
  VC_ASSIGN_OR_RETURN(const DraftSpec spec, ParseDraftSpec(spec_text));
  if (!spec.enabled || depth < 1 || spec.score_kind() != ScoreKind::kNone)
    return absl::InvalidArgumentError(
        "rounds need a depth of 1 or more and a draft spec that needs no scores of a prompt");
  int64_t num_tokens = 0;
  int most_drafted = 0;
  for (const TraceRound& round : rounds) {
    if (round.drafted < 0 || round.drafted > kMaxDraftLen || round.accepted < 0 ||
        round.accepted > round.drafted)
      return absl::InvalidArgumentError(StrCat("a round accepts ", round.accepted, " of ",
                                               round.drafted, " tokens, expected 0 to ",
                                               kMaxDraftLen));
    num_tokens += round.accepted + 1;
    most_drafted = std::max(most_drafted, round.drafted);
  }
  VC_RETURN_IF_ERROR(impl.Check(depth, num_tokens + most_drafted, "the number of tokens"));
  if (num_tokens < 1) return absl::InvalidArgumentError("there are no rounds");
  if (std::ssize(impl.continuations[depth].tokens) < num_tokens) {
    VC_RETURN_IF_ERROR(impl.Decode(depth, num_tokens).status());
  }
  const Continuation& known = impl.continuations[depth];
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Sequence> s,
                      impl.DraftingAt(depth, spec, most_drafted));
  VC_RETURN_IF_ERROR(s->full.Reserve(num_tokens + most_drafted));
  VC_ASSIGN_OR_RETURN(RoundsSample sample, impl.RunRounds(s.get(), known, rounds));
  if (sample.num_tokens != num_tokens || s->chain.digest() != known.digests[num_tokens - 1])
    return absl::InternalError(
        StrCat("rounds at depth ", depth, " differ from plain decoding: please report this"));
  return sample;
}

absl::StatusOr<double> Benchmark::ReadGbps(int num_tries) {
  VC_RETURN_IF_ERROR(impl_->KeepGoing());
  if (!impl_->read_probe.has_value()) impl_->read_probe.emplace(impl_->engine.pool.get());
  if (!impl_->read_probe->ok())
    return absl::ResourceExhaustedError("no memory for the buffer of the plain read");
  return impl_->read_probe->BestGbps(std::max(1, num_tries));
}

}  // namespace vericache
