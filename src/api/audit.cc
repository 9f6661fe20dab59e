// Computes an answer again and compares: token by token, or in one teacher-forced pass, which is
// sound because a row does not depend on its neighbours (docs/exactness.md).
#include "api/engine_impl.h"
#include "api/rope_settings.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/logits_chain.h"

namespace vericache {
namespace {

std::string HashOfIds(absl::Span<const int32_t> ids) {
  return HexOf(Sha256Of(ids.data(), ids.size() * sizeof(int32_t)));
}

absl::Status CheckRope(const Receipt& receipt, const Model& model) {
  VC_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(*model.file));
  if (const absl::Status status = ApplyRope(receipt.rope, *model.file, &config).status();
      !status.ok())
    return absl::InvalidArgumentError(StrCat("the receipt's rope settings: ", status.message()));
  if (RopeText(config) == RopeText(model.config)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      StrCat("the receipt was made with other rope settings: load the model with ",
             RopeFlags(receipt.rope)));
}

absl::Status CheckReceipt(const Receipt& receipt, const std::string& digest, const Model& model) {
  if (receipt.contract != kContractId)
    return absl::FailedPreconditionError(StrCat("the receipt was made under \"", receipt.contract,
                                                "\", this build computes ", kContractId));
  if (receipt.model_sha256 != digest)
    return absl::FailedPreconditionError(StrCat("the receipt names a model with SHA-256 ",
                                                receipt.model_sha256, ", this model has ", digest));
  if (receipt.token_ids.empty())
    return absl::InvalidArgumentError("the receipt holds no tokens: nothing to audit");
  if (HashOfIds(receipt.prompt_token_ids) != receipt.prompt_hash)
    return absl::InvalidArgumentError("the receipt's prompt_hash is not that of its prompt tokens");
  return CheckRope(receipt, model);
}

}  // namespace

absl::StatusOr<Receipt> Engine::MakeReceipt(const Completion& completion,
                                            const SamplingOptions& sampling) {
  Receipt receipt;
  VC_ASSIGN_OR_RETURN(receipt.model_sha256, ModelDigest());
  receipt.contract = kContractId;
  receipt.rope = impl_->info.rope;
  receipt.model_path = impl_->options.model_path;
  receipt.model_name = receipt.model_path.substr(receipt.model_path.find_last_of('/') + 1);
  receipt.prompt_token_ids = completion.prompt_token_ids;
  receipt.prompt_hash = HashOfIds(receipt.prompt_token_ids);
  receipt.token_ids = completion.token_ids;
  receipt.sampling = sampling;
  receipt.logits_hash = completion.logits_hash;
  return receipt;
}

absl::StatusOr<AuditReport> Engine::Audit(const Receipt& receipt, AuditMode mode,
                                          const Callbacks& callbacks) {
  Impl& impl = *impl_;
  VC_ASSIGN_OR_RETURN(const std::string digest, ModelDigest());
  VC_RETURN_IF_ERROR(CheckReceipt(receipt, digest, *impl.model));
  const double start = NowSeconds();
  Request request;
  request.prompt_token_ids = receipt.prompt_token_ids;
  request.sampling = receipt.sampling;
  request.draft = "off";
  request.ignore_eos = true;         // the receipt says how many tokens there are
  request.use_prefix_cache = false;  // an audit believes nothing that was stored
  request.max_tokens = static_cast<int64_t>(receipt.token_ids.size());
  const int64_t total = static_cast<int64_t>(receipt.prompt_token_ids.size()) + request.max_tokens;
  if (total > impl.info.context_length)
    return absl::OutOfRangeError(StrCat("the receipt has ", total,
                                        " tokens, more than the context of ",
                                        impl.info.context_length, ": raise --ctx"));
  AuditReport report;
  report.expected_hash = receipt.logits_hash;
  std::vector<int32_t> tokens;
  if (mode == AuditMode::kTokenByToken) {
    VC_ASSIGN_OR_RETURN(const Completion completion, Generate(request, nullptr, callbacks));
    tokens = completion.token_ids;
    report.actual_hash = completion.logits_hash;
  } else {
    VC_ASSIGN_OR_RETURN(std::unique_ptr<Sequence> s, impl.MakeSequence(request, nullptr));
    for (int32_t id : receipt.token_ids)
      if (id < 0 || id >= impl.model->config.vocab_size)
        return absl::InvalidArgumentError(StrCat("the receipt holds token id ", id));
    const int64_t num_prompt = s->num_prompt;
    s->tokens.insert(s->tokens.end(), receipt.token_ids.begin(), receipt.token_ids.end() - 1);
    vericache::Prefill prefill(impl.model.get(), impl.forward.get(), impl.pool.get());
    bool bad = false;
    VC_RETURN_IF_ERROR(prefill.Score(
        s.get(), impl.MakePrefillOptions(callbacks), num_prompt - 1,
        [&](int64_t pos, const float* logits) {
          const absl::Span<const TokenId> history =
              absl::MakeConstSpan(s->tokens).subspan(0, pos + 1);
          const RowChoice choice = s->sampler.Choose(logits, pos + 1, history, num_prompt);
          bad = choice.bad;
          tokens.push_back(choice.id);
          s->chain.Push(logits, impl.model->config.vocab_size);
          // After a wrong token the rest of the receipt has no meaning.
          return !bad && choice.id == receipt.token_ids[tokens.size() - 1];
        }));
    if (bad) return NonFiniteLogits(num_prompt + static_cast<int64_t>(tokens.size()) - 1);
    report.actual_hash = s->chain.Hex();
  }
  for (size_t i = 0; i < tokens.size() && report.first_mismatch < 0; ++i) {
    if (tokens[i] == receipt.token_ids[i]) continue;
    report.first_mismatch = static_cast<int64_t>(i);
    report.expected_token = Detokenize({&receipt.token_ids[i], 1});
    report.actual_token = Detokenize({&tokens[i], 1});
  }
  report.num_tokens = static_cast<int64_t>(receipt.token_ids.size());
  report.ok = tokens.size() == receipt.token_ids.size() && report.first_mismatch < 0 &&
              report.actual_hash == report.expected_hash;
  report.seconds = NowSeconds() - start;
  return report;
}

}  // namespace vericache
