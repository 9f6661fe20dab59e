// Session files: full KV, draft KV and token ids of a conversation.
//
//   "VCSESS04" | u64 header bytes | header | token ids (i32) | full blocks (f16) | draft bytes |
//   score bytes | SHA-256 over everything before it
// The header is a list of length-prefixed strings: model digest, tokenizer digest, contract, KV
// shape, number of tokens, draft spec, draft bytes, score bytes, rope settings ("VCSESS03" had
// none: they are the model file's own). A file is written beside its place and renamed, so the old
// one stays until the new one is whole.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "api/engine_impl.h"
#include "api/rope_settings.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "engine/logits_chain.h"

namespace vericache {
namespace {

constexpr std::string_view kMagic = "VCSESS04";
constexpr std::string_view kMagicWithoutRope = "VCSESS03";
constexpr uint64_t kLoadBlocks = 16;  // loaded before what is beyond the hot blocks is spilled
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

// Reads a file front to back without holding it: K/V may be larger than their memory.
class FileReader {
 public:
  static absl::StatusOr<FileReader> Open(const std::string& path) {
    FileReader reader;
    reader.in_.open(path, std::ios::binary);
    if (!reader.in_) return absl::NotFoundError(StrCat("cannot open session ", path));
    reader.in_.seekg(0, std::ios::end);
    const std::streamoff size = std::max<std::streamoff>(0, reader.in_.tellg());
    if (!reader.in_) return absl::DataLossError(StrCat("cannot read session ", path));
    reader.left_ = static_cast<uint64_t>(size);
    reader.in_.seekg(0);
    return reader;
  }
  uint64_t left() const { return left_; }
  void SkipTail(uint64_t bytes) { left_ -= bytes; }
  // False: there are not so many bytes left, or they cannot be read.
  bool Read(void* dst, uint64_t bytes) {
    if (bytes > left_) return false;
    in_.read(static_cast<char*>(dst), static_cast<std::streamsize>(bytes));
    left_ -= bytes;
    return static_cast<bool>(in_);
  }
  bool ReadText(uint64_t bytes, std::string* text) {
    if (bytes > left_) return false;
    text->resize(bytes);
    return Read(text->data(), bytes);
  }

 private:
  std::ifstream in_;
  uint64_t left_ = 0;
};

// Whether the file ends in the SHA-256 of everything before it. REQUIRES: at least 32 bytes.
bool ChecksumHolds(FileReader file) {
  Sha256 sha;
  std::string piece;
  while (file.left() > 32) {
    if (!file.ReadText(std::min<uint64_t>(file.left() - 32, 1 << 20), &piece)) return false;
    sha.Update(piece.data(), piece.size());
  }
  return file.ReadText(32, &piece) && std::memcmp(sha.Finish().data(), piece.data(), 32) == 0;
}

// What a session's header says, in the order of the fields.
struct SessionHeader {
  std::string model, tokenizer, contract, shape, num_tokens, draft_spec, draft_bytes, score_bytes;
  std::string rope;  // "" in files that have none

