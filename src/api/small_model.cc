// The small model that proposes tokens: loaded beside the engine's own, over the same tokenizer.
#include "api/engine_impl.h"
#include "api/rope_settings.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {

absl::Status Engine::Impl::LoadSmallModel() {
  const std::string& path = options.draft_model_path;
  if (path.empty()) return absl::OkStatus();
  VC_ASSIGN_OR_RETURN(std::shared_ptr<const GgufFile> file, GgufFile::Open(path));
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> other, Tokenizer::Create(*file));
  // Ids are all that the two models exchange.
  bool same = other->vocab_size() == tokenizer->vocab_size();
  for (TokenId id = 0; same && id < tokenizer->vocab_size(); ++id)
    same = other->TokenBytes(id) == tokenizer->TokenBytes(id);
  if (!same)
    return absl::InvalidArgumentError(StrCat("the draft model ", path,
                                             " has another tokenizer than ", options.model_path,
                                             ": give a smaller model of the same family"));
  VC_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(*file));
  RopeOptions rope = options.rope;
  rope.orig_context = 0;  // its own
  if (const absl::Status status = ApplyRope(rope, *file, &config).status(); !status.ok())
    return absl::InvalidArgumentError(StrCat("the draft model ", path, ": ", status.message()));
  VC_ASSIGN_OR_RETURN(small_model,
                      Model::Load(std::move(file), config, model->kernels, pool.get()));
  small = std::make_unique<ModelProposer>(small_model.get(), tokenizer->vocab_size(), pool.get());
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Engine::Impl::DraftModesOf(const Request& request,
                                                    bool with_draft_kv) const {
  return ModesOf(request.propose, with_draft_kv, request.draft_len == 0, small != nullptr);
}

}  // namespace vericache
