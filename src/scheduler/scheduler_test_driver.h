// For tests: requests in round numbers, and a machine on which they run.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "scheduler/scheduler.h"

namespace vericache {

inline constexpr int64_t kFull = 100;  // bytes of full KV a token
inline constexpr uint32_t kPlainOnly = ModeBit(DraftMode::kPlain);

inline Limits RamLimits(int64_t tokens) {
  Limits limits;
  limits.kv_bytes = tokens * kFull;
  limits.pass = PassGuess::Of(0.01);
  return limits;
}

inline Limits SpillLimits(int64_t kv_bytes, int64_t staging_bytes) {
  Limits limits = RamLimits(0);
  limits.kv_bytes = kv_bytes;
  limits.staging_bytes = staging_bytes;
  limits.spill_bytes = int64_t{1} << 40;
  limits.link_bytes_per_s = 1e6;
  return limits;
}

inline RequestInfo Request(RequestId id, int64_t prompt, int64_t max_tokens,
                           uint32_t modes = kPlainOnly) {
  RequestInfo info;
  info.id = id;
  info.prompt_tokens = prompt;
  info.max_tokens = max_tokens;
  info.full_bytes_per_token = kFull;
  info.draft_bytes_per_token = 10;
  info.tail_bytes_per_token = kFull;
  info.min_staging_bytes = 1000;
  info.modes = modes;
  return info;
}

inline const Work* FindWork(const StepPlan& plan, RequestId id) {
  for (const Work& work : plan.work) {
    if (work.id == id) return &work;
  }
  return nullptr;
}

// Runs plans on a machine where every row takes 1 ms, every draft is accepted and every answer runs
// to max_tokens. `emitted` and `rows` are its own books.
class Driver {
 public:
  explicit Driver(const Limits& limits, const SchedulerOptions& options = {},
                  std::shared_ptr<Experience> experience = nullptr)
      : scheduler(limits, options, std::move(experience)), limits_(limits) {}

  void Add(const RequestInfo& info) {
    ASSERT_TRUE(scheduler.Add(info, now_s).ok());
    infos_[info.id] = info;
    rows[info.id] = info.cached_tokens;
  }

  StepPlan Plan() { return scheduler.Schedule(now_s); }

  StepReport Execute(const StepPlan& plan) {
    for (const Preemption& p : plan.preempt) {
      if (p.drop_full_kv) rows[p.id] = 0;
      drafted[p.id] = 0;
    }
    for (const HotGrant& grant : plan.hot) hot_[grant.id] = grant.bytes;
    StepReport report;
    report.step_idx = plan.step_idx;
    for (const Work& work : plan.work) {
      report.results.push_back(Run(work));
      const int64_t closed = rows[work.id] / kBlockTokens * kBlockTokens * kFull;
      report.results.back().hot_bytes = std::min(hot_[work.id], closed);
      report.pass_s += 0.001 * work.rows;
      if (work.kind == WorkKind::kVerify && work.draft_len > 0) report.pass_s += choose_s;
    }
    now_s += report.pass_s;
    report.end_s = now_s;
    return report;
  }

  StepPlan Step() {
    const StepPlan plan = Plan();
    if (!plan.idle()) {
      const StepReport report = Execute(plan);
      EXPECT_TRUE(scheduler.Report(report).ok());
    }
    return plan;
  }

  void RunToEnd(int max_steps = 5000) {
    for (int i = 0; i < max_steps; ++i) {
      if (Step().idle()) return;
    }
    FAIL() << "still running";
  }

  Scheduler scheduler;
  std::map<RequestId, int64_t> emitted, rows, drafted;
  std::map<RequestId, int> num_ended;
  double choose_s = 0;   // more for a verification of a draft
  bool retries = false;  // streamed passes find their tier not delivering
  double now_s = 0;

 private:
  WorkResult Run(const Work& work) {
    const RequestInfo& info = infos_.at(work.id);
    WorkResult result;
    result.id = work.id;
    result.kind = work.kind;
    result.rows = work.rows;
    result.draft_bytes = (info.prompt_tokens + emitted[work.id]) * 10;
    if (retries && work.streamed_bytes > 0) {
      result.outcome = WorkOutcome::kRetry;
      return result;
    }
    if (work.kind == WorkKind::kDraft) {
      result.num_drafted = work.rows;
      drafted[work.id] += work.rows;
      return result;
    }
    if (work.kind == WorkKind::kPrefill) {
      rows[work.id] += work.rows;
      const bool first = emitted[work.id] == 0 && rows[work.id] == info.prompt_tokens;
      result.num_emitted = first ? 1 : 0;
    } else {
      result.num_drafted = result.num_accepted = work.draft_len;
      result.num_emitted = work.draft_len + 1;
      rows[work.id] += result.num_emitted;
      drafted[work.id] = 0;
    }
    emitted[work.id] += result.num_emitted;
    if (emitted[work.id] == info.max_tokens) {
      result.outcome = WorkOutcome::kFinished;
      ++num_ended[work.id];
    }
    return result;
  }

  Limits limits_;
  std::map<RequestId, RequestInfo> infos_;
  std::map<RequestId, int64_t> hot_;
};

}  // namespace vericache
