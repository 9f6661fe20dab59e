#include "kv/prefix_key.h"

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kv/prefix_blob.h"

namespace vericache {
namespace {

PrefixIdentity Identity() {
  return {"model", "tokenizer", "rope", "f16 block64", "contract-1", ""};
}

std::vector<TokenId> Ids(int64_t n, TokenId first = 0) {
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(first + static_cast<TokenId>(i));
  return ids;
}

absl::Span<const uint8_t> Span(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

Sha256Digest FirstKey(const PrefixIdentity& identity) {
  return PrefixKeyer(identity).Chain(Ids(64))[0].digest;
}

// Case 11: adapter names and tenant salts in one list, formats and weights left out of the key.
TEST(PrefixKey, Case11EveryFieldCountsAndNoneRunsIntoTheNext) {
  std::set<Sha256Digest> keys = {FirstKey(Identity())};
  std::string PrefixIdentity::*const fields[] = {
      &PrefixIdentity::model_digest, &PrefixIdentity::tokenizer_digest, &PrefixIdentity::rope,
      &PrefixIdentity::kv_format,    &PrefixIdentity::contract,         &PrefixIdentity::salt};
  size_t expected = 1;
  for (const auto field : fields) {
    PrefixIdentity other = Identity();
    other.*field = "x";  // (a) a salt "x" is not a model or variant named "x"
    keys.insert(FirstKey(other));
    EXPECT_EQ(keys.size(), ++expected);
    other.*field = "";
    keys.insert(FirstKey(other));
    expected += field != &PrefixIdentity::salt;  // which is empty already
    EXPECT_EQ(keys.size(), expected);
  }
  // (b) f16 against 8 bits.
  PrefixIdentity int8 = Identity();
  int8.kv_format = "int8 block64";
  EXPECT_TRUE(keys.insert(FirstKey(int8)).second);
  // The end of one field moved into the next.
  PrefixIdentity moved = Identity();
  moved.model_digest = "modelt";
  moved.tokenizer_digest = "okenizer";
  EXPECT_TRUE(keys.insert(FirstKey(moved)).second);
}

TEST(PrefixKey, AChainKnowsAllTokensBefore) {
  const PrefixKeyer keyer(Identity());
  const auto chain = keyer.Chain(Ids(200));
  ASSERT_EQ(chain.size(), 3u);
  auto ids = Ids(200);
  ids[0] = 7;
  const auto other = keyer.Chain(ids);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(chain[i].digest, other[i].digest);
    EXPECT_NE(chain[i].fingerprint, other[i].fingerprint);
  }
  EXPECT_EQ(keyer.Chain(Ids(63)).size(), 0u);
  EXPECT_EQ(keyer.Chain(Ids(128))[1].digest, chain[1].digest);
  EXPECT_NE(keyer.Next(chain[2], Ids(8)).digest, keyer.Next(chain[2], Ids(9)).digest);
}

TEST(PrefixKey, BlocksDraftsAndScoresHaveNamesOfTheirOwn) {
  const PrefixKeyer keyer(Identity());
  const PrefixKey key = keyer.Chain(Ids(64))[0];
  const std::set<Sha256Digest> names = {key.digest, keyer.DraftKey(key, "int4"),
                                        keyer.DraftKey(key, "int8"), keyer.ScoresKey(key, "int4"),
                                        keyer.ScoresKey(key, "kvzip 2048")};
  EXPECT_EQ(names.size(), 5u);
}

TEST(PrefixKey, TheTestHookCutsDigestsAndNotFingerprints) {
  const PrefixKeyer keyer(Identity(), 8);
  std::set<Sha256Digest> digests;
  std::set<std::array<uint8_t, 16>> fingerprints;
  for (int i = 0; i < 2000; ++i) {
    const PrefixKey key = keyer.Next(keyer.Root(), Ids(64, i));
    for (int byte = 1; byte < 32; ++byte) ASSERT_EQ(key.digest[byte], 0);
    digests.insert(key.digest);
    fingerprints.insert(key.fingerprint);
  }
  EXPECT_LE(digests.size(), 256u);
  EXPECT_GT(digests.size(), 200u);
  EXPECT_EQ(fingerprints.size(), 2000u);
}

TEST(PrefixBlob, OpensForItsOwnTokensOnly) {
  const PrefixKeyer keyer(Identity());
  for (int64_t n : {1, 8, 63, 64}) {
    const auto ids = Ids(n);
    const PrefixKey key = keyer.Next(keyer.Root(), ids);
    const std::string blob = PrefixBlobHead(PrefixBlobKind::kDraft, key, ids, 5) + "draft";
    EXPECT_EQ(blob.size() % 64, 5u);
    const auto open = [&](PrefixBlobKind kind, const PrefixKey& by, std::vector<TokenId> of) {
      return OpenPrefixBlob(Span(blob), kind, by, of);
    };
    const auto payload = open(PrefixBlobKind::kDraft, key, ids);
    ASSERT_TRUE(payload.ok());
    EXPECT_EQ(std::string(payload->begin(), payload->end()), "draft");
    EXPECT_EQ(open(PrefixBlobKind::kBlock, key, ids).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(open(PrefixBlobKind::kDraft, key, Ids(n, 1)).status().code(),
              absl::StatusCode::kNotFound);
    EXPECT_EQ(open(PrefixBlobKind::kDraft, key, Ids(n - 1)).status().code(),
              absl::StatusCode::kNotFound);
    // The same last block behind other tokens.
    const PrefixKey behind = keyer.Next(keyer.Next(keyer.Root(), Ids(64, 9)), ids);
    EXPECT_EQ(open(PrefixBlobKind::kDraft, behind, ids).status().code(),
              absl::StatusCode::kNotFound);
    for (size_t size = 0; size < blob.size(); ++size)
      EXPECT_EQ(OpenPrefixBlob(Span(blob.substr(0, size)), PrefixBlobKind::kDraft, key, ids)
                    .status()
                    .code(),
                absl::StatusCode::kDataLoss);
  }
}

TEST(PrefixBlob, RefusesSenselessCounts) {
  const PrefixKeyer keyer(Identity());
  const PrefixKey key = keyer.Next(keyer.Root(), Ids(64));
  const std::string good = PrefixBlobHead(PrefixBlobKind::kBlock, key, Ids(64), 0);
  for (uint32_t count : {65u, 1u << 30, 0x40000000u, 0xffffffffu}) {
    std::string blob = good;
    std::memcpy(blob.data() + 4, &count, 4);
    EXPECT_FALSE(OpenPrefixBlob(Span(blob), PrefixBlobKind::kBlock, key, Ids(64)).ok());
  }
  for (uint64_t bytes : {uint64_t{1}, ~uint64_t{0}, ~uint64_t{0} - good.size()}) {
    std::string blob = good;
    std::memcpy(blob.data() + 8, &bytes, 8);
    EXPECT_FALSE(OpenPrefixBlob(Span(blob), PrefixBlobKind::kBlock, key, Ids(64)).ok());
  }
}

}  // namespace
}  // namespace vericache
