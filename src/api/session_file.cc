// Session files: full KV, draft KV and token ids of a conversation.
//
//   "VCSESS03" | u64 header bytes | header | token ids (i32) | full blocks (f16) | draft bytes |
//   score bytes | SHA-256 over everything before it
// The header is a list of length-prefixed strings: model digest, tokenizer digest, contract, KV
// shape, number of tokens, draft spec, draft bytes, score bytes. A file is written beside its place
// and renamed, so the old one stays until the new one is whole.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "api/engine_impl.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/logits_chain.h"

namespace vericache {
namespace {

constexpr std::string_view kMagic = "VCSESS03";
constexpr size_t kMaxHeaderBytes = 1 << 16;

void AppendField(std::string_view field, std::string* out) {
  const uint64_t size = field.size();
  out->append(reinterpret_cast<const char*>(&size), sizeof(size));
  out->append(field);
}

bool TakeField(std::string_view* in, std::string* field) {
  uint64_t size = 0;
  if (in->size() < sizeof(size)) return false;
  std::memcpy(&size, in->data(), sizeof(size));
  in->remove_prefix(sizeof(size));
  if (size > in->size()) return false;
  field->assign(in->substr(0, size));
  in->remove_prefix(size);
  return true;
}

std::string ShapeText(const KvShape& shape) {
  return StrCat("f16 block64 layers=", shape.num_layers, " heads=", shape.num_kv_heads,
                " dim=", shape.head_dim);
}

// A file under construction; removed unless Commit() succeeds.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path)
      : path_(std::move(path)), temp_(StrCat(path_, ".tmp.", getpid())) {
    file_ = std::fopen(temp_.c_str(), "wb");
    if (file_ == nullptr) error_ = errno;
  }
  ~AtomicFile() {
    if (file_ != nullptr) std::fclose(file_);
    if (!committed_) unlink(temp_.c_str());
  }
  void Write(const void* data, size_t size) {
    sha_.Update(data, size);
    Raw(data, size);
  }
  absl::Status Commit() {
    const Sha256Digest digest = sha_.Finish();
    Raw(digest.data(), digest.size());
    if (error_ == 0 && (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0)) error_ = errno;
    if (error_ == 0 && std::rename(temp_.c_str(), path_.c_str()) != 0) error_ = errno;
    if (error_ != 0)
      return absl::ResourceExhaustedError(StrCat("cannot write session ", path_, ": ",
                                                 std::strerror(error_), " (the old file is kept)"));
    committed_ = true;
    return absl::OkStatus();
  }

 private:
  void Raw(const void* data, size_t size) {
    if (error_ == 0 && std::fwrite(data, 1, size, file_) != size) error_ = errno ? errno : EIO;
  }
  std::string path_, temp_;
  std::FILE* file_;
  Sha256 sha_;
  int error_ = 0;
  bool committed_ = false;
};

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(StrCat("cannot open session ", path));
  in.seekg(0, std::ios::end);
  std::string bytes(static_cast<size_t>(std::max<std::streamoff>(0, in.tellg())), '\0');
  in.seekg(0);
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!in) return absl::DataLossError(StrCat("cannot read session ", path));
  return bytes;
}

}  // namespace

absl::Status Engine::SaveSession(const Session& session, const std::string& path) const {
  const Session::State& state = *session.state_;
  VC_ASSIGN_OR_RETURN(const std::string digest, const_cast<Engine*>(this)->ModelDigest());
  std::string draft;
  if (state.draft.has_value()) state.draft->AppendTo(&draft);
  std::string header, scores;
  AppendScores(state.scores, &scores);
  for (const std::string& field : {digest, impl_->tokenizer->digest(), std::string(kContractId),
                                   ShapeText(state.full.shape()), StrCat(state.full.num_tokens()),
                                   state.draft_spec, StrCat(draft.size()), StrCat(scores.size())})
    AppendField(field, &header);
  AtomicFile file(path);
  const uint64_t header_bytes = header.size();
  file.Write(kMagic.data(), kMagic.size());
  file.Write(&header_bytes, sizeof(header_bytes));
  file.Write(header.data(), header.size());
  file.Write(state.tokens.data(), state.tokens.size() * sizeof(TokenId));
  const int64_t num_blocks = CeilDiv(state.full.num_tokens(), kBlockTokens);
  for (int64_t block = 0; block < num_blocks; ++block)
    file.Write(state.full.block(block), state.full.block_bytes());
  file.Write(draft.data(), draft.size());
  file.Write(scores.data(), scores.size());
  return file.Commit();
}

