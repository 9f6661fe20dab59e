#include "vericache/remote_wire.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "base/hash.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

constexpr std::string_view kMagic = "VCRD";
constexpr size_t kSumBytes = sizeof(uint64_t);
enum class Kind : uint8_t { kOpen = 1, kSession = 2, kVerify = 3, kVerified = 4 };

class Writer {
 public:
  explicit Writer(Kind kind) : out_(kMagic) {
    Put(kRemoteProtocol);
    Put(kind);
  }
  template <typename T>
  void Put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Text(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    out_.append(text);
  }
  template <typename T>
  void List(const std::vector<T>& list) {
    Put(static_cast<uint32_t>(list.size()));
    out_.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T));
  }
  std::string Finish() {
    Put(Xxh3_64(out_.data(), out_.size()));
    return std::move(out_);
  }

 private:
  std::string out_;
};

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(StrCat("a message of remote drafting is damaged: ", what));
}

// Reads nothing behind the first thing that does not fit: from there on all values are empty.
class Reader {
 public:
  // Checks everything but the fields.
  static absl::StatusOr<Reader> Of(Kind kind, std::string_view bytes) {
    if (!bytes.starts_with(kMagic)) return Damaged("it does not begin like one");
    if (bytes.size() < kMagic.size() + sizeof(uint32_t) + 1 + kSumBytes)
      return Damaged("it is too short");
    Reader reader(bytes.substr(kMagic.size(), bytes.size() - kMagic.size() - kSumBytes));
    const uint32_t version = reader.Get<uint32_t>();
    // Before the sum: another version may end in something else.
    if (version != kRemoteProtocol)
      return absl::FailedPreconditionError(StrCat("the other side speaks version ", version,
                                                  " of remote drafting, this one version ",
                                                  kRemoteProtocol, ": use builds that match"));
    uint64_t sum;
    std::memcpy(&sum, bytes.data() + bytes.size() - kSumBytes, kSumBytes);
    if (sum != Xxh3_64(bytes.data(), bytes.size() - kSumBytes))
      return Damaged("its checksum is wrong");
    if (reader.Get<Kind>() != kind) return Damaged("it is of another kind");
    return reader;
  }
  template <typename T>
  T Get() {
    T value{};
    if (!Has(sizeof(T))) return value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return value;
  }
  bool Flag() {
    const uint8_t value = Get<uint8_t>();
    good_ = good_ && value <= 1;
    return value == 1;
  }
  std::string Text() {
    const size_t size = Get<uint32_t>();
    if (!Has(size)) return "";
    std::string text(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return text;
  }
  template <typename T>
  void List(std::vector<T>* list) {
    const size_t count = Get<uint32_t>();
    if (count > rest_.size() / sizeof(T)) good_ = false;
    if (!good_) return;
    list->resize(count);
    if (count > 0) std::memcpy(list->data(), rest_.data(), count * sizeof(T));
    rest_.remove_prefix(count * sizeof(T));
  }
  void Refuse() { good_ = false; }
  absl::Status Finish() const {
    return good_ && rest_.empty() ? absl::OkStatus() : Damaged("its lengths do not fit");
  }

 private:
  explicit Reader(std::string_view rest) : rest_(rest) {}
  bool Has(size_t size) {
    good_ = good_ && size <= rest_.size();
    return good_;
  }
  std::string_view rest_;
  bool good_ = true;
};

void PutSampling(const SamplingOptions& s, Writer* out) {
  out->Put(s.temperature);
  out->Put(s.top_k);
  out->Put(s.top_p);
  out->Put(s.min_p);
  out->Put(s.seed);
  out->Put(s.choice);
  out->Put(s.repetition_penalty);
  out->Put(s.presence_penalty);
  out->Put(s.frequency_penalty);
  std::vector<int32_t> ids;
  std::vector<float> biases;
  for (const auto& [id, bias] : s.logit_bias) {
    ids.push_back(id);
    biases.push_back(bias);
  }
  out->List(ids);
  out->List(biases);
}

void GetSampling(Reader* in, SamplingOptions* s) {
  s->temperature = in->Get<float>();
  s->top_k = in->Get<int64_t>();
  s->top_p = in->Get<float>();
  s->min_p = in->Get<float>();
  s->seed = in->Get<uint64_t>();
  s->choice = in->Get<uint32_t>();
  s->repetition_penalty = in->Get<float>();
  s->presence_penalty = in->Get<float>();
  s->frequency_penalty = in->Get<float>();
  std::vector<int32_t> ids;
  std::vector<float> biases;
  in->List(&ids);
  in->List(&biases);
  if (ids.size() != biases.size()) return in->Refuse();
  for (size_t i = 0; i < ids.size(); ++i) s->logit_bias.emplace_back(ids[i], biases[i]);
}

}  // namespace

