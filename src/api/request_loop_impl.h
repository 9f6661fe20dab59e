// A request as the loop knows it (internal to request_loop*.cc).
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "api/request_loop.h"

namespace vericache {

struct RequestLoop::Running {
  std::unique_ptr<Sequence> sequence;
  LoopHooks hooks;
  std::optional<PromptJob> prompt;
  bool drafts = false;       // its spec asked for a draft KV
  bool draft_ended = false;  // nothing sensible can follow the last drafted token
  double added_s = 0;
  double last_tokens_s = 0;
  double round_draft_s = 0;  // of the current round
  double proposal_s = 0;     // of the current step
  std::vector<TokenId> proposal;
  uint32_t modes = 0;
  bool no_staging = false;  // in the current step
  size_t round_draft_bytes = 0, round_full_bytes = 0;
  // Remote requests.
  bool remote = false;
  bool begun = false;             // its prompt was computed once
  bool parked = false;            // waits for a question
  std::vector<TokenId> question;  // its drafted tokens
  int plain_left = 0;             // tokens that a question without any still wants
  RequestTimes times;
};

}  // namespace vericache