absl::StatusOr<Session> Engine::LoadSession(const std::string& path) const {
  VC_ASSIGN_OR_RETURN(const std::string bytes, ReadWhole(path));
  const auto damaged = [&](std::string_view why) {
    return absl::DataLossError(
        StrCat("session ", path, " is damaged (", why, "): delete it to start anew"));
  };
  std::string_view in = bytes;
  if (in.size() < kMagic.size() + 8 + 32 || in.substr(0, kMagic.size()) != kMagic)
    return absl::InvalidArgumentError(StrCat(path, " is not a vericache session"));
  const Sha256Digest sum = Sha256Of(in.data(), in.size() - 32);
  if (std::memcmp(sum.data(), in.data() + in.size() - 32, 32) != 0) return damaged("checksum");
  in.remove_suffix(32);
  in.remove_prefix(kMagic.size());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, in.data(), 8);
  in.remove_prefix(8);
  if (header_bytes > in.size() || header_bytes > kMaxHeaderBytes) return damaged("header");
  std::string_view header = in.substr(0, header_bytes);
  in.remove_prefix(header_bytes);
  std::string model, tokenizer, contract, shape, tokens_text, spec_text, draft_text, score_text;
  for (std::string* field :
       {&model, &tokenizer, &contract, &shape, &tokens_text, &spec_text, &draft_text, &score_text})
    if (!TakeField(&header, field)) return damaged("header");
  VC_ASSIGN_OR_RETURN(const std::string digest, const_cast<Engine*>(this)->ModelDigest());
  const KvShape& kv_shape = impl_->model->config.kv_shape();
  if (model != digest || tokenizer != impl_->tokenizer->digest())
    return absl::FailedPreconditionError(StrCat("session ", path, " was made by another model"));
  if (contract != kContractId || shape != ShapeText(kv_shape))
    return absl::FailedPreconditionError(
        StrCat("session ", path, " was made under ", contract, ", this is ", kContractId));
  int64_t num_tokens = 0;
  uint64_t draft_bytes = 0, score_bytes = 0;
  if (!ParseInt(tokens_text, &num_tokens) || num_tokens < 0 ||
      num_tokens > impl_->model->config.context_length || !ParseInt(draft_text, &draft_bytes) ||
      !ParseInt(score_text, &score_bytes) || draft_bytes > in.size() || score_bytes > in.size())
    return damaged("counts");
  Session session = NewSession();
  Session::State& state = *session.state_;
  const size_t block_bytes = state.full.block_bytes();
  const uint64_t num_blocks = CeilDiv(num_tokens, kBlockTokens);
  if (in.size() !=
      num_tokens * sizeof(TokenId) + num_blocks * block_bytes + draft_bytes + score_bytes)
    return damaged("length");
  state.tokens.resize(num_tokens);
  std::memcpy(state.tokens.data(), in.data(), num_tokens * sizeof(TokenId));
  in.remove_prefix(num_tokens * sizeof(TokenId));
  VC_RETURN_IF_ERROR(state.full.ResizeForLoad(num_tokens));
  for (uint64_t block = 0; block < num_blocks; ++block, in.remove_prefix(block_bytes))
    std::memcpy(state.full.mutable_block(block), in.data(), block_bytes);
  const KvShape& s = kv_shape;
  if (!ReadScores(in.substr(draft_bytes), s.num_layers * s.num_kv_heads, num_tokens, &state.scores)
           .ok())
    return damaged("scores");
  if (draft_bytes == 0) return session;
  in = in.substr(0, draft_bytes);
  VC_ASSIGN_OR_RETURN(const DraftSpec spec, ParseDraftSpec(spec_text));
  state.draft_spec = spec_text;
  state.draft.emplace(NewDraftKv(kv_shape, spec, impl_->model->kernels));
  VC_RETURN_IF_ERROR(state.draft->ReadFrom(&in));
  if (!in.empty() || state.draft->num_tokens() != num_tokens) return damaged("draft KV");
  return session;
}

}  // namespace vericache
