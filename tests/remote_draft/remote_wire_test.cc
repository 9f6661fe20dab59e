// Messages of remote drafting: what is written is read back, and nothing else is.
#include "vericache/remote_wire.h"

#include "gtest/gtest.h"

namespace vericache {
namespace {

RemoteOpen AnOpen() {
  RemoteOpen open;
  open.identity = {"model", "tokenizer", "rope", "f16 block64", "contract"};
  open.prompt_ids = {1, 2, 300000};
  open.emitted_ids = {7};
  open.max_tokens = int64_t{1} << 40;
  open.sampling = {0.5f, 40, 0.9f, 0.1f, 12345678901234567u, 3, 1.1f, 0.2f, 0.3f, {{5, -1.5f}}};
  open.ignore_eos = true;
  open.use_prefix_cache = false;
  open.prefix_salt = std::string("a\0b", 3);
  return open;
}

RemoteVerified AVerified() {
  RemoteVerified verified;
  verified.ready = true;
  verified.prompt_done = 5;
  verified.prompt_total = 9;
  verified.num_answering = 3;
  verified.num_prompts = 2;
  verified.emitted = {1, 2};
  verified.row_hashes.resize(2);
  verified.row_hashes[1][15] = 0xfe;
  verified.finish = RemoteFinish::kLength;
  verified.busy_s = 0.25;
  verified.rows = std::string(100, '\0');
  return verified;
}

bool operator==(const SamplingOptions& a, const SamplingOptions& b) {
  return a.temperature == b.temperature && a.top_k == b.top_k && a.top_p == b.top_p &&
         a.min_p == b.min_p && a.seed == b.seed && a.choice == b.choice &&
         a.repetition_penalty == b.repetition_penalty && a.presence_penalty == b.presence_penalty &&
         a.frequency_penalty == b.frequency_penalty && a.logit_bias == b.logit_bias;
}

TEST(RemoteWire, RoundTrips) {
  const absl::StatusOr<RemoteOpen> open = DecodeRemoteOpen(EncodeRemote(AnOpen()));
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->identity, AnOpen().identity);
  EXPECT_EQ(open->prompt_ids, AnOpen().prompt_ids);
  EXPECT_EQ(open->emitted_ids, AnOpen().emitted_ids);
  EXPECT_EQ(open->max_tokens, AnOpen().max_tokens);
  EXPECT_TRUE(open->sampling == AnOpen().sampling);
  EXPECT_TRUE(open->ignore_eos);
  EXPECT_FALSE(open->use_prefix_cache);
  EXPECT_EQ(open->prefix_salt, AnOpen().prefix_salt);
  const RemoteVerify verify = {"name", 12, {4, 5, 6}, 3, 77, RemoteRows::kPacked, 2.5};
  EXPECT_EQ(*DecodeRemoteVerify(EncodeRemote(verify)), verify);
  EXPECT_EQ(*DecodeRemoteVerified(EncodeRemote(AVerified())), AVerified());
  EXPECT_EQ(*DecodeSession(EncodeSession("s")), "s");
}

TEST(RemoteWire, EveryChangedBitAndEveryCutIsSeen) {
  const std::string good = EncodeRemote(AVerified());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 0x10;
    EXPECT_FALSE(DecodeRemoteVerified(bad).ok()) << i;
    EXPECT_FALSE(DecodeRemoteVerified(good.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(DecodeRemoteVerified(good + "x").ok());
  EXPECT_TRUE(absl::IsDataLoss(DecodeRemoteOpen(good).status()));  // another kind
}

TEST(RemoteWire, AFormOfRowsThatNobodyKnowsIsRefused) {
  RemoteVerify verify = {"name", 12, {4}, 3, 77, RemoteRows::kPacked, 2.5};
  EXPECT_TRUE(DecodeRemoteVerify(EncodeRemote(verify)).ok());
  verify.rows_as = static_cast<RemoteRows>(2);
  EXPECT_TRUE(absl::IsDataLoss(DecodeRemoteVerify(EncodeRemote(verify)).status()));
}

TEST(RemoteWire, SenselessCrowdsAreRefused) {
  for (const int32_t count : {-1, 1 << 30}) {
    RemoteVerified verified = AVerified();
    verified.num_answering = count;
    EXPECT_TRUE(absl::IsDataLoss(DecodeRemoteVerified(EncodeRemote(verified)).status())) << count;
    verified = AVerified();
    verified.num_prompts = count;
    EXPECT_TRUE(absl::IsDataLoss(DecodeRemoteVerified(EncodeRemote(verified)).status())) << count;
  }
}

TEST(RemoteWire, AnotherVersionIsSaid) {
  std::string other = EncodeSession("s");
  other[4] = 9;
  const absl::Status status = DecodeSession(other).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find("version 9"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace vericache
