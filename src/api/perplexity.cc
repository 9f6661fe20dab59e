#include <cmath>

#include "api/engine_impl.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

// -log softmax(logits)[token], in fp64.
double NegLogLikelihood(const float* logits, int64_t n, TokenId token) {
  double max = logits[0];
  for (int64_t i = 1; i < n; ++i) max = std::max(max, static_cast<double>(logits[i]));
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(logits[i]) - max);
  return std::log(sum) + max - static_cast<double>(logits[token]);
}

}  // namespace

absl::StatusOr<PerplexityReport> Engine::Perplexity(std::string_view text, int64_t window,
                                                    const Callbacks& callbacks) {
  Impl& impl = *impl_;
  if (window < 2 || window > impl.info.context_length)
    return absl::InvalidArgumentError(
        StrCat("window is ", window, ", expected 2 to ", impl.info.context_length));
  VC_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                      impl.tokenizer->Encode(text, SpecialText::kAsText));
  PerplexityReport report;
  report.num_tokens = static_cast<int64_t>(tokens.size());
  report.num_windows = report.num_tokens / window;
  if (report.num_windows == 0)
    return absl::InvalidArgumentError(
        StrCat("the text has ", report.num_tokens, " tokens, less than one window of ", window));
  double nll = 0;
  vericache::Prefill prefill(impl.model.get(), impl.forward.get(), impl.pool.get());
  for (int64_t w = 0; w < report.num_windows; ++w) {
    Sequence sequence(impl.NewFullKv(), Sampler({}, impl.model->config.vocab_size,
                                                impl.tokenizer->vocab_size(), impl.model->kernels));
    const TokenId* begin = tokens.data() + w * window;
    sequence.tokens.assign(begin, begin + window - 1);  // the last token is only predicted
    PrefillOptions options;
    options.chunk_rows = impl.options.prefill_chunk;
    VC_RETURN_IF_ERROR(prefill.Score(&sequence, options, 0, [&](int64_t pos, const float* logits) {
      nll += NegLogLikelihood(logits, impl.model->config.vocab_size, begin[pos + 1]);
      ++report.num_scored;
      return true;
    }));
    if (callbacks.on_prefill &&
        !callbacks.on_prefill((w + 1) * window, report.num_windows * window))
      return absl::CancelledError("stopped");
  }
  report.mean_nll = nll / static_cast<double>(report.num_scored);
  report.perplexity = std::exp(report.mean_nll);
  return report;
}

}  // namespace vericache
