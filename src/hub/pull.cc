// The pull itself: ask the Hub what the file is, then fetch it piece by piece until it is whole.
//
// One rule carries the rest: the digest is known before the first byte is asked for. It decides
// whether a part on disk may be gone on with, and whether the result gets its name.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "hub/http.h"
#include "hub/hub.h"
#include "hub/listing.h"
#include "hub/part_file.h"
#include "hub/reference.h"

namespace vericache {
namespace {

constexpr size_t kMaxListingBytes = 32 << 20;
constexpr int kMaxListingPages = 100;
constexpr int kMaxRetryDelayMs = 30'000;

// One pull: what was asked for, the connection, and how often it was tried in vain.
class Puller {
 public:
  Puller(const PullOptions& options, const ModelReference& reference)
      : options_(options),
        reference_(reference),
        http_({options.connect_timeout_ms, options.stall_timeout_s, options.ca_file}) {
    endpoint_ = options.endpoint.empty() ? kDefaultHubEndpoint : options.endpoint;
    while (absl::EndsWith(endpoint_, "/")) endpoint_.pop_back();
  }

  absl::StatusOr<std::string> Run();

 private:
  absl::StatusOr<RemoteFile> FindFile();
  absl::StatusOr<std::vector<RemoteFile>> ListFiles();
  absl::StatusOr<HttpResult> ListPage(const std::string& url, std::string* body);
  absl::Status AskForDigest(RemoteFile* file);
  absl::Status Download(const RemoteFile& file, PartFile* part);
  // One request for the rest of the file. OK if it may be tried again or is done.
  absl::Status DownloadOnce(const std::string& url, PartFile* part);
  absl::Status TakeBytes(const HttpResult& result, absl::Span<const char> bytes, bool first,
                         PartFile* part);

  // Turns an answer into an error, or OK where it is a good one or worth another try; in the
  // latter case it has waited.
  absl::Status CheckAnswer(const HttpResult& result, bool* again);
  absl::Status Wait(const std::string& why, const std::string& retry_after);
  absl::Status StatusError(const HttpResult& result) const;
  absl::Status CheckExisting(const std::string& path, const RemoteFile& file) const;

  std::string FileUrl(const std::string& path) const {
    return absl::StrCat(endpoint_, "/", reference_.repo, "/resolve/main/", EncodePath(path));
  }
  void Note(const std::string& line) const {
    if (options_.on_note) options_.on_note(line);
  }
  void Progress(const PartFile& part) const {
    if (options_.on_progress) options_.on_progress(part.bytes_done(), part.bytes_total());
  }