std::string EncodeRemote(const RemoteOpen& m) {
  Writer out(Kind::kOpen);
  for (const std::string* text : {&m.identity.model_digest, &m.identity.tokenizer_digest,
                                  &m.identity.rope, &m.identity.kv_format, &m.identity.contract})
    out.Text(*text);
  out.List(m.prompt_ids);
  out.List(m.emitted_ids);
  out.Put(m.max_tokens);
  PutSampling(m.sampling, &out);
  out.Put(static_cast<uint8_t>(m.ignore_eos));
  out.Put(static_cast<uint8_t>(m.use_prefix_cache));
  out.Text(m.prefix_salt);
  return out.Finish();
}

absl::StatusOr<RemoteOpen> DecodeRemoteOpen(std::string_view bytes) {
  VC_ASSIGN_OR_RETURN(Reader in, Reader::Of(Kind::kOpen, bytes));
  RemoteOpen m;
  for (std::string* text : {&m.identity.model_digest, &m.identity.tokenizer_digest,
                            &m.identity.rope, &m.identity.kv_format, &m.identity.contract})
    *text = in.Text();
  in.List(&m.prompt_ids);
  in.List(&m.emitted_ids);
  m.max_tokens = in.Get<int64_t>();
  GetSampling(&in, &m.sampling);
  m.ignore_eos = in.Flag();
  m.use_prefix_cache = in.Flag();
  m.prefix_salt = in.Text();
  VC_RETURN_IF_ERROR(in.Finish());
  return m;
}

std::string EncodeSession(std::string_view session) {
  Writer out(Kind::kSession);
  out.Text(session);
  return out.Finish();
}

absl::StatusOr<std::string> DecodeSession(std::string_view bytes) {
  VC_ASSIGN_OR_RETURN(Reader in, Reader::Of(Kind::kSession, bytes));
  std::string session = in.Text();
  VC_RETURN_IF_ERROR(in.Finish());
  return session;
}

std::string EncodeRemote(const RemoteVerify& m) {
  Writer out(Kind::kVerify);
  out.Text(m.session);
  out.Put(m.num_known);
  out.List(m.drafted);
  out.Put(static_cast<int32_t>(m.plain_tokens));
  out.Put(m.rows_begin);
  out.Put(m.rows_as);
  out.Put(m.wait_s);
  return out.Finish();
}

absl::StatusOr<RemoteVerify> DecodeRemoteVerify(std::string_view bytes) {
  VC_ASSIGN_OR_RETURN(Reader in, Reader::Of(Kind::kVerify, bytes));
  RemoteVerify m;
  m.session = in.Text();
  m.num_known = in.Get<int64_t>();
  in.List(&m.drafted);
  m.plain_tokens = in.Get<int32_t>();
  m.rows_begin = in.Get<int64_t>();
  const uint8_t rows_as = in.Get<uint8_t>();
  if (rows_as > static_cast<uint8_t>(RemoteRows::kPacked)) in.Refuse();
  m.wait_s = in.Get<double>();
  VC_RETURN_IF_ERROR(in.Finish());
  m.rows_as = static_cast<RemoteRows>(rows_as);
  return m;
}

std::string EncodeRemote(const RemoteVerified& m) {
  Writer out(Kind::kVerified);
  out.Put(static_cast<uint8_t>(m.ready));
  out.Put(m.prompt_done);
  out.Put(m.prompt_total);
  out.Put(m.num_answering);
  out.Put(m.num_prompts);
  out.List(m.emitted);
  out.List(m.row_hashes);
  out.Put(m.finish);
  out.Put(m.busy_s);
  out.Text(m.rows);
  return out.Finish();
}

absl::StatusOr<RemoteVerified> DecodeRemoteVerified(std::string_view bytes) {
  VC_ASSIGN_OR_RETURN(Reader in, Reader::Of(Kind::kVerified, bytes));
  RemoteVerified m;
  m.ready = in.Flag();
  m.prompt_done = in.Get<int64_t>();
  m.prompt_total = in.Get<int64_t>();
  m.num_answering = in.Get<int32_t>();
  m.num_prompts = in.Get<int32_t>();
  constexpr int32_t kMost = 1 << 20;
  if (m.num_answering < 0 || m.num_answering > kMost || m.num_prompts < 0 || m.num_prompts > kMost)
    in.Refuse();
  in.List(&m.emitted);
  in.List(&m.row_hashes);
  const uint8_t finish = in.Get<uint8_t>();
  if (finish > static_cast<uint8_t>(RemoteFinish::kLength)) in.Refuse();
  m.busy_s = in.Get<double>();
  m.rows = in.Text();
  VC_RETURN_IF_ERROR(in.Finish());
  m.finish = static_cast<RemoteFinish>(finish);
  return m;
}

}  // namespace vericache
