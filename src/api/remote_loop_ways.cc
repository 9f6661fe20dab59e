// Which way a request goes on: at its verifier, by drafts or plainly, or here, with its full blocks
// loaded or computed. The prediction is scheduler/prefix_plan.h.
//
// A request begins at its verifier: that costs it nothing, and what a choice needs is measured
// meanwhile. It is looked at when the fetch of its draft KV is over, by which the store's link is
// known; and once more when questions have been measured, if none had been by then. Full blocks are
// loaded while the verifier answers, so a request that turns out to be short has lost nothing but
// bytes; where they come soon the load begins with the first look already. From here no request
// goes back.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "api/remote_loop_impl.h"
#include "base/common_tokens.h"
#include "base/text.h"
#include "engine/lookup_run.h"

namespace vericache {
namespace {

// Questions by which the verifier's times are known.
constexpr int64_t kMeasuredQuestions = 3;
// Of the verifier's loads from the store next to it, unless this node's own are faster: a core that
// receives and checks them gives no more.
constexpr double kNearBytesPerSecond = 400e6;

// Of the time that the verifier is guessed to take: blocks that are here by then are loaded before
// questions have been measured.
constexpr double kSoonShare = 0.33;

// What EngineOptions::prefix_plan asks for, as far as it can be had.
PrefixWay WayAsked(std::string_view asked, const PrefixPlanInput& in) {
  if (asked == "remote-plain") return PrefixWay::kRemotePlain;
  if (asked == "remote" || !in.fits_here) return PrefixWay::kRemote;
  if (asked == "recompute") return PrefixWay::kRecompute;
  return std::max(in.prefix_tokens, in.known_tokens) > 0 ? PrefixWay::kLoad : PrefixWay::kRemote;
}

}  // namespace

// What both begin with is wanted once.
bool RemoteLoop::OtherLoads(const Job& job) const {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    const Job& other = *entry.second;
    if (&other == &job || other.load == nullptr ||
        other.state.request().prefix_salt != job.state.request().prefix_salt)
      return false;
    return CommonTokens(job.state.sequence().tokens, other.state.sequence().tokens) >= kBlockTokens;
  });
}

// Of this answer and those before, as if a few tokens had shown nothing.
double RemoteLoop::LookupRunOf(const Sequence& s) const {
  constexpr double kPriorTokens = 8;
  const LookupRun run = ReplayLookup(s.tokens, s.num_prompt, kLookupDraft);
  return (kPriorTokens + lookup_tokens_ + static_cast<double>(run.tokens)) /
         (kPriorTokens + lookup_rounds_ + static_cast<double>(run.rounds));
}

void RemoteLoop::ObserveLookup(const Sequence& s) {
  constexpr double kDecay = 0.7;
  const LookupRun run = ReplayLookup(s.tokens, s.num_prompt, kLookupDraft);
  lookup_tokens_ = kDecay * lookup_tokens_ + static_cast<double>(run.tokens);
  lookup_rounds_ = kDecay * lookup_rounds_ + static_cast<double>(run.rounds);
}