  const PullOptions& options_;
  const ModelReference& reference_;
  HttpClient http_;
  std::string endpoint_;
  bool was_reached_ = false;
  int num_failures_ = 0;    // in a row
  int64_t bytes_best_ = 0;  // most bytes of the file on disk so far
};

absl::Status Puller::StatusError(const HttpResult& result) const {
  const std::string code = result.Header("x-error-code");
  const std::string& repo = reference_.repo;
  const std::string http = absl::StrCat(" (HTTP ", result.status, " from ", endpoint_, ")");
  if (code == "GatedRepo" || (result.status == 403 && code.empty())) {
    return absl::PermissionDeniedError(absl::StrCat(
        "no access to ", repo, ": it may be gated; accept its terms on the Hub and ",
        options_.token.empty() ? "set HF_TOKEN" : "check that your HF_TOKEN may read it", http));
  }
  // The Hub says 401 for "no such repository" too, so as not to give away private names.
  if (result.status == 401 || result.status == 403) {
    return absl::PermissionDeniedError(
        absl::StrCat(repo, " does not exist or is private: check the name",
                     options_.token.empty() ? ", or set HF_TOKEN" : " and your HF_TOKEN", http));
  }
  if (result.status == 404) {
    return absl::NotFoundError(absl::StrCat(
        code == "EntryNotFound" ? "no such file in " : "no such repository: ", repo, http));
  }
  return absl::UnavailableError(absl::StrCat("the Hub refused ", repo, http));
}

absl::Status Puller::Wait(const std::string& why, const std::string& retry_after) {
  if (++num_failures_ > options_.num_retries_max) {
    return absl::UnavailableError(absl::StrCat(endpoint_, ": ", why, ", ", num_failures_,
                                               " times in a row; run this again later"));
  }
  int64_t delay_ms = int64_t{options_.retry_delay_ms} << std::min(num_failures_ - 1, 4);
  int64_t asked_s = 0;
  if (absl::SimpleAtoi(retry_after, &asked_s) && asked_s > 0) {
    delay_ms = std::max(delay_ms, std::min<int64_t>(asked_s, kMaxRetryDelayMs) * 1000);
  }
  delay_ms = std::min<int64_t>(delay_ms, kMaxRetryDelayMs);
  Note(absl::StrCat(why, "; trying again in ", (delay_ms + 999) / 1000, " s"));
  std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
  return absl::OkStatus();
}

absl::Status Puller::CheckAnswer(const HttpResult& result, bool* again) {
  *again = false;
  switch (result.outcome) {
    case HttpResult::Outcome::kStopped:
      return result.stop_status;
    case HttpResult::Outcome::kUnreachable:
      // Where nothing ever answered, a quick "no" serves better than patience: the network is
      // off, the name is wrong, or the Hub is blocked here.
      if (!was_reached_) {
        return absl::UnavailableError(
            absl::StrCat("cannot reach ", endpoint_, ": ", result.error_text));
      }
      *again = true;
      return Wait(absl::StrCat("lost connection (", result.error_text, ")"), "");
    case HttpResult::Outcome::kBrokenOff:
      was_reached_ = true;
      *again = true;
      return Wait(absl::StrCat("broken off (", result.error_text, ")"), "");
    case HttpResult::Outcome::kAnswered:
      break;
  }
  was_reached_ = true;
  if (result.status >= 200 && result.status < 300) return absl::OkStatus();
  if (result.status >= 500 || result.status == 429 || result.status == 408) {
    *again = true;
    return Wait(absl::StrCat("HTTP ", result.status), result.Header("retry-after"));
  }
  return StatusError(result);
}

absl::StatusOr<HttpResult> Puller::ListPage(const std::string& url, std::string* body) {
  for (;;) {
    body->clear();
    HttpRequest request{HttpMethod::kGet, url, options_.token, 0, {}};
    request.on_body = [body](const HttpResult&, absl::Span<const char> bytes) {
      body->append(bytes.data(), bytes.size());
      if (body->size() <= kMaxListingBytes) return absl::OkStatus();
      return absl::FailedPreconditionError("the list of files is longer than 32 MiB");
    };
    HttpResult result = http_.Run(request);
    bool again = false;
    VC_RETURN_IF_ERROR(CheckAnswer(result, &again));
    if (!again) return result;
  }
}

absl::StatusOr<std::vector<RemoteFile>> Puller::ListFiles() {
  std::string url =
      absl::StrCat(endpoint_, "/api/models/", reference_.repo, "/tree/main?recursive=1");
  std::vector<RemoteFile> files;
  for (int num_pages = 0; !url.empty() && num_pages < kMaxListingPages; ++num_pages) {
    std::string body;
    VC_ASSIGN_OR_RETURN(const HttpResult result, ListPage(url, &body));
    auto page = ParseTreePage(body);
    if (!page.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(
          endpoint_, " does not answer as a Hugging Face Hub does (", page.status().message(),
          "): check HF_ENDPOINT, or a proxy or login page in between"));
    }
    files.insert(files.end(), page->begin(), page->end());
    url = NextPageUrl(result.Header("link"));
    if (!url.empty() && OriginOf(url) != OriginOf(endpoint_)) {
      return absl::FailedPreconditionError(
          absl::StrCat(endpoint_, " continues its list of files on another host: ", url));
    }
  }
  num_failures_ = 0;
  return files;
}

// Some files are listed without their SHA-256; the answer to a HEAD for the file itself has it.
absl::Status Puller::AskForDigest(RemoteFile* file) {
  for (;;) {
    const HttpResult result =
        http_.Run({HttpMethod::kHead, FileUrl(file->path), options_.token, 0, {}});
    bool again = false;
    VC_RETURN_IF_ERROR(CheckAnswer(result, &again));
    if (again) continue;
    std::string etag = result.Header("x-linked-etag");
    etag.erase(std::remove(etag.begin(), etag.end(), '"'), etag.end());
    if (IsSha256Hex(etag)) file->sha256 = etag;
    int64_t bytes = 0;
    if (absl::SimpleAtoi(result.Header("x-linked-size"), &bytes)) file->bytes = bytes;
    return absl::OkStatus();
  }
}

absl::StatusOr<RemoteFile> Puller::FindFile() {
  VC_ASSIGN_OR_RETURN(const std::vector<RemoteFile> files, ListFiles());
  VC_ASSIGN_OR_RETURN(RemoteFile file, ChooseFile(reference_.repo, reference_.file, files));
  if (file.sha256.empty() || file.bytes < 0) VC_RETURN_IF_ERROR(AskForDigest(&file));
  if (file.sha256.empty() || file.bytes < 0) {
    return absl::FailedPreconditionError(absl::StrCat("the Hub tells no SHA-256 for ",
                                                      reference_.repo, "/", file.path,
                                                      ", so the download could not be checked"));
  }
  if (!reference_.sha256.empty() && reference_.sha256 != file.sha256) {
    return absl::FailedPreconditionError(
        absl::StrCat(reference_.repo, "/", file.path,
                     " has changed on the Hub and is no longer the file this "
                     "short name stands for; to have it all the same: vericache pull ",
                     reference_.repo, "/", file.path));
  }
  return file;
}

absl::Status Puller::CheckExisting(const std::string& path, const RemoteFile& file) const {
  std::error_code error;
  if (static_cast<int64_t>(std::filesystem::file_size(path, error)) == file.bytes && !error) {
    VC_ASSIGN_OR_RETURN(const Sha256Digest digest, Sha256OfFile(path));
    if (HexOf(digest) == file.sha256) return absl::OkStatus();
  }
  return absl::AlreadyExistsError(absl::StrCat(
      path, " exists and is another file than the Hub's: move it away and run this again"));
}

absl::Status Puller::TakeBytes(const HttpResult& result, absl::Span<const char> bytes, bool first,
                               PartFile* part) {
  if (first && part->bytes_done() > 0) {
    const std::string expected = absl::StrCat("bytes ", part->bytes_done(), "-",
                                              part->bytes_total() - 1, "/", part->bytes_total());
    if (result.status != 206 || result.Header("content-range") != expected) {
      if (result.status == 206) {
        return absl::FailedPreconditionError(absl::StrCat(
            "the server sent another range than asked for: ", result.Header("content-range")));
      }
      Note("the server cannot go on in the middle; starting anew");
      VC_RETURN_IF_ERROR(part->Restart());
    }
  }
  if (first && part->bytes_done() == 0 &&
      std::memcmp(bytes.data(), "GGUF", std::min<size_t>(4, bytes.size())) != 0) {
    // A page of HTML can be told at once, and is not worth 500 MB of patience.
    return absl::FailedPreconditionError(absl::StrCat(
        "what ", endpoint_, " sent is no GGUF file",
        absl::StrContains(result.Header("content-type"), "html") ? " but a web page" : "",
        ": check HF_ENDPOINT, or a proxy or login page in between"));
  }
  VC_RETURN_IF_ERROR(part->Append(bytes));
  // Only bytes never had before count as progress, or a server that always starts anew and always
  // breaks off at the same place would keep us for ever.
  if (part->bytes_done() > bytes_best_) {
    bytes_best_ = part->bytes_done();
    num_failures_ = 0;
  }
  Progress(*part);
  return absl::OkStatus();
}

absl::Status Puller::DownloadOnce(const std::string& url, PartFile* part) {
  HttpRequest request{HttpMethod::kGet, url, options_.token, part->bytes_done(), {}};
  bool first = true;
  request.on_body = [&](const HttpResult& result, absl::Span<const char> bytes) {
    return TakeBytes(result, bytes, std::exchange(first, false), part);
  };
  const HttpResult result = http_.Run(request);
  if (result.outcome == HttpResult::Outcome::kAnswered && result.status == 416) {
    VC_RETURN_IF_ERROR(part->Restart());
    return Wait("HTTP 416 (range)", "");
  }
  bool again = false;
  VC_RETURN_IF_ERROR(CheckAnswer(result, &again));
  if (!again && part->bytes_done() < part->bytes_total()) {
    return Wait("the answer ended too early", "");
  }
  return absl::OkStatus();
}

absl::Status Puller::Download(const RemoteFile& file, PartFile* part) {
  if (part->bytes_done() > 0) {
    Note(absl::StrCat("going on at ", part->bytes_done() / 1000000, " of ",
                      part->bytes_total() / 1000000, " MB"));
  }
  bytes_best_ = part->bytes_done();
  Progress(*part);
  while (part->bytes_done() < part->bytes_total()) {
    VC_RETURN_IF_ERROR(DownloadOnce(FileUrl(file.path), part));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Puller::Run() {
  if (OriginOf(endpoint_).empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("HF_ENDPOINT is no http or https address: ", endpoint_));
  }
  VC_ASSIGN_OR_RETURN(const RemoteFile file, FindFile());
  std::error_code error;
  std::filesystem::create_directories(options_.models_dir, error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot make the folder ", options_.models_dir, ": ", error.message()));
  }
  const std::string target =
      absl::StrCat(options_.models_dir, "/",
                   reference_.local_name.empty() ? BaseName(file.path) : reference_.local_name);
  if (std::filesystem::exists(target, error)) {
    VC_RETURN_IF_ERROR(CheckExisting(target, file));
    Note("already there");
    return target;
  }
  VC_ASSIGN_OR_RETURN(PartFile part, PartFile::Open(target, file.bytes, file.sha256));
  VC_RETURN_IF_ERROR(Download(file, &part));
  VC_RETURN_IF_ERROR(part.Finish());
  return target;
}

}  // namespace

absl::StatusOr<std::string> PullModel(const PullOptions& options) {
  VC_ASSIGN_OR_RETURN(const ModelReference reference, ParseModelReference(options.model));
  return Puller(options, reference).Run();
}

}  // namespace vericache
