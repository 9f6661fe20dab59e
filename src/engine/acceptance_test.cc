#include "engine/acceptance.h"

#include <string>
#include <vector>

#include "engine/draft_length.h"
#include "gtest/gtest.h"

namespace vericache {
namespace {

constexpr TokenId kStop = 0;

struct Outcome {
  std::vector<TokenId> emitted;
  int num_accepted = 0;
  FinishReason finish = FinishReason::kNone;
};

std::vector<DraftToken> Drafts(const std::vector<TokenId>& ids) {
  std::vector<DraftToken> draft;
  for (TokenId id : ids) draft.push_back({id});
  return draft;
}

// One verification; `truth[i]` is what full-KV decoding emits after the i tokens before it. Checks
// on the way that a row is only asked for when the ones before it were right.
Outcome Walk(const std::vector<TokenId>& draft_ids, const std::vector<TokenId>& truth,
             int64_t max_emit) {
  const std::vector<DraftToken> draft = Drafts(draft_ids);
  AcceptWalk walk(draft, max_emit);
  bool more = true;
  while (more) {
    const size_t row = walk.next_row();
    EXPECT_LE(row, draft.size()) << "there is no such row in the pass";
    for (size_t i = 0; i < row; ++i) EXPECT_EQ(draft_ids[i], truth[i]) << "row of a wrong prefix";
    more = walk.Push(truth[row], truth[row] == kStop);
    EXPECT_EQ(walk.next_row(), static_cast<int64_t>(row) + 1);
  }
  return {walk.emitted(), walk.num_accepted(), walk.finish()};
}

// Plain decoding with full KV: one token at a time, first event wins.
Outcome Plain(const std::vector<TokenId>& truth, size_t count, int64_t max_emit) {
  Outcome out;
  while (out.emitted.size() < count && out.finish == FinishReason::kNone) {
    out.emitted.push_back(truth[out.emitted.size()]);
    if (out.emitted.back() == kStop) {
      out.finish = FinishReason::kStop;
    } else if (static_cast<int64_t>(out.emitted.size()) == max_emit) {
      out.finish = FinishReason::kLength;
    }
  }
  return out;
}

// All sequences over `ids` of length `n`.
std::vector<std::vector<TokenId>> AllSequences(int n, int ids) {
  std::vector<std::vector<TokenId>> all = {{}};
  for (int i = 0; i < n; ++i) {
    std::vector<std::vector<TokenId>> longer;
    for (const auto& prefix : all) {
      for (TokenId id = 0; id < ids; ++id) {
        longer.push_back(prefix);
        longer.back().push_back(id);
      }
    }
    all = std::move(longer);
  }
  return all;
}

// Every draft of up to 4 tokens against every truth, over {stop, a, b}, for every budget.
TEST(AcceptWalk, EmitsWhatPlainDecodingEmits) {
  int64_t num_cases = 0;
  for (int draft_len = 0; draft_len <= 4; ++draft_len) {
    for (const auto& draft : AllSequences(draft_len, 3)) {
      for (const auto& truth : AllSequences(draft_len + 1, 3)) {
        int matching = 0;
        while (matching < draft_len && draft[matching] == truth[matching]) ++matching;
        for (int64_t max_emit = 1; max_emit <= draft_len + 2; ++max_emit) {
          const Outcome got = Walk(draft, truth, max_emit);
          const Outcome want = Plain(truth, matching + 1, max_emit);
          ASSERT_EQ(got.emitted, want.emitted);
          ASSERT_EQ(got.finish, want.finish);
          // All emitted tokens but a correction or bonus were drafted.
          ASSERT_EQ(got.num_accepted,
                    std::min<int>(matching, static_cast<int>(want.emitted.size())));
          ++num_cases;
        }
      }
    }
  }
  EXPECT_GT(num_cases, 100000);
}

// A whole answer, round by round, whatever the drafter says in each.
TEST(AcceptWalk, RoundsAddUpToThePlainAnswer) {
  const std::vector<TokenId> answer = {5, 6, 7, 5, 6, 8, 5, 6, 7, 9, kStop};
  for (int64_t max_tokens = 1; max_tokens <= 12; ++max_tokens) {
    for (int draft_len = 0; draft_len <= 6; ++draft_len) {
      for (int wrong_every = 1; wrong_every <= 7; ++wrong_every) {
        std::vector<TokenId> tokens;
        FinishReason finish = FinishReason::kNone;
        while (finish == FinishReason::kNone) {
          std::vector<TokenId> draft, truth;
          for (int i = 0; i <= draft_len; ++i) {
            const size_t pos = tokens.size() + i;
            truth.push_back(pos < answer.size() ? answer[pos] : 42);
            if (i < draft_len) draft.push_back(pos % wrong_every == 0 ? 99 : truth.back());
          }
          const Outcome out = Walk(draft, truth, max_tokens - static_cast<int64_t>(tokens.size()));
          ASSERT_FALSE(out.emitted.empty()) << "every round makes progress";
          tokens.insert(tokens.end(), out.emitted.begin(), out.emitted.end());
          finish = out.finish;
        }
        const Outcome plain = Plain(answer, answer.size(), max_tokens);
        ASSERT_EQ(tokens, plain.emitted);
        ASSERT_EQ(finish, plain.finish);
      }
    }
  }
}

// cases.md 4: one accepted run holds a stop and crosses max_tokens. The stop comes first.
TEST(AcceptWalk, Case4StopInsideTheRunBeatsTheLength) {
  const std::vector<TokenId> run = {1, 2, kStop, 3, 4, 5};  // a b STOP c d e
  const Outcome in_budget = Walk(run, {1, 2, kStop, 3, 4, 5, 6}, 5);
  EXPECT_EQ(in_budget.emitted, (std::vector<TokenId>{1, 2, kStop}));
  EXPECT_EQ(in_budget.finish, FinishReason::kStop);
  EXPECT_EQ(in_budget.num_accepted, 3);
  // The stop is the last token the budget allows: still a stop.
  const Outcome at_budget = Walk(run, {1, 2, kStop, 3, 4, 5, 6}, 3);
  EXPECT_EQ(at_budget.emitted.size(), 3u);
  EXPECT_EQ(at_budget.finish, FinishReason::kStop);
  // The stop lies beyond the budget: length, and the stop is not emitted.
  const Outcome beyond = Walk(run, {1, 2, kStop, 3, 4, 5, 6}, 2);
  EXPECT_EQ(beyond.emitted, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(beyond.finish, FinishReason::kLength);
  // A stop as correction, and as bonus.
  EXPECT_EQ(Walk({1, 2}, {1, kStop, 3}, 9).finish, FinishReason::kStop);
  EXPECT_EQ(Walk({1, 2}, {1, 2, kStop}, 9).finish, FinishReason::kStop);
  // A stop that only the drafter saw is no stop.
  const Outcome false_stop = Walk({1, kStop}, {1, 2, 3}, 9);
  EXPECT_EQ(false_stop.emitted, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(false_stop.finish, FinishReason::kNone);
}

// cases.md 5: what is delivered is what is charged, for every max_tokens.
TEST(AcceptWalk, Case5EmitsExactlyTheBudget) {
  const std::vector<TokenId> truth = {1, 2, 3, 4, 5};
  for (int64_t max_tokens = 1; max_tokens <= 12; ++max_tokens) {
    int64_t emitted = 0;
    FinishReason finish = FinishReason::kNone;
    while (finish == FinishReason::kNone) {
      const Outcome out = Walk({1, 2, 3, 4}, truth, max_tokens - emitted);
      emitted += static_cast<int64_t>(out.emitted.size());
      EXPECT_LE(emitted, max_tokens);
      finish = out.finish;
    }
    EXPECT_EQ(emitted, max_tokens);
    EXPECT_EQ(finish, FinishReason::kLength);
  }
}

TEST(DraftLength, FixedNeverMoves) {
  DraftLength length = DraftLength::Fixed(7);
  for (int accepted : {7, 0, 3, 7, 7}) {
    EXPECT_EQ(length.next(), 7);
    length.Update(7, accepted);
  }
  EXPECT_EQ(DraftLength::Fixed(1).next(), 1);
  EXPECT_EQ(DraftLength::Fixed(256).next(), 256);
}

TEST(DraftLength, AutoDoublesHalvesAndStaysWithinItsLimits) {
  DraftLength length = DraftLength::Auto();
  EXPECT_EQ(length.next(), 16);
  length.Update(16, 16);
  EXPECT_EQ(length.next(), 32);
  length.Update(32, 31);
  EXPECT_EQ(length.next(), 32) << "nearly all accepted: stay";
  length.Update(32, 16);
  EXPECT_EQ(length.next(), 32) << "one half is not less than one half";
  length.Update(32, 15);
  EXPECT_EQ(length.next(), 16);
  for (int i = 0; i < 10; ++i) length.Update(length.next(), length.next());
  EXPECT_EQ(length.next(), 64);
  for (int i = 0; i < 10; ++i) length.Update(length.next(), 0);
  EXPECT_EQ(length.next(), 4);
  length.Update(4, 4);
  EXPECT_EQ(length.next(), 8);
}

TEST(DraftLength, AShortDraftSaysNothing) {
  DraftLength length = DraftLength::Auto();
  length.Update(5, 5);
  length.Update(0, 0);
  length.Update(15, 0);
  EXPECT_EQ(length.next(), 16);
}

}  // namespace
}  // namespace vericache
