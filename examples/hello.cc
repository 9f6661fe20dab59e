// The smallest program on the library: one answer drafted on a compressed KV cache, one without,
// and the proof that they are the same.
#include <cstdio>
#include <string>

#include "vericache/engine.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: hello MODEL.gguf [PROMPT]\n");
    return 2;
  }
  vericache::EngineOptions options;
  options.model_path = argv[1];
  const auto engine = vericache::Engine::Load(options);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", std::string(engine.status().message()).c_str());
    return 1;
  }
  vericache::Request request;
  request.prompt = argc > 2 ? argv[2] : "The quick brown fox jumps over the lazy dog. The quick";
  request.max_tokens = 48;
  request.draft = "int8";
  const auto drafted = (*engine)->Generate(request);
  request.draft = "off";
  const auto plain = (*engine)->Generate(request);
  for (const auto* result : {&drafted, &plain}) {
    if (result->ok()) continue;
    std::fprintf(stderr, "%s\n", std::string(result->status().message()).c_str());
    return 1;
  }
  std::printf("%s\n", drafted->text.c_str());
  const bool same =
      drafted->token_ids == plain->token_ids && drafted->logits_hash == plain->logits_hash;
  std::printf("%.1f tokens a round; the same tokens: %s\n", drafted->stats.mean_run_length,
              same ? "yes" : "NO");
  return same ? 0 : 1;
}
