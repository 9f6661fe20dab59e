// What the tests of the prefix cache share: prompts, answers, a model and a store of their own.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/mixed_requests.h"
#include "vericache/engine.h"

namespace vericache {

inline std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Request Ask(std::vector<int32_t> prompt, const std::string& draft = "off",
                   int64_t max_tokens = 20) {
  Request request;
  request.prompt_token_ids = std::move(prompt);
  request.draft = draft;
  request.max_tokens = max_tokens;
  request.draft_len = 5;
  request.ignore_eos = true;
  return request;
}

struct Answer {
  std::vector<int32_t> ids;
  std::string hash;
  bool operator==(const Answer&) const = default;
};

inline Answer AnswerOf(const absl::StatusOr<Completion>& completion) {
  EXPECT_TRUE(completion.ok()) << completion.status();
  if (!completion.ok()) return {};
  return {completion->token_ids, completion->logits_hash};
}

class PrefixFixture : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    // Tests of one name stand in several programs, which ctest runs beside each other.
    folder_ = std::filesystem::path(testing::TempDir()) /
              (std::string("prefix_") + info->name() + "_" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    store_ = folder_ / "store";
    model_ = folder_ / "model.gguf";
    std::filesystem::copy_file("tests/golden/model/llama_tied.gguf", model_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  EngineOptions Options() const {
    EngineOptions options;
    options.model_path = model_;
    options.num_threads = 2;
    return options;
  }
  EngineOptions WithStore() const {
    EngineOptions options = Options();
    options.prefix_store = store_;
    return options;
  }
  EngineOptions WithMemory() const {
    EngineOptions options = Options();
    options.prefix_memory_bytes = 64 << 20;
    return options;
  }
  static std::unique_ptr<Engine> Load(const EngineOptions& options) {
    auto engine = Engine::Load(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  std::vector<std::filesystem::path> Blobs() const {
    std::set<std::filesystem::path> blobs;
    if (std::filesystem::exists(store_ / "blobs"))
      for (const auto& entry : std::filesystem::recursive_directory_iterator(store_ / "blobs"))
        if (entry.is_regular_file()) blobs.insert(entry.path());
    return {blobs.begin(), blobs.end()};
  }

  std::filesystem::path folder_, store_, model_;
};

}  // namespace vericache
