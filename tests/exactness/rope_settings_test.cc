// Angles decide every K: an answer, a receipt, a session and a stored prefix belong to one rope
// setting and to no other (case 29: factors dropped, or chosen by the size of the context).
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "gtest/gtest.h"
#include "tests/prefix/prefix_fixture.h"
#include "vericache/engine.h"

namespace vericache {
namespace {

const RopeOptions kYarn = {"yarn", 4, 512};

class RopeSettings : public PrefixFixture {
 protected:
  EngineOptions With(const RopeOptions& rope) const {
    EngineOptions options = Options();
    options.rope = rope;
    return options;
  }
  static void ExpectError(const absl::Status& status, absl::StatusCode code, const char* part) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
  }
};

TEST_F(RopeSettings, ScaledAnswersAreExactAndOthers) {
  const std::vector<int32_t> prompt = TestPrompt(700, 3);
  const Answer plain = AnswerOf(Load(Options())->Generate(Ask(prompt)));
  std::vector<Answer> answers = {plain};
  for (const RopeOptions& rope : {kYarn, RopeOptions{"yarn", 4, 1024}, RopeOptions{"yarn", 8, 512},
                                  RopeOptions{"linear", 4, 512}}) {
    const Answer want = AnswerOf(Load(With(rope))->Generate(Ask(prompt)));
    for (const Answer& other : answers) EXPECT_NE(other.hash, want.hash) << rope.scaling;
    answers.push_back(want);
    EngineOptions options = With(rope);
    options.prefill_chunk = 37;
    options.num_threads = 1;
    options.isa = "scalar";
    options.context_length = 1000;  // how much is allocated must not show (case 29)
    const auto engine = Load(options);
    for (const char* spec : {"off", "verify:0.25+int4", "kvzip:0.3,chunk=64", "expected:0.3"})
      EXPECT_EQ(AnswerOf(engine->Generate(Ask(prompt, spec))), want) << rope.scaling << spec;
  }
}

TEST_F(RopeSettings, ContextReachesAsFarAsTheScaling) {
  const auto engine = Load(With({"yarn", 4, 0}));
  EXPECT_EQ(engine->info().model_context, 8192);
  EXPECT_EQ(engine->info().rope, (RopeOptions{"yarn", 4, 2048}));
  EXPECT_TRUE(engine->Generate(Ask(TestPrompt(2100, 3), "off", 2)).ok()) << "trained for 2,048";
  EngineOptions options = With({"yarn", 4, 0});
  options.context_length = 8193;
  ExpectError(Engine::Load(options).status(), absl::StatusCode::kInvalidArgument, "8192");
  ExpectError(Engine::Load(With({"yarn", 0, 0})).status(), absl::StatusCode::kInvalidArgument,
              "at least 1");
}

TEST_F(RopeSettings, SettingsThatChangeNoAngleAreNone) {
  for (const RopeOptions& rope :
       {RopeOptions{"none", 0, 0}, RopeOptions{"yarn", 1, 0}, RopeOptions{"linear", 1, 2048}})
    EXPECT_EQ(Load(With(rope))->info().rope, RopeOptions());
}

TEST_F(RopeSettings, TheFilesOwnScalingIsUsed) {
  model_ = "tests/golden/model/qwen2_yarn.gguf";
  const auto own = Load(Options());
  EXPECT_EQ(own->info().rope, RopeOptions());
  EXPECT_EQ(own->info().model_context, 4096) << "1,024 x 4";
  const auto same = Load(With({"yarn", 4, 1024}));
  EXPECT_EQ(same->info().rope, RopeOptions()) << "nothing else than the file says";
  const auto none = Load(With({"none", 0, 0}));
  EXPECT_EQ(none->info().rope, (RopeOptions{"none", 0, 1024}));
  EXPECT_EQ(none->info().model_context, 1024);
  const Answer want = AnswerOf(own->Generate(Ask(TestPrompt(100, 3))));
  EXPECT_EQ(AnswerOf(same->Generate(Ask(TestPrompt(100, 3)))), want);
  EXPECT_NE(AnswerOf(none->Generate(Ask(TestPrompt(100, 3)))).hash, want.hash);
}

TEST_F(RopeSettings, AuditNeedsTheReceiptsSettings) {
  const std::vector<int32_t> prompt = TestPrompt(80, 3);
  const auto plain = Load(Options()), yarn = Load(With(kYarn));
  const auto scaled = yarn->MakeReceipt(*yarn->Generate(Ask(prompt)), {});
  ASSERT_TRUE(scaled.ok());
  EXPECT_EQ(scaled->rope, kYarn);
  for (AuditMode mode : {AuditMode::kOnePass, AuditMode::kTokenByToken})
    EXPECT_TRUE(yarn->Audit(*scaled, mode)->ok);
  ExpectError(plain->Audit(*scaled, AuditMode::kOnePass).status(),
              absl::StatusCode::kFailedPrecondition, "--rope-scaling yarn --rope-scale 4");
  const auto own = plain->MakeReceipt(*plain->Generate(Ask(prompt)), {});
  EXPECT_EQ(own->rope, RopeOptions());
  ExpectError(yarn->Audit(*own, AuditMode::kOnePass).status(),
              absl::StatusCode::kFailedPrecondition, "rope settings");
  Receipt other = *scaled;
  other.rope.scale = 8;
  ExpectError(yarn->Audit(other, AuditMode::kOnePass).status(),
              absl::StatusCode::kFailedPrecondition, "--rope-scale 8");
  other.rope = {"cubic", 4, 512};
  ExpectError(yarn->Audit(other, AuditMode::kOnePass).status(), absl::StatusCode::kInvalidArgument,
              "cubic");
  // A receipt that leaves its settings out is no way round them.
  other.rope = RopeOptions();
  EXPECT_FALSE(plain->Audit(other, AuditMode::kOnePass)->ok);
}

TEST_F(RopeSettings, StoredPrefixesBelongToOneSetting) {
  const std::vector<int32_t> prompt = TestPrompt(200, 3);
  const auto cached = [&](const RopeOptions& rope) {
    EngineOptions options = WithStore();
    options.rope = rope;
    const auto engine = Load(options);
    const auto completion = engine->Generate(Ask(prompt));
    engine->WaitForPrefixWrites();
    EXPECT_EQ(AnswerOf(completion), AnswerOf(Load(With(rope))->Generate(Ask(prompt))));
    return completion->usage.cached_tokens;
  };
  const std::vector<RopeOptions> settings = {
      {}, kYarn, {"yarn", 4, 1024}, {"yarn", 8, 512}, {"linear", 4, 512}, {"linear", 8, 512}};
  for (const RopeOptions& rope : settings) EXPECT_EQ(cached(rope), 0) << rope.scaling;
  for (const RopeOptions& rope : settings) EXPECT_EQ(cached(rope), 192) << rope.scaling;
  EXPECT_EQ(cached({"none", 0, 0}), 192) << "the same angles as the first";
}

TEST_F(RopeSettings, SessionsBelongToOneSetting) {
  const std::string path = folder_ / "session.kv";
  const auto plain = Load(Options()), yarn = Load(With(kYarn));
  const std::vector<int32_t> prompt = TestPrompt(150, 3);
  const Answer want = AnswerOf(yarn->Generate(Ask(prompt + TestPrompt(9, 4))));
  const auto session = yarn->Prefill(Ask(prompt));
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE(yarn->SaveSession(*session, path).ok());
  ExpectError(plain->LoadSession(path).status(), absl::StatusCode::kFailedPrecondition,
              "rope settings");
  ExpectError(Load(With({"yarn", 8, 512}))->LoadSession(path).status(),
              absl::StatusCode::kFailedPrecondition, "--rope-scale 8");
  auto loaded = yarn->LoadSession(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(AnswerOf(yarn->Generate(Ask(prompt + TestPrompt(9, 4)), &*loaded)), want);
}

// A file from before sessions said their rope settings: the same bytes without the last field.
void MakeOldSession(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  uint64_t header = 0, field = 0;
  std::memcpy(&header, bytes.data() + 8, 8);
  size_t at = 16;
  for (int i = 0; i < 8; ++i) {
    std::memcpy(&field, bytes.data() + at, 8);
    at += 8 + field;
  }
  const size_t rope_bytes = 16 + header - at;
  ASSERT_GT(rope_bytes, 8u);
  bytes.erase(at, rope_bytes);
  header -= rope_bytes;
  std::memcpy(bytes.data() + 8, &header, 8);
  bytes.replace(0, 8, "VCSESS03");
  bytes.resize(bytes.size() - 32);
  const Sha256Digest digest = Sha256Of(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST_F(RopeSettings, OldSessionsAreOfTheFilesOwnSettings) {
  const std::string path = folder_ / "session.kv";
  const auto plain = Load(Options());
  const std::vector<int32_t> prompt = TestPrompt(150, 3);
  ASSERT_TRUE(plain->SaveSession(*plain->Prefill(Ask(prompt)), path).ok());
  MakeOldSession(path);
  const auto loaded = plain->LoadSession(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->token_ids(), prompt);
  ExpectError(Load(With(kYarn))->LoadSession(path).status(), absl::StatusCode::kFailedPrecondition,
              "rope settings");
}

TEST_F(RopeSettings, TheDraftModelIsScaledToo) {
  EngineOptions options = With({"yarn", 4, 512});
  options.draft_model_path = model_;
  const auto engine = Load(options);
  Request request = Ask(TestPrompt(80, 3));
  const Answer want = AnswerOf(engine->Generate(request));
  request.propose = "model";
  request.draft_len = 0;
  request.draft = "verify:0.25+int4";
  EXPECT_EQ(AnswerOf(engine->Generate(request)), want);
}

}  // namespace
}  // namespace vericache