PrefixPlanInput RemoteLoop::PlanInputOf(const Job& job) const {
  const Sequence& s = job.state.sequence();
  const Request& request = job.state.request();
  const auto prompt = absl::MakeConstSpan(s.tokens).first(s.num_prompt);
  const StoreLink link = impl_->prefixes->Link();
  PrefixPlanInput in;
  in.prompt_tokens = std::ssize(s.tokens);
  in.known_tokens = impl_->prefixes->TokensInMemory(prompt, request.prefix_salt);
  in.row_bytes = static_cast<int64_t>(impl_->model->config.kv_shape().bytes_per_token());
  in.prefix_tokens = job.stored_tokens;
  in.full_bytes = static_cast<uint64_t>(job.stored_tokens) * in.row_bytes;
  in.draft_kv_bytes = static_cast<int64_t>(job.state.draft_bytes());
  if (in.draft_kv_bytes > 0) in.draft_tokens = job.state.stats().draft_tokens;
  const int64_t most = std::max<int64_t>(1, s.max_tokens - s.num_emitted());
  in.max_tokens =
      request.ignore_eos ? most : std::max<int64_t>(1, std::llround(length_.Expected(most)));
  in.link_bytes_per_s = link.bytes_per_s;
  in.round_trip_s = link.round_trip_s;
  for (const auto& [id, other] : jobs_) {
    if (other->load == nullptr) continue;
    const uint64_t bytes = static_cast<uint64_t>(other->stored_tokens) * in.row_bytes;
    const uint64_t left = bytes - std::min(bytes, other->load->lookup().progress().bytes_done);
    if (other.get() == &job) {
      in.full_bytes = left;  // it has begun
    } else {
      in.link_queue_bytes += left;
    }
  }
  in.agreement = job.state.acceptance().Mean(acceptance_.Mean(DraftMode::kDraftKv));
  const bool looks_up =
      (impl_->DraftModesOf(request, s.spec.enabled).value_or(0) & ModeBit(DraftMode::kNgram)) != 0;
  if (looks_up) in.lookup_run = LookupRunOf(s);
  in.max_draft_len = request.draft_len > 0 ? request.draft_len : kMaxDraftLen;
  in.verifier = true;
  AddCrowd(job, &in);
  RemoteLengthLimits limits = LimitsOf(job);
  limits.may_be_plain = false;
  const RemoteLength remote =
      costs_.Choose(job.state.acceptance(), acceptance_.Mean(DraftMode::kDraftKv), limits);
  in.verifier_round_trip_s = remote.round_trip_s;
  in.verifier_plain_tokens = options_.remote.plain_tokens;
  if (costs_.num_questions() >= kMeasuredQuestions) {
    if (remote.draft_len > 0) in.remote_tokens_per_s = remote.tokens_per_s;
    in.remote_plain_tokens_per_s = remote.plain_tokens_per_s;
    in.num_measured = costs_.num_own();
    in.remote_lookup_s = remote.round_trip_s + remote.verify_s + kLookupDraft * remote.row_s;
  }
  const PromptRows rows = PromptRowsThere(job);
  const CostModel& costs = impl_->Learned()->costs;
  if (s.num_emitted() == 0) {
    const double near_bytes_per_s = std::max(kNearBytesPerSecond, in.link_bytes_per_s);
    const double load_s =
        job.begins_like_earlier ? 0 : static_cast<double>(in.full_bytes) / near_bytes_per_s;
    const double ready_s =
        load_s + PrefillSeconds(costs, in.prefix_tokens, in.prompt_tokens + rows.before);
    in.verifier_ready_s = std::max(0.0, ready_s - (NowSeconds() - job.added_s));
  }
  if (rows.behind > 0)
    in.verifier_prompts_s = in.verifier_ready_s +
                            PrefillSeconds(costs, in.prompt_tokens, in.prompt_tokens + rows.behind);
  in.fits_here = job.hooks.fits_here && job.hooks.fits_here(s);
  return in;
}

// Of prompts that the verifier has yet to compute, in the order of their arrival.
RemoteLoop::PromptRows RemoteLoop::PromptRowsThere(const Job& job) const {
  PromptRows rows;
  for (const auto& [id, other] : jobs_) {
    if (id == job.id || other->leaves || other->state.sequence().num_emitted() > 0) continue;
    (id < job.id ? rows.before : rows.behind) += other->prompt_rows();
  }
  // Those of other nodes as if they were like this one.
  if (const Peer* peer = LikelyPeer(job))
    rows.behind += peer->num_other_prompts * job.prompt_rows();
  return rows;
}

// Who would share passes with it, here and there: without that all of a crowd would leave, each as
// if it were alone.
void RemoteLoop::AddCrowd(const Job& job, PrefixPlanInput* in) const {
  WorkHere here = options_.work_here ? options_.work_here() : WorkHere();
  int num_remote = 1;
  for (const auto& [id, other] : jobs_) {
    if (other.get() == &job) continue;
    if (!other->leaves) {
      ++num_remote;
      continue;
    }
    ++here.requests;
    here.prompt_rows += other->prompt_rows();
  }
  in->num_active = 1 + here.requests;
  in->num_remote = num_remote;
  if (const Peer* peer = LikelyPeer(job)) in->num_elsewhere = peer->num_others;
  in->prompts_ahead_s = PrefillSeconds(impl_->Learned()->costs, in->prompt_tokens,
                                       in->prompt_tokens + here.prompt_rows);
}

