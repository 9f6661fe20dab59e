// The promise on real weights. Needs VERICACHE_MODEL_DIR; without a model it says so and skips.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/support/engine_harness.h"
#include "tests/support/tiny_model.h"
#include "tokenizer/tokenizer.h"

namespace vericache {
namespace {

std::string ModelPath(const std::string& name) {
  return std::string(VERICACHE_MODEL_DIR) + "/" + name + ".gguf";
}

#define NEED_MODEL(name)                                                                      \
  if (!std::filesystem::exists(ModelPath(name)))                                              \
  GTEST_SKIP() << "SKIPPED LOUDLY: no " << ModelPath(name) << "; run scripts/fetch_model.sh " \
               << name << " and configure with -DVERICACHE_MODEL_DIR=DIR"

std::shared_ptr<const GgufFile> OpenModel(const std::string& name) {
  auto file = GgufFile::Open(ModelPath(name));
  EXPECT_TRUE(file.ok()) << file.status();
  return std::shared_ptr<const GgufFile>(std::move(*file));
}

// Real text: the first `n` tokens of a document of this repository.
std::vector<TokenId> RealTokens(const GgufFile& file, int64_t n) {
  std::ifstream in("bench/data/perplexity.txt");
  std::stringstream text;
  text << in.rdbuf();
  auto tokenizer = Tokenizer::Create(file);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  auto ids = (*tokenizer)->Encode(text.str(), SpecialText::kAsText);
  EXPECT_TRUE(ids.ok()) << ids.status();
  EXPECT_GE(static_cast<int64_t>(ids->size()), n);
  ids->resize(n);
  return *ids;
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b,
                    const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

// Every position's logits of a 1,000-token text, for all pass widths.
void CheckAllWidths(const std::string& name, int64_t num_tokens) {
  const auto file = OpenModel(name);
  const std::vector<TokenId> tokens = RealTokens(*file, num_tokens);
  const std::vector<float> reference = Harness(file, "", 2).AllLogits(tokens, 1);
  for (int threads : {1, 2}) {
    Harness harness(file, "", threads);
    // Prefill chunks, then the widths a verification may have (x + 1 rows for x drafted tokens).
    for (int64_t chunk : {512, 7, 64, 2, 3, 4, 5, 6, 8, 15, 16, 17, 31, 32, 33, 40, 65, 129}) {
      if (threads == 1 && chunk != 512 && chunk != 33) continue;
      ExpectSameBits(harness.AllLogits(tokens, chunk), reference,
                     name + " chunk " + std::to_string(chunk));
    }
  }
  // The judge is slow: 64 tokens of it.
  const std::vector<TokenId> few(tokens.begin(), tokens.begin() + 64);
  const std::vector<float> judge = Harness(file, "scalar", 2).AllLogits(few, 64);
  ExpectSameBits(judge, {reference.begin(), reference.begin() + judge.size()}, name + " scalar");
}

TEST(RealModel, SmolLm2LogitsAreTheSameForAnyWidthThreadsAndIsa) {
  NEED_MODEL("smollm2-135m");
  CheckAllWidths("smollm2-135m", 1000);
}

// Emitted tokens and logits hashes, drafted against plain; returns the tokens compared.
int64_t CheckDrafts(const std::string& name, int64_t prompt_len, int64_t num_tokens,
                    const std::vector<std::string>& specs) {
  const auto file = OpenModel(name);
  const std::vector<TokenId> text = RealTokens(*file, 6 * prompt_len);
  Harness harness(file, "", 2);
  int64_t compared = 0, accepted = 0, drafted = 0;
  for (int i = 0; i < 6; ++i) {
    RunTask task;
    task.prompt.assign(text.begin() + i * prompt_len, text.begin() + (i + 1) * prompt_len);
    task.max_tokens = num_tokens;
    if (i % 2 == 1) {
      task.sampling.temperature = 0.8f;
      task.sampling.top_p = 0.95f;
      task.sampling.seed = 100 + i;
    }
    const RunResult plain = harness.Run(task, {});
    for (size_t k = 0; k < specs.size(); ++k) {
      RunKnobs knobs;
      knobs.draft = specs[k];
      knobs.draft_len = k % 2 == 0 ? 0 : 12;
      knobs.chunk = 64 + 31 * k;
      if (k + 1 == specs.size())  // the last one lies to the verifier
        knobs.adversary = [](DraftToken t, int64_t pos) {
          return pos % 3 == 0 ? DraftToken{t.id / 2} : t;
        };
      const RunResult got = harness.Run(task, knobs);
      EXPECT_EQ(got.tokens, plain.tokens) << name << " " << specs[k];
      EXPECT_EQ(got.hash, plain.hash) << name << " " << specs[k];
      compared += static_cast<int64_t>(got.tokens.size());
      accepted += got.accepted;
      drafted += got.drafted;
    }
  }
  std::printf("%s: %lld emitted tokens compared, 0 mismatches (%lld of %lld drafted accepted)\n",
              name.c_str(), static_cast<long long>(compared), static_cast<long long>(accepted),
              static_cast<long long>(drafted));
  EXPECT_GT(accepted, 0);
  return compared;
}

const std::vector<std::string> kSpecs = {"snapkv:0.25+int4", "int8",        "int4",
                                         "sink:0.25",        "snapkv:0.25", "sink:0.1+int8"};

TEST(RealModel, SmolLm2DraftedTokensEqualPlainOnes) {
  NEED_MODEL("smollm2-135m");
  EXPECT_GE(CheckDrafts("smollm2-135m", 300, 96, kSpecs), 3000);
}

TEST(RealModel, QwenCoder05DraftedTokensEqualPlainOnes) {
  NEED_MODEL("qwen2.5-coder-0.5b");
  EXPECT_GE(CheckDrafts("qwen2.5-coder-0.5b", 400, 64, kSpecs), 2000);
}

TEST(RealModel, QwenCoder15DraftedTokensEqualPlainOnes) {
  NEED_MODEL("qwen2.5-coder-1.5b");
  EXPECT_GE(CheckDrafts("qwen2.5-coder-1.5b", 150, 24, {"snapkv:0.25+int4", "int8", "sink:0.25"}),
            400);
}

TEST(RealModel, QwenCoder05LogitsAreTheSameForAnyWidthThreadsAndIsa) {
  NEED_MODEL("qwen2.5-coder-0.5b");
  CheckAllWidths("qwen2.5-coder-0.5b", 200);
}

}  // namespace
}  // namespace vericache