  // False: the fields are not those of a header.
  bool Read(std::string_view text, bool has_rope) {
    for (std::string* field : {&model, &tokenizer, &contract, &shape, &num_tokens, &draft_spec,
                               &draft_bytes, &score_bytes})
      if (!TakeField(&text, field)) return false;
    return !has_rope || TakeField(&text, &rope);
  }
};

absl::Status CheckRope(const SessionHeader& header, const Model& model, const RopeOptions& rope,
                       const std::string& path) {
  std::string text = header.rope;
  if (text.empty()) {
    VC_ASSIGN_OR_RETURN(const ModelConfig own, ReadModelConfig(*model.file));
    text = RopeText(own);
  }
  if (text == RopeText(model.config)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      StrCat("session ", path, " was made with other rope settings than ", RopeFlags(rope),
             ": give those that it was made with, or delete it"));
}

}  // namespace

absl::Status Engine::SaveSession(const Session& session, const std::string& path) const {
  const Session::State& state = *session.state_;
  VC_ASSIGN_OR_RETURN(const std::string digest, const_cast<Engine*>(this)->ModelDigest());
  std::string draft;
  if (state.draft.has_value()) state.draft->AppendTo(&draft);
  std::string header, scores;
  AppendScores(state.scores, &scores);
  for (const std::string& field :
       {digest, impl_->tokenizer->digest(), std::string(kContractId), ShapeText(state.full.shape()),
        StrCat(state.full.num_tokens()), state.draft_spec, StrCat(draft.size()),
        StrCat(scores.size()), RopeText(impl_->model->config)})
    AppendField(field, &header);
  AtomicFile file(path);
  const uint64_t header_bytes = header.size();
  file.Write(kMagic.data(), kMagic.size());
  file.Write(&header_bytes, sizeof(header_bytes));
  file.Write(header.data(), header.size());
  file.Write(state.tokens.data(), state.tokens.size() * sizeof(TokenId));
  const int64_t num_blocks = CeilDiv(state.full.num_tokens(), kBlockTokens);
  std::vector<uint16_t> spilled;
  for (int64_t block = 0; block < num_blocks; ++block) {
    const uint16_t* values = state.full.block(block);
    if (values == nullptr) {
      spilled.resize(state.full.block_bytes() / sizeof(uint16_t));
      VC_RETURN_IF_ERROR(state.full.ReadBlock(block, spilled.data()));
      values = spilled.data();
    }
    file.Write(values, state.full.block_bytes());
  }
  file.Write(draft.data(), draft.size());
  file.Write(scores.data(), scores.size());
  return file.Commit();
}

absl::StatusOr<Session> Engine::LoadSession(const std::string& path) const {
  VC_ASSIGN_OR_RETURN(FileReader in, FileReader::Open(path));
  const auto damaged = [&](std::string_view why) {
    return absl::DataLossError(
        StrCat("session ", path, " is damaged (", why, "): delete it to start anew"));
  };
  std::string magic, header_text, draft, scores;
  if (in.left() < kMagic.size() + 8 + 32 || !in.ReadText(kMagic.size(), &magic) ||
      (magic != kMagic && magic != kMagicWithoutRope))
    return absl::InvalidArgumentError(StrCat(path, " is not a vericache session"));
  VC_ASSIGN_OR_RETURN(FileReader again, FileReader::Open(path));
  if (again.left() < 32 || !ChecksumHolds(std::move(again))) return damaged("checksum");
  in.SkipTail(32);
  uint64_t header_bytes = 0;
  if (!in.Read(&header_bytes, 8) || header_bytes > kMaxHeaderBytes ||
      !in.ReadText(header_bytes, &header_text))
    return damaged("header");
  SessionHeader header;
  if (!header.Read(header_text, magic == kMagic)) return damaged("header");
  VC_ASSIGN_OR_RETURN(const std::string digest, const_cast<Engine*>(this)->ModelDigest());
  const KvShape& kv_shape = impl_->model->config.kv_shape();
  if (header.model != digest || header.tokenizer != impl_->tokenizer->digest())
    return absl::FailedPreconditionError(StrCat("session ", path, " was made by another model"));
  if (header.contract != kContractId || header.shape != ShapeText(kv_shape))
    return absl::FailedPreconditionError(
        StrCat("session ", path, " was made under ", header.contract, ", this is ", kContractId));
  VC_RETURN_IF_ERROR(CheckRope(header, *impl_->model, impl_->info.rope, path));
  int64_t num_tokens = 0;
  uint64_t draft_bytes = 0, score_bytes = 0;
  if (!ParseInt(header.num_tokens, &num_tokens) || num_tokens < 0 ||
      num_tokens > impl_->model->config.context_length ||
      !ParseInt(header.draft_bytes, &draft_bytes) || !ParseInt(header.score_bytes, &score_bytes) ||
      draft_bytes > in.left() || score_bytes > in.left())
    return damaged("counts");
  Session session = NewSession();
  Session::State& state = *session.state_;
  const size_t block_bytes = state.full.block_bytes();
  const uint64_t num_blocks = CeilDiv(num_tokens, kBlockTokens);
  if (in.left() !=
      num_tokens * sizeof(TokenId) + num_blocks * block_bytes + draft_bytes + score_bytes)
    return damaged("length");
  state.tokens.resize(num_tokens);
  if (!in.Read(state.tokens.data(), num_tokens * sizeof(TokenId))) return damaged("tokens");
  for (uint64_t block = 0; block < num_blocks; ++block) {
    VC_RETURN_IF_ERROR(
        state.full.ResizeForLoad(std::min<int64_t>(num_tokens, (block + 1) * kBlockTokens)));
    if (!in.Read(state.full.mutable_block(block), block_bytes)) return damaged("K/V");
    if (block % kLoadBlocks == kLoadBlocks - 1) VC_RETURN_IF_ERROR(state.full.Spill());
  }
  VC_RETURN_IF_ERROR(state.full.Spill());
  if (!in.ReadText(draft_bytes, &draft) || !in.ReadText(score_bytes, &scores))
    return damaged("length");
  const KvShape& s = kv_shape;
  if (!ReadScores(scores, s.num_layers * s.num_kv_heads, num_tokens, &state.scores).ok())
    return damaged("scores");
  if (draft_bytes == 0) return session;
  std::string_view rest = draft;
  VC_ASSIGN_OR_RETURN(const DraftSpec spec, ParseDraftSpec(header.draft_spec));
  state.draft_spec = header.draft_spec;
  state.draft.emplace(NewDraftKv(kv_shape, spec, impl_->model->kernels));
  VC_RETURN_IF_ERROR(state.draft->ReadFrom(&rest));
  if (!rest.empty() || state.draft->num_tokens() != num_tokens) return damaged("draft KV");
  return session;
}

}  // namespace vericache