void RemoteLoop::ChooseWay(Job* job) {
  const std::string& asked = impl_->options.prefix_plan;
  if (job->settled || job->fetch != Fetch::kOver) return;
  RemoteStats& stats = job->state.stats();
  if (!job->state.request().use_prefix_cache || impl_->prefixes == nullptr) {
    job->settled = true;
    stats.reason = "it uses no stored prefix";
    return;
  }
  job->plain = asked == "remote-plain";
  const Peer* peer = LikelyPeer(*job);
  const bool disturbed = peer != nullptr && peer->disturbed();
  const bool measured =
      asked != "auto" || (costs_.num_questions() >= kMeasuredQuestions && !disturbed);
  if (job->looked_at && !measured) return;
  if (OtherLoads(*job)) {
    if (stats.reason.empty()) stats.reason = "what it begins with is loaded for another request";
    return;
  }
  const PrefixPlanInput in = PlanInputOf(*job);
  job->looked_at = true;
  job->settled = measured;
  // What nobody has seen, neither a prefix nor the link to it, is the verifier's.
  const bool sees = in.prefix_tokens > 0 && in.link_bytes_per_s > 0;
  if (asked == "auto" && !sees && in.known_tokens == 0) {
    stats.reason = in.prefix_tokens > 0 ? "how fast the store is, is not known"
                                        : "the store has no prefix of it, as far as is known";
    return;
  }
  const PrefixPlan plan = PlanPrefix(in, impl_->Learned()->costs);
  PrefixWay way = plan.way;
  stats.reason = plan.reason;
  if (asked != "auto") {
    way = WayAsked(asked, in);
    stats.reason = StrCat("asked for; by itself ", plan.reason);
  }
  stats.estimates.clear();
  for (int i = 0; i < kNumPrefixWays; ++i) {
    const PrefixEstimate& e = plan.estimates[i];
    if (e.possible)
      stats.estimates.push_back({PrefixWayName(static_cast<PrefixWay>(i)), e.first_s, e.last_s,
                                 e.tokens_per_s, e.link_bytes});
  }
  stats.expected_tokens = static_cast<double>(in.max_tokens);
  stats.chosen_s = NowSeconds() - job->added_s;
  TakeWay(job, way, in);
  // Guesses do not tell whether it pays to leave; blocks that come soon are here when it is known.
  const PrefixEstimate& load = plan.of(PrefixWay::kLoad);
  const PrefixEstimate& stay = plan.of(PrefixWay::kRemotePlain);
  if (!job->settled && load.possible &&
      static_cast<double>(in.full_bytes + in.link_queue_bytes) <
          kSoonShare * stay.last_s * in.link_bytes_per_s)
    StartLoad(job);
}

// Begins to load what may be wanted. False: it cannot be.
bool RemoteLoop::StartLoad(Job* job) {
  if (job->load == nullptr && job->hooks.start_load)
    job->load = job->hooks.start_load(&job->state.sequence(), [this] { Push(nullptr); });
  return job->load != nullptr;
}

void RemoteLoop::TakeWay(Job* job, PrefixWay way, const PrefixPlanInput& in) {
  RemoteStats& stats = job->state.stats();
  if (way == PrefixWay::kLoad && in.prefix_tokens > in.known_tokens && !StartLoad(job)) {
    way = PrefixWay::kRemote;
    stats.reason += "; it cannot be loaded here";
  }
  job->way = way;
  job->leaves = way == PrefixWay::kLoad || way == PrefixWay::kRecompute;
  if (job->leaves) job->settled = true;
  stats.plan = PrefixWayName(way);
  if (job->settled && way != PrefixWay::kLoad) DropLoad(job);
}

void RemoteLoop::CountLoaded(Job* job) {
  const uint64_t bytes = job->load->lookup().progress().bytes_done;
  job->state.stats().full_bytes += bytes;
  totals_.full_bytes += bytes;
}

// What has come for one that has not left is in RAM for all: no choice waits for it any more. And
// one whose blocks did not all come has nothing to leave for.
void RemoteLoop::TakeLoads() {
  for (const auto& [id, job] : jobs_) {
    if (job->load == nullptr || !job->load->done()) continue;
    const int64_t loaded = job->load->lookup().progress().blocks_done * kBlockTokens;
    const bool failed = loaded < job->stored_tokens;
    if (job->leaves && failed) Stay(job.get(), loaded);
    job->has_loaded = !failed;
    if (job->leaves || !(failed || job->hooks.keep_load)) continue;
    CountLoaded(job.get());
    if (job->hooks.keep_load) job->hooks.keep_load(job->state.sequence(), job->load->Take());
    job->load.reset();
  }
}

void RemoteLoop::Stay(Job* job, int64_t loaded) {
  job->leaves = false;
  job->way = PrefixWay::kRemote;
  RemoteStats& stats = job->state.stats();
  stats.plan = PrefixWayName(job->way);
  stats.reason += StrCat("; only ", loaded, " of ", job->stored_tokens, " tokens came");
}

void RemoteLoop::DropLoad(Job* job) {
  if (job->load == nullptr) return;
  CountLoaded(job);
  job->load->Cancel();
  job->load.reset();
}

// A question that is away brings tokens soon, unless it waits for a prompt.
bool RemoteLoop::MayLeave(const Job& job) const {
  if (!job.leaves || (job.load != nullptr && !job.has_loaded)) return false;
  if (job.state.sequence().num_emitted() < options_.remote.least_tokens_for_tests) return false;
  return !job.asking() || job.first_reply;
}

}  // namespace vericache
