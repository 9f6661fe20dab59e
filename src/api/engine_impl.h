// What an Engine is made of (internal to src/api).
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/prefill.h"
#include "engine/round.h"
#include "engine/sequence.h"
#include "kv/selectors/score_io.h"
#include "model/forward.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "vericache/engine.h"

namespace vericache {

struct Session::State {
  std::vector<TokenId> tokens;  // [full.num_tokens()]
  FullKv full;
  std::optional<DraftKv> draft;  // over the same tokens, made by `draft_spec`
  std::string draft_spec;
  // By DraftSpec::score_key(): what Score() and requests have made over the first tokens.
  ScoreSets scores;

  explicit State(FullKv full_kv) : full(std::move(full_kv)) {}
};

struct Engine::Impl {
  EngineOptions options;
  ModelInfo info;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;  // null if the file has none
  std::unique_ptr<Forward> forward;
  std::string digest;          // hex SHA-256 of the file, once computed
  std::set<std::string> told;  // notices

  // Checks a request and makes its sequence; reuses the session's longest common prefix.
  absl::StatusOr<std::unique_ptr<Sequence>> MakeSequence(const Request& request,
                                                         const Session* session);
  absl::StatusOr<std::vector<TokenId>> PromptTokens(const Request& request);
  // What the spec needs from outside the K/V: scores the session has, a file, kvzip's instruction.
  // ERRORS: those of the file.
  absl::Status EquipDraft(const Session* session, Sequence* sequence);
  absl::StatusOr<RepeatPrompt> MakeRepeatPrompt();
  void Tell(const std::string& text) {
    if (told.insert(text).second && options.on_notice) options.on_notice(text);
  }
  PrefillOptions MakePrefillOptions(const Callbacks& callbacks) const;
  FullKv NewFullKv() const { return FullKv(model->config.kv_shape(), model->kernels); }
  Completion Finish(const Sequence& sequence, int64_t cached_tokens, double prefill_s) const;
  // common: tokens that the session already had.
  void Store(Sequence* sequence, int64_t common, Session* session) const;
};

// Seconds since some fixed point.
double NowSeconds();

}  // namespace vericache
