#include "api/engine_impl.h"

namespace vericache {

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

const std::vector<int32_t>& Session::token_ids() const { return state_->tokens; }
size_t Session::num_bytes() const { return state_->full.num_bytes(); }

Session Session::Fork() const {
  auto state = std::make_unique<State>(state_->full.Fork());
  state->tokens = state_->tokens;
  state->draft_spec = state_->draft_spec;
  state->scores = state_->scores;
  if (state_->draft.has_value()) state->draft.emplace(state_->draft->Copy());
  return Session(std::move(state));
}

Session Engine::NewSession() const {
  return Session(std::make_unique<Session::State>(impl_->NewFullKv()));
}

}  // namespace vericache
