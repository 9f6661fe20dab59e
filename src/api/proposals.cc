#include "api/proposals.h"

#include <algorithm>

#include "absl/strings/str_split.h"
#include "api/engine_impl.h"
#include "base/check.h"
#include "base/text.h"

namespace vericache {
namespace {

void LookUp(Sequence* s, int64_t max_tokens, std::vector<TokenId>* proposal) {
  if (!s->ngrams.has_value()) s->ngrams.emplace();
  s->ngrams->Update(s->tokens);
  std::vector<TokenId> drafted;
  drafted.reserve(s->drafted.size());
  for (const DraftToken token : s->drafted) drafted.push_back(token.id);
  s->ngrams->Propose(s->tokens, drafted, max_tokens, proposal);
}

void Trim(const ProposalWish& wish, int64_t vocab_size) {
  std::vector<TokenId>& tokens = *wish.proposal;
  if (wish.sequence->heckler) wish.sequence->heckler(*wish.sequence, wish.max_tokens, &tokens);
  size_t size = 0;
  while (size < tokens.size() && static_cast<int64_t>(size) < wish.max_tokens &&
         tokens[size] >= 0 && tokens[size] < vocab_size) {
    if (wish.sequence->ends_generation(tokens[size++])) break;
  }
  tokens.resize(size);
}

}  // namespace

absl::StatusOr<uint32_t> ModesOf(const std::string& propose, bool with_draft_kv, bool auto_len,
                                 bool has_model) {
  const uint32_t plain = ModeBit(DraftMode::kPlain);
  uint32_t modes = plain | ModeBit(DraftMode::kDraftKv);
  if (propose.empty()) {
    if (auto_len && with_draft_kv) modes |= kNgramModes | (has_model ? kModelModes : 0);
  } else if (propose != "off") {
    for (const absl::string_view word : absl::StrSplit(propose, ',')) {
      if (word == "ngram") {
        modes |= kNgramModes;
      } else if (word != "model") {
        return absl::InvalidArgumentError(
            StrCat("proposals '", propose, "': expected ngram, model, ngram,model, or off"));
      } else if (!has_model) {
        return absl::InvalidArgumentError(
            "proposals by a model need one: give --draft-model a smaller model of this family");
      } else {
        modes |= kModelModes;
      }
    }
  }
  return with_draft_kv ? modes : modes & ~kDraftKvModes;
}

void MakeProposals(absl::Span<ProposalWish> wishes, int64_t vocab_size, ModelProposer* model) {
  std::vector<ModelProposal> jobs;
  for (ProposalWish& wish : wishes) {
    if ((ModeBit(wish.mode) & kModelModes) != 0) {
      jobs.push_back({wish.sequence, wish.max_tokens, wish.proposal});
      continue;
    }
    const double start = NowSeconds();
    LookUp(wish.sequence, wish.max_tokens, wish.proposal);
    wish.seconds = NowSeconds() - start;
  }
  if (!jobs.empty()) {
    VC_CHECK(model != nullptr);
    const double start = NowSeconds();
    model->Propose(jobs);
    const double share = (NowSeconds() - start) / static_cast<double>(jobs.size());
    for (ProposalWish& wish : wishes)
      if ((ModeBit(wish.mode) & kModelModes) != 0) wish.seconds = share;
  }
  for (const ProposalWish& wish : wishes) Trim(wish, vocab_size);
}

}  // namespace vericache
