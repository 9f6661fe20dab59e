// S3 that cuts off, drips, lies, replaces, throttles and refuses: misses and errors, nothing else.
#include <fstream>

#include "remote/guarded_store.h"
#include "remote/open_store.h"
#include "remote/s3_store.h"
#include "tests/remote/fake_s3.h"
#include "tests/remote/redis_server.h"
#include "tests/remote/store_contract.h"

namespace vericache {
namespace {

using std::chrono::milliseconds;
using Peer = FakeServer::Peer;

Environment Keys(const std::string& token = "") {
  return [token](const std::string& name) -> std::string {
    if (name == "AWS_ACCESS_KEY_ID") return "SENTINELID";
    if (name == "AWS_SECRET_ACCESS_KEY") return "SENTINELSECRET";
    if (name == "AWS_SESSION_TOKEN") return token;
    return "";
  };
}

std::unique_ptr<S3Store> StoreAt(const std::string& url, Environment environment = Keys()) {
  auto parsed = ParseStoreUrl(url);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  auto options = S3OptionsOf(*parsed, std::move(environment));
  EXPECT_TRUE(options.ok()) << options.status();
  options->first_pause = milliseconds(1);
  return std::make_unique<S3Store>(*std::move(options));
}

std::string PathOf(const BlobKey& key) { return "/bucket/pre/fix/" + HexOf(key); }

std::string ObjectOf(const BlobKey& key, const std::string& payload) {
  const BlobHeader header = MakeBlobHeader(key, {payload});
  return std::string(reinterpret_cast<const char*>(header.data()), header.size()) + payload;
}

TEST(S3Store, PutsReadsAndRemoves) {
  FakeS3 s3;
  const auto store = StoreAt(s3.Url("&range_bytes=1024"));
  EXPECT_TRUE(absl::IsNotFound(store->Get(KeyOf(1)).status()));
  for (size_t size : {size_t{0}, size_t{1}, size_t{895}, size_t{896}, size_t{897}, size_t{50000}}) {
    const std::string payload = Bytes(1, size);
    ASSERT_TRUE(store->Put(KeyOf(1), {payload}).ok());
    EXPECT_EQ(s3.Get(PathOf(KeyOf(1))).bytes, ObjectOf(KeyOf(1), payload));
    EXPECT_TRUE(store->Get(KeyOf(1)).ok()) << size;
    EXPECT_TRUE(TextOf(store->Get(KeyOf(1))) == payload) << size;
  }
  EXPECT_TRUE(store->Contains(KeyOf(1)));
  EXPECT_TRUE(store->Remove(KeyOf(1)).ok());
  EXPECT_FALSE(store->Contains(KeyOf(1)));
  for (const FakeRequest& r : s3.seen()) {
    EXPECT_TRUE(r.Header("authorization").starts_with("AWS4-HMAC-SHA256 Credential=")) << r.head;
    EXPECT_EQ(r.Header("x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
    EXPECT_EQ(r.head.find("SENTINELSECRET"), std::string::npos);
  }
}

// Case 62: every range but the first is pinned; an object replaced between two is read anew.
TEST(S3Store, Case62RangesArePinnedToTheETag) {
  const std::string first = Bytes(1, 20000), second = Bytes(2, 20000);
  std::atomic<int> ranges{0};
  std::function<void()> replace;
  FakeS3 s3([&](const FakeRequest& r, Peer&) {
    if (r.method == "GET" && ++ranges == 3) replace();
    return false;
  });
  replace = [&] { s3.Set(PathOf(KeyOf(1)), ObjectOf(KeyOf(1), second), "\"second\""); };
  s3.Set(PathOf(KeyOf(1)), ObjectOf(KeyOf(1), first), "\"first\"");
  const auto store = StoreAt(s3.Url("&range_bytes=4096"));
  EXPECT_TRUE(TextOf(store->Get(KeyOf(1))) == second);
  int pinned = 0;
  for (const FakeRequest& r : s3.seen())
    if (r.Header("range").find("bytes=0-") == std::string::npos) {
      EXPECT_FALSE(r.Header("if-match").empty()) << r.head;
      ++pinned;
    }
  EXPECT_GE(pinned, 4);
}

TEST(S3Store, Case62ABodyThatEndsEarlyIsGoneOnWith) {
  const std::string payload = Bytes(1, 30000), object = ObjectOf(KeyOf(1), payload);
  std::atomic<int> cuts{0};
  FakeS3 s3([&](const FakeRequest& r, Peer& peer) {
    if (r.method != "GET" || ++cuts > 2) return false;
    const size_t begin = std::strtoull(r.Header("range").c_str() + 6, nullptr, 10);
    peer.Send(StrCat(
        "HTTP/1.1 206 Partial Content\r\nETag: \"e\"\r\nContent-Length: ", object.size() - begin,
        "\r\nContent-Range: bytes ", begin, "-", object.size() - 1, "/", object.size(), "\r\n\r\n",
        object.substr(begin, 10000)));
    return true;
  });
  s3.Set(PathOf(KeyOf(1)), object, "\"e\"");
  EXPECT_TRUE(TextOf(StoreAt(s3.Url())->Get(KeyOf(1))) == payload);
  ASSERT_EQ(s3.num_seen(), 3);
  EXPECT_TRUE(s3.seen()[1].Header("range").starts_with("bytes=10000-")) << s3.seen()[1].head;
  EXPECT_EQ(s3.seen()[1].Header("if-match"), "\"e\"");
}

TEST(S3Store, Case62AServerThatKnowsNoRanges) {
  const std::string payload = Bytes(1, 30000), object = ObjectOf(KeyOf(1), payload);
  FakeS3 s3([&](const FakeRequest& r, Peer& peer) {
    peer.Send(FakeS3::Answer("200 OK", "ETag: \"x-3\"\r\n", object));
    return r.method.empty();
  });
  // Longer than a range, too: the whole object comes as the first.
  EXPECT_TRUE(TextOf(StoreAt(s3.Url("&range_bytes=4096"))->Get(KeyOf(1))) == payload);
}

TEST(S3Store, Case62WrongLengthsAndBytesAreMisses) {
  const std::string payload = Bytes(1, 9000), object = ObjectOf(KeyOf(1), payload);
  std::vector<std::string> answers;
  const auto whole = [](const std::string& body) {
    return FakeS3::Answer("200 OK", "ETag: \"e\"\r\n", body);
  };
  for (size_t i : {size_t{0}, size_t{9}, size_t{20}, size_t{50}, size_t{60}, size_t{100},
                   size_t{128}, object.size() - 1}) {
    std::string bad = object;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    answers.push_back(whole(bad));
  }
  for (size_t size : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, object.size() - 1})
    answers.push_back(whole(object.substr(0, size)));
  answers.push_back(whole(object + "x"));
  answers.push_back(whole(ObjectOf(KeyOf(2), payload)));
  // Ranges that nobody asked for, totals that are none.
  for (const char* range : {"bytes 5-100/9128", "bytes 0-9127/9999999999999", "bytes 0-20000/9128",
                            "bytes 9-1/9128", "nonsense", "bytes 0-99/100", "bytes */9128"})
    answers.push_back(FakeS3::Answer(
        "206 Partial Content", StrCat("ETag: \"e\"\r\nContent-Range: ", range, "\r\n"), object));
  answers.push_back("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
  for (const std::string& answer : answers) {
    FakeS3 s3([&](const FakeRequest&, Peer& peer) { return peer.Send(answer), true; });
    const auto store = StoreAt(s3.Url());
    const absl::Status status = store->Get(KeyOf(1)).status();
    EXPECT_TRUE(absl::IsNotFound(status)) << answer.substr(0, 120) << status;
    EXPECT_EQ(store->Stats().damaged, 1) << answer.substr(0, 120);
  }
}

// Case 61: asked again where it is due, and nowhere else.
TEST(S3Store, Case61RetriesOnlyWhatIsDue) {
  const std::string payload = Bytes(1, 5000);
  struct Case {
    std::string answer;
    int tries;
  };
  for (const Case& c : {Case{FakeS3::Error("503 Slow Down", "SlowDown"), 2},
                        Case{FakeS3::Error("500 Internal Server Error", "InternalError"), 2},
                        Case{FakeS3::Error("429 Too Many Requests", "Throttled"), 2},
                        Case{"", 2},  // the connection breaks off
                        Case{FakeS3::Error("403 Forbidden", "AccessDenied"), 1},
                        Case{FakeS3::Error("403 Forbidden", "RequestTimeTooSkewed"), 1},
                        Case{FakeS3::Error("404 Not Found", "NoSuchBucket"), 1},
                        Case{FakeS3::Error("400 Bad Request", "RequestTimeout"), 1},
                        Case{FakeS3::Error("301 Moved Permanently", "PermanentRedirect"), 1},
                        Case{FakeS3::Error("307 Temporary Redirect", "TemporaryRedirect"), 1}}) {
    std::atomic<int> calls{0};
    FakeS3 s3([&](const FakeRequest&, Peer& peer) {
      if (++calls > 1) return false;
      if (c.answer.empty()) peer.Reset();
      peer.Send(c.answer);
      return true;
    });
    s3.Set(PathOf(KeyOf(1)), ObjectOf(KeyOf(1), payload), "\"e\"");
    const auto store = StoreAt(s3.Url());
    const auto got = store->Get(KeyOf(1));
    EXPECT_EQ(s3.num_seen(), c.tries) << c.answer;
    EXPECT_EQ(got.ok(), c.tries == 2) << c.answer << got.status();
    EXPECT_EQ(got.status().ToString().find("SENTINEL"), std::string::npos) << got.status();
    calls = 0;
    EXPECT_EQ(store->Put(KeyOf(2), {payload}).ok(), c.tries == 2) << c.answer;
  }
}

TEST(S3Store, Case61ItGivesUpAfterSomeTries) {
  FakeS3 s3([](const FakeRequest&, Peer& peer) {
    return peer.Send(FakeS3::Error("503 Slow Down", "SlowDown")), true;
  });
  EXPECT_TRUE(absl::IsUnavailable(StoreAt(s3.Url())->Get(KeyOf(1)).status()));
  EXPECT_EQ(s3.num_seen(), 4);
}

TEST(S3Store, Case61WhatIsWrongIsSaid) {
  const auto says = [](const std::string& answer) {
    FakeS3 s3([&](const FakeRequest&, Peer& peer) { return peer.Send(answer), true; });
    return StoreAt(s3.Url())->Put(KeyOf(1), {"x"}).ToString();
  };
  EXPECT_NE(says(FakeS3::Error("403 Forbidden", "RequestTimeTooSkewed")).find("clock"),
            std::string::npos);
  EXPECT_NE(says(FakeS3::Error("404 Not Found", "NoSuchBucket")).find("no such bucket"),
            std::string::npos);
  EXPECT_NE(says(FakeS3::Answer("301 Moved Permanently", "x-amz-bucket-region: eu-west-9\r\n", ""))
                .find("region=eu-west-9"),
            std::string::npos);
  EXPECT_TRUE(absl::IsResourceExhausted([] {
    FakeS3 s3([](const FakeRequest&, Peer& peer) {
      return peer.Send(FakeS3::Error("507 Insufficient Storage", "QuotaExceeded")), true;
    });
    return StoreAt(s3.Url())->Put(KeyOf(1), {"x"});
  }()));
}

TEST(S3Store, Case59HangingAndDrippingServersAreGivenUp) {
  const std::string object = ObjectOf(KeyOf(1), Bytes(1, 100000));
  for (bool drips : {false, true}) {
    FakeS3 s3([&](const FakeRequest&, Peer& peer) {
      if (!drips) return peer.HangUntilTheEnd(), true;
      return peer.Drip(FakeS3::Answer("200 OK", "ETag: \"e\"\r\n", object), milliseconds(5)), true;
    });
    const auto store = StoreAt("s3://bucket/pre/fix?endpoint=" + s3.Endpoint());
    EXPECT_TRUE(absl::IsDeadlineExceeded(store->Get(KeyOf(1), In(milliseconds(150))).status()));
    EXPECT_TRUE(
        absl::IsDeadlineExceeded(store->CountPresent({KeyOf(1)}, In(milliseconds(150))).status()));
  }
}

TEST(S3Store, Case61PathAndHostStyle) {
  FakeS3 s3;
  const auto options =
      S3OptionsOf(*ParseStoreUrl("s3://buck/p?endpoint=http://e.test:9000/base/"), Keys());
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(S3Client(*options).UrlOf("p/k"), "http://e.test:9000/base/buck/p/k");
  const auto host =
      S3OptionsOf(*ParseStoreUrl("s3://buck/p?endpoint=http://e.test:9000&style=host"), Keys());
  EXPECT_EQ(S3Client(*host).UrlOf("p/k"), "http://buck.e.test:9000/p/k");
  const auto aws = S3OptionsOf(*ParseStoreUrl("s3://buck?region=eu-west-1"), Keys());
  EXPECT_EQ(S3Client(*aws).UrlOf("k", "uploads="),
            "https://buck.s3.eu-west-1.amazonaws.com/k?uploads=");
  for (const char* bad :
       {"s3://b/a b", "s3://b/a=b", "s3://b/../x", "s3://b?endpoint=ftp://x", "s3://b?style=x",
        "s3://b?endpoint=http://u:p@h", "s3://b?region=a/../b%20", "s3://b?unknown=1",
        "s3://b?range_bytes=12", "s3://b?part_bytes=1000", "s3://u:p@b", "s3://b:80/"})
    EXPECT_FALSE(S3OptionsOf(*ParseStoreUrl(bad), Keys()).ok()) << bad;
}

// Case 64 for S3: a CA of one's own by the URL or, as other S3 clients have it, by AWS_CA_BUNDLE;
// verification is off only where the URL says so.
TEST(S3Store, Case64CertificatesAreVerified) {
  const std::filesystem::path folder = NewTestFolder();
  ASSERT_TRUE(MakeCertificates(folder));
  const std::string at = folder.string(), payload = Bytes(1, 200000);
  const auto with_bundle = [](const std::string& file) -> Environment {
    return
        [file](const std::string& name) { return name == "AWS_CA_BUNDLE" ? file : Keys()(name); };
  };
  for (const std::string which : {"good", "other", "old"}) {
    if (!std::filesystem::exists(at + "/" + which + ".pem")) {
      ADD_FAILURE() << "no certificate " << which;
      continue;
    }
    FakeS3 s3({}, {at + "/" + which + ".pem", at + "/" + which + ".key"});
    const auto put = [&](const std::string& more, const Environment& environment = Keys()) {
      return StoreAt(s3.Url(more), environment)->Put(KeyOf(1), {payload});
    };
    const absl::Status unknown = put("");
    EXPECT_TRUE(absl::IsPermissionDenied(unknown)) << "signed by nobody known: " << unknown;
    EXPECT_NE(unknown.message().find("ca_file="), absl::string_view::npos) << unknown;
    const bool good = which == "good";
    EXPECT_EQ(put("&ca_file=" + at + "/ca.pem").ok(), good) << which;
    EXPECT_EQ(put("", with_bundle(at + "/ca.pem")).ok(), good) << which;
    EXPECT_FALSE(put("&ca_file=" + at + "/other.pem", with_bundle(at + "/ca.pem")).ok())
        << "the URL's comes first";
    EXPECT_FALSE(put("", with_bundle(at + "/nothing.pem")).ok());
    EXPECT_EQ(s3.num_seen(), good ? 2 : 0) << "nothing is sent to whom nobody vouches for";
    EXPECT_TRUE(put("&tls_verify=0").ok());
    if (!good) continue;
    const auto store = StoreAt(s3.Url("&range_bytes=65536"), with_bundle(at + "/ca.pem"));
    EXPECT_TRUE(TextOf(store->Get(KeyOf(1))) == payload);
  }
  std::filesystem::remove_all(folder);
}

// Expired credentials are looked up anew, once; a file may have been rewritten meanwhile.
TEST(S3Credentials, AreReadAgainWhenTheyHaveExpired) {
  const std::filesystem::path folder = NewTestFolder();
  const std::string file = (folder / "credentials").string();
  const auto write = [&](const std::string& token) {
    std::ofstream(file) << "[other]\naws_access_key_id=NO\naws_secret_access_key=NO\n[mine]\n"
                        << "aws_access_key_id = ID\naws_secret_access_key = SENTINELSECRET\n"
                        << "aws_session_token = " << token << "\n";
  };
  write("old");
  const Environment environment = [&](const std::string& name) -> std::string {
    if (name == "AWS_SHARED_CREDENTIALS_FILE") return file;
    if (name == "AWS_PROFILE") return "mine";
    if (name == "AWS_EC2_METADATA_DISABLED") return "true";
    return "";
  };
  std::atomic<bool> expired{false};
  FakeS3 s3([&](const FakeRequest& r, Peer& peer) {
    if (!expired || r.Header("x-amz-security-token") == "new") return false;
    return peer.Send(FakeS3::Error("403 Forbidden", "ExpiredToken")), true;
  });
  const auto store = StoreAt(s3.Url(), environment);
  ASSERT_TRUE(store->Put(KeyOf(1), {"x"}).ok());
  EXPECT_EQ(s3.seen()[0].Header("x-amz-security-token"), "old");
  expired = true;
  const int before = s3.num_seen();
  const absl::Status refused = store->Get(KeyOf(1)).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_NE(refused.message().find("ExpiredToken"), absl::string_view::npos);
  EXPECT_EQ(s3.num_seen(), before + 2) << "once more with what was read anew, and no more";
  write("new");
  EXPECT_TRUE(store->Contains(KeyOf(1))) << "whatever comes first meets the old ones";
  EXPECT_EQ(TextOf(store->Get(KeyOf(1))), "x");
  std::filesystem::remove_all(folder);
}

TEST(S3Credentials, ContainerAndMachineEndpoints) {
  const auto json = [](const char* id, int seconds) {
    const std::time_t at = std::time(nullptr) + seconds;
    char text[32];
    std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", gmtime(&at));
    return StrCat(R"({"AccessKeyId":")", id,
                  R"(","SecretAccessKey":"S","Token":"T","Expiration":")", text, R"("})");
  };
  std::atomic<int> asked{0};
  FakeS3 metadata([&](const FakeRequest& r, Peer& peer) {
    std::string answer;
    if (r.path == "/latest/api/token" && r.method == "PUT")
      answer = "TOKEN";
    else if (r.path == "/container" && r.Header("authorization") == "Basic x")
      answer = json("CONTAINER", 30 + 0 * ++asked);  // ends within a minute: asked for each time
    else if (r.Header("x-aws-ec2-metadata-token") != "TOKEN")
      return peer.Send(FakeS3::Error("401 Unauthorized", "Unauthorized")), true;
    else if (r.path == "/latest/meta-data/iam/security-credentials/")
      answer = "role-1\n";
    else if (r.path == "/latest/meta-data/iam/security-credentials/role-1")
      answer = json("MACHINE", 3600 + 0 * ++asked);
    return peer.Send(FakeS3::Answer("200 OK", "", answer)), true;
  });
  for (const std::string& kind : {"CONTAINER", "MACHINE"}) {
    asked = 0;
    FakeS3 s3;
    const auto store = StoreAt(s3.Url(), [&](const std::string& name) -> std::string {
      if (kind == "CONTAINER" && name == "AWS_CONTAINER_CREDENTIALS_FULL_URI")
        return metadata.Endpoint() + "/container";
      if (kind == "CONTAINER" && name == "AWS_CONTAINER_AUTHORIZATION_TOKEN") return "Basic x";
      if (name == "AWS_EC2_METADATA_SERVICE_ENDPOINT") return metadata.Endpoint();
      return "";
    });
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(store->Put(KeyOf(i), {"x"}).ok());
    EXPECT_NE(s3.seen()[0].Header("authorization").find("Credential=" + kind), std::string::npos);
    EXPECT_EQ(s3.seen()[0].Header("x-amz-security-token"), "T");
    EXPECT_EQ(asked, kind == "CONTAINER" ? 3 : 1);
  }
  FakeS3 s3;
  const absl::Status none = StoreAt(s3.Url(),
                                    [](const std::string& name) -> std::string {
                                      return name == "AWS_EC2_METADATA_DISABLED" ? "true" : "";
                                    })
                                ->Get(KeyOf(1))
                                .status();
  EXPECT_TRUE(absl::IsPermissionDenied(none));
  EXPECT_NE(none.message().find("AWS_ACCESS_KEY_ID"), absl::string_view::npos);
  EXPECT_EQ(s3.num_seen(), 0);
}

TEST(S3Credentials, HostileFilesAndAnswers) {
  AwsCredentials c;
  EXPECT_FALSE(ParseCredentialsFile("", "default", &c));
  EXPECT_FALSE(
      ParseCredentialsFile("aws_access_key_id=a\naws_secret_access_key=b\n", "default", &c));
  EXPECT_FALSE(ParseCredentialsFile("[default\naws_access_key_id=a\naws_secret_access_key=b\n",
                                    "default", &c));
  EXPECT_TRUE(
      ParseCredentialsFile("# x\r\n[ default ]\r\naws_access_key_id=a\r\n"
                           "aws_secret_access_key = b=c \r\n",
                           "default", &c));
  EXPECT_EQ(c.secret, "b=c");
  for (const char* text : {"", "[]", "{", "{\"AccessKeyId\":1}", "null",
                           "{\"AccessKeyId\":\"a\\r\\nX: y\",\"SecretAccessKey\":\"b\"}"})
    EXPECT_FALSE(ParseCredentialsJson(text, &c)) << text;
}

}  // namespace
}  // namespace vericache
