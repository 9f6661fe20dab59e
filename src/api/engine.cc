// Loading: file, kernels, weights, tokenizer, template, in the order in which they can fail
// cheaply.
#include "vericache/engine.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "api/engine_impl.h"
#include "api/inspect.h"
#include "api/rope_settings.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

// Bytes the system could give without swapping.
uint64_t AvailableMemory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  while (meminfo >> key >> kib) {
    if (key == "MemAvailable:") return kib << 10;
    meminfo.ignore(256, '\n');
  }
  return 0;
}

// A sequence may not be longer than the model was trained for, nor than its K/V fits in memory.
int64_t DefaultContext(const ModelConfig& config) {
  const uint64_t budget = AvailableMemory() / 10 * 8;  // the rest is for scratch and others
  const int64_t fits = static_cast<int64_t>(budget / config.kv_shape().bytes_per_token());
  if (budget == 0) return config.context_length;
  return std::max<int64_t>(256, std::min(config.context_length, fits / 256 * 256));
}

}  // namespace

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Engine::Engine() : impl_(std::make_unique<Impl>()) {}
Engine::~Engine() = default;
const ModelInfo& Engine::info() const { return impl_->info; }

absl::StatusOr<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine());
  Impl& impl = *engine->impl_;
  impl.options = options;
  VC_ASSIGN_OR_RETURN(const KernelTable* kernels, SelectKernels(options.isa));
  if (options.num_threads < 0 || options.num_threads > 1024)
    return absl::InvalidArgumentError(
        StrCat("threads is ", options.num_threads, ", expected 1 to 1024"));
  VC_ASSIGN_OR_RETURN(const FileIdentity identity, IdentityOfFile(options.model_path));
  VC_ASSIGN_OR_RETURN(std::shared_ptr<const GgufFile> file, GgufFile::Open(options.model_path));
  VC_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(*file));
  VC_ASSIGN_OR_RETURN(const RopeOptions rope, ApplyRope(options.rope, *file, &config));
  if (options.context_length < 0 || options.context_length > config.context_length)
    return absl::InvalidArgumentError(
        StrCat("context length ", options.context_length,
               rope.scaling.empty() ? ": this model was trained for "
                                    : ": this model, scaled so, reaches ",
               config.context_length, " tokens; a larger --rope-scale reaches further"));
  VC_ASSIGN_OR_RETURN(impl.tokenizer, Tokenizer::Create(*file));
  if (impl.tokenizer->vocab_size() > config.vocab_size)
    return absl::InvalidArgumentError(
        StrCat(options.model_path, ": the tokenizer has ", impl.tokenizer->vocab_size(),
               " tokens, but token_embd.weight has ", config.vocab_size, " rows"));
  impl.pool = std::make_unique<ThreadPool>(options.num_threads > 0 ? options.num_threads
                                                                   : DefaultNumThreads());
  VC_ASSIGN_OR_RETURN(impl.model,
                      Model::Load(file, config, kernels, impl.pool.get(), options.on_load));
  impl.forward = std::make_unique<Forward>(impl.model.get(), impl.pool.get());
  if (file->FindValue("tokenizer.chat_template") != nullptr) {
    VC_ASSIGN_OR_RETURN(const std::string_view source, file->GetString("tokenizer.chat_template"));
    impl.chat_template = std::make_unique<ChatTemplate>(
        std::string(source), std::string(impl.tokenizer->TokenBytes(impl.tokenizer->bos_id())),
        std::string(impl.tokenizer->TokenBytes(impl.tokenizer->eos_id())));
  }
  impl.info = DescribeModel(*file, config);
  impl.info.rope = rope;
  impl.info.weight_bytes = impl.model->weights.packed_bytes;
  impl.info.num_threads = impl.pool->num_threads();
  impl.info.isa = kernels->name;
  impl.info.context_length =
      options.context_length > 0 ? options.context_length : DefaultContext(config);
  // Spilled K/V do not count on memory.
  if (options.context_length == 0 && options.kv_memory > 0)
    impl.info.context_length = config.context_length;
  VC_RETURN_IF_ERROR(impl.LoadSmallModel());
  VC_RETURN_IF_ERROR(impl.OpenTier());
  VC_RETURN_IF_ERROR(impl.OpenPrefixCache(identity));
  return engine;
}

absl::StatusOr<std::string> Engine::ModelDigest() {
  if (impl_->digest.empty()) {
    VC_ASSIGN_OR_RETURN(const Sha256Digest digest, Sha256OfFile(impl_->options.model_path));
    impl_->digest = HexOf(digest);
  }
  return impl_->digest;
}

absl::StatusOr<std::vector<int32_t>> Engine::TokenizePrompt(const Request& request) {
  return impl_->PromptTokens(request);
}

std::string Engine::Detokenize(absl::Span<const int32_t> token_ids) const {
  return impl_->tokenizer->Decode(token_ids, SpecialText::kAsToken);
}

absl::StatusOr<std::string> CanonicalDraftSpec(std::string_view spec) {
  VC_ASSIGN_OR_RETURN(const DraftSpec parsed, ParseDraftSpec(spec));
  return parsed.ToString();
}

}  // namespace vericache
