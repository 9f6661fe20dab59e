#include "api/model_digest.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "base/hash.h"
#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

constexpr char kNoteVersion[] = "vericache-digest-1";
// A write in the same tick of the clock as the last one does not change a file's times.
constexpr int64_t kSettledNs = 2'000'000'000;
constexpr size_t kDigestDigits = 64;

int64_t NsOf(const timespec& time) { return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec; }

std::string ShaHex(std::string_view text) { return HexOf(Sha256Of(text.data(), text.size())); }

// "vericache-digest-1 DEVICE INODE BYTES MTIME CTIME ": what a note begins with.
std::string NoteHead(const FileIdentity& id) {
  return StrCat(kNoteVersion, " ", id.device, " ", id.inode, " ", id.bytes, " ", id.modified_ns,
                " ", id.changed_ns, " ");
}

std::string NotePath(const std::string& path, const std::string& folder) {
  char real[PATH_MAX];
  const std::string name = realpath(path.c_str(), real) != nullptr ? real : path;
  return StrCat(folder, "/digest-", ShaHex(name).substr(0, 32));
}

// The digest that a note has for this very file, or "".
std::string ReadNote(const std::string& note_path, const FileIdentity& id) {
  std::ifstream in(note_path);
  std::string line;
  if (!std::getline(in, line)) return "";
  const std::string head = NoteHead(id);
  if (line.size() != head.size() + 2 * kDigestDigits + 1 || !line.starts_with(head)) return "";
  const std::string said = line.substr(0, head.size() + kDigestDigits);
  if (line != StrCat(said, " ", ShaHex(said))) return "";
  return said.substr(head.size());
}

// A note that cannot be written costs the next start some time.
void WriteNote(const std::string& note_path, const FileIdentity& id, const std::string& digest) {
  const std::string said = NoteHead(id) + digest;
  const std::string temp = StrCat(note_path, ".", getpid());
  std::ofstream out(temp, std::ios::trunc);
  out << said << " " << ShaHex(said) << "\n";
  out.close();
  if (!out || std::rename(temp.c_str(), note_path.c_str()) != 0) unlink(temp.c_str());
}

bool Settled(const FileIdentity& id) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return NsOf(now) - std::max(id.modified_ns, id.changed_ns) > kSettledNs;
}

}  // namespace

absl::StatusOr<FileIdentity> IdentityOfFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::NotFoundError(StrCat("cannot open ", path));
  return FileIdentity{info.st_dev, info.st_ino, static_cast<uint64_t>(info.st_size),
                      NsOf(info.st_mtim), NsOf(info.st_ctim)};
}

absl::StatusOr<std::string> RememberedModelDigest(const std::string& path,
                                                  const std::string& folder, DigestNotes notes) {
  VC_ASSIGN_OR_RETURN(const FileIdentity before, IdentityOfFile(path));
  const std::string note_path = NotePath(path, folder);
  if (Settled(before)) {
    const std::string known = ReadNote(note_path, before);
    if (!known.empty()) return known;
  }
  const bool settled = Settled(before);
  VC_ASSIGN_OR_RETURN(const Sha256Digest digest, Sha256OfFile(path));
  VC_ASSIGN_OR_RETURN(const FileIdentity after, IdentityOfFile(path));
  if (!(before == after))
    return absl::DataLossError(StrCat(path, " was changed while it was read; start again"));
  if (settled && notes == DigestNotes::kReadWrite) WriteNote(note_path, before, HexOf(digest));
  return HexOf(digest);
}

}  // namespace vericache
