#include "remote/s3_store.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/text.h"
#include "remote/s3_read.h"

namespace vericache {
namespace {

constexpr size_t kRequestsAtOnce = 8;
constexpr auto kListPatience = std::chrono::seconds(120);

// A key within a query: "/" is the one character of ours that must be encoded there.
std::string InQuery(std::string_view key) {
  std::string encoded;
  for (char c : key) encoded += c == '/' ? std::string("%2F") : std::string(1, c);
  return encoded;
}

std::vector<std::string_view> Slice(absl::Span<const std::string_view> parts, uint64_t begin,
                                    uint64_t size) {
  std::vector<std::string_view> slice;
  for (std::string_view part : parts) {
    const uint64_t skip = std::min<uint64_t>(begin, part.size());
    begin -= skip;
    const std::string_view rest = part.substr(skip, size);
    size -= rest.size();
    if (!rest.empty()) slice.push_back(rest);
  }
  return slice;
}

int64_t AgeOf(const std::string& iso_time) {
  std::tm time{};
  if (strptime(iso_time.c_str(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr) return -1;
  return std::max<int64_t>(0, std::time(nullptr) - timegm(&time));
}

}  // namespace

void S3Store::GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) {
  for (size_t first = 0; first < keys.size(); first += kRequestsAtOnce) {
    const Deadline limit = Limit(deadline);
    const auto window = keys.subspan(first, std::min(kRequestsAtOnce, keys.size() - first));
    std::vector<std::unique_ptr<S3Reading>> readings;
    for (const BlobKey& key : window)
      readings.push_back(std::make_unique<S3Reading>(&client_, key, client_.UrlOf(KeyText(key))));
    const auto resume = [&](HttpCall* call) {
      for (const auto& reading : readings)
        if (reading->Resume(call)) return true;
      return false;
    };
    for (bool more = true; more;) {
      std::vector<HttpCall*> calls;
      for (const auto& reading : readings)
        for (HttpCall* call : reading->NextCalls()) calls.push_back(call);
      for (size_t i = 0; i < calls.size(); i += kRequestsAtOnce)
        client_.Run(absl::MakeConstSpan(calls).subspan(i, kRequestsAtOnce), limit, resume);
      more = !calls.empty();
      for (const auto& reading : readings) more |= reading->Restart();
    }
    for (size_t i = 0; i < window.size(); ++i) {
      bool damaged = false;
      absl::StatusOr<BlobBytes> blob = readings[i]->Take(&damaged);
      counts_.damaged += damaged;
      if (blob.ok()) counts_.read_bytes += blob->size();
      if (!sink(first + i, std::move(blob))) return;
    }
  }
}

absl::StatusOr<BlobBytes> S3Store::Get(const BlobKey& key, Deadline deadline) {
  absl::StatusOr<BlobBytes> result = absl::NotFoundError("no such blob");
  GetMany({&key, 1}, deadline, [&](size_t, absl::StatusOr<BlobBytes> blob) {
    result = std::move(blob);
    return false;
  });
  return result;
}

absl::StatusOr<size_t> S3Store::CountUntil(absl::Span<const BlobKey> keys, Until until,
                                           Deadline deadline) {
  const Deadline limit = Limit(deadline);
  size_t count = 0;
  for (size_t first = 0; first < keys.size(); first += 2 * kRequestsAtOnce) {
    const auto window = keys.subspan(first, 2 * kRequestsAtOnce);
    std::vector<HttpCall> calls(window.size());
    std::vector<HttpCall*> pointers;
    for (size_t i = 0; i < window.size(); ++i) {
      // One byte and not HEAD: an error without a body would not say what is wrong, nor that
      // credentials have expired.
      calls[i].headers = {"Range: bytes=0-0"};
      calls[i].on_body = [](const uint8_t*, size_t size) { return size <= 1; };
      calls[i].url = client_.UrlOf(KeyText(window[i]));
      pointers.push_back(&calls[i]);
    }
    client_.Run(pointers, limit);
    for (const HttpCall& call : calls) {
      // A server that knows no ranges sends all of it; its head is enough.
      const bool is_there = call.stopped && call.status == 200;
      const absl::Status status = is_there ? absl::OkStatus() : client_.StatusOf(call);
      const bool missing = absl::IsNotFound(status) || call.status == 416;  // 416: of no bytes
      if (!missing) {
        VC_RETURN_IF_ERROR(status);
      }
      if (missing == (until == Until::kMissing)) return count;
      ++count;
    }
  }
  return count;
}

absl::StatusOr<int64_t> S3Store::CountPresent(absl::Span<const BlobKey> keys, Deadline deadline) {
  VC_ASSIGN_OR_RETURN(const size_t count, CountUntil(keys, Until::kMissing, deadline));
  return static_cast<int64_t>(count);
}

absl::StatusOr<size_t> S3Store::FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) {
  return CountUntil(keys, Until::kPresent, deadline);
}

absl::Status S3Store::PutWhole(const std::string& key, absl::Span<const std::string_view> parts) {
  HttpCall call;
  call.method = "PUT";
  call.url = client_.UrlOf(key);
  call.body.assign(parts.begin(), parts.end());
  HttpCall* const calls[] = {&call};
  client_.Run(calls, Limit(kNoDeadline));
  return client_.StatusOf(call);
}

absl::Status S3Store::PutInParts(const std::string& key, absl::Span<const std::string_view> parts,
                                 uint64_t num_bytes) {
  HttpCall begin;
  begin.method = "POST";
  begin.url = client_.UrlOf(key, "uploads=");
  const auto run = [&](HttpCall* call) {
    HttpCall* const calls[] = {call};
    client_.Run(calls, Limit(kNoDeadline));
    return client_.StatusOf(*call);
  };
  VC_RETURN_IF_ERROR(run(&begin));
  size_t at = 0;
  std::string id;
  if (!NextXmlText(begin.text, "UploadId", &at, &id) || id.empty() || id.size() > 1024 ||
      id.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") !=
          id.npos)
    return absl::UnavailableError(StrCat(client_.name(), ": an upload's name cannot be signed"));
  const uint64_t step = client_.options().multipart_bytes;
  std::string list = "<CompleteMultipartUpload>";
  absl::Status status;
  for (uint64_t offset = 0, number = 1; offset < num_bytes && status.ok(); offset += step) {
    HttpCall part;
    part.method = "PUT";
    part.url = client_.UrlOf(key, StrCat("partNumber=", number, "&uploadId=", id));
    part.body = Slice(parts, offset, step);
    status = run(&part);
    const std::string etag = part.Answer("etag");
    if (etag.find_first_of("<>&") != etag.npos) status = absl::UnavailableError("a bad ETag");
    list += StrCat("<Part><PartNumber>", number++, "</PartNumber><ETag>", etag, "</ETag></Part>");
  }
  list += "</CompleteMultipartUpload>";
  HttpCall end;
  end.method = status.ok() ? "POST" : "DELETE";
  end.url = client_.UrlOf(key, "uploadId=" + id);
  if (status.ok()) end.body = {list};
  const bool aborts = !status.ok();
  const absl::Status ended = run(&end);
  if (aborts) return status;
  VC_RETURN_IF_ERROR(ended);
  // A 200 may still carry an error.
  const std::string code = end.Code();
  return code.empty() ? absl::OkStatus()
                      : absl::UnavailableError(StrCat(client_.name(), ": ", code));
}

absl::Status S3Store::Put(const BlobKey& key, absl::Span<const std::string_view> parts) {
  if (client_.options().read_only)
    return absl::FailedPreconditionError("the prefix store is read only");
  const BlobHeader header = MakeBlobHeader(key, parts);
  std::vector<std::string_view> all = {
      {reinterpret_cast<const char*>(header.data()), header.size()}};
  all.insert(all.end(), parts.begin(), parts.end());
  const uint64_t num_bytes = PayloadBytesOf(header) + header.size();
  if (num_bytes > kMaxBlobBytes) return absl::ResourceExhaustedError("a blob of this size");
  const absl::Status status = num_bytes > client_.options().multipart_bytes
                                  ? PutInParts(KeyText(key), all, num_bytes)
                                  : PutWhole(KeyText(key), all);
  if (status.ok()) counts_.written_bytes += num_bytes;
  if (!status.ok()) ++counts_.failed_puts;
  return status;
}

absl::Status S3Store::Remove(const BlobKey& key) {
  if (client_.options().read_only)
    return absl::FailedPreconditionError("the prefix store is read only");
  HttpCall call;
  call.method = "DELETE";
  call.url = client_.UrlOf(KeyText(key));
  HttpCall* const calls[] = {&call};
  client_.Run(calls, Limit(kNoDeadline));
  const absl::Status status = client_.StatusOf(call);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

// Pages are asked for by start-after, our own key: a continuation token could hold what libcurl
// does not sign right.
absl::Status S3Store::List(std::string_view hex_prefix,
                           const std::function<bool(const BlobInfo&)>& visit) {
  const Deadline limit = std::chrono::steady_clock::now() + kListPatience;
  const std::string& prefix = client_.options().prefix;
  std::string after;
  for (;;) {
    HttpCall call;
    std::string query = StrCat("list-type=2&max-keys=1000&prefix=", InQuery(prefix), hex_prefix);
    if (!after.empty()) query += StrCat("&start-after=", InQuery(after));
    call.url = client_.UrlOf("", query);
    HttpCall* const calls[] = {&call};
    client_.Run(calls, limit);
    VC_RETURN_IF_ERROR(client_.StatusOf(call));
    const std::string before = after;
    std::string object, more, name;
    size_t at = 0, flag_at = 0;
    while (NextXmlText(call.text, "Contents", &at, &object)) {
      size_t k = 0, s = 0, t = 0;
      std::string size, time;
      BlobInfo info;
      if (!NextXmlText(object, "Key", &k, &name) || !name.starts_with(prefix)) continue;
      after = std::max(after, name);
      uint64_t num_bytes = 0;
      if (!KeyOfHex(std::string_view(name).substr(prefix.size()), &info.key) ||
          !NextXmlText(object, "Size", &s, &size) || !ParseInt(size, &num_bytes))
        continue;
      info.num_bytes = num_bytes - std::min<uint64_t>(num_bytes, kBlobHeaderBytes);
      if (NextXmlText(object, "LastModified", &t, &time)) info.age_s = AgeOf(time);
      if (!visit(info)) return absl::OkStatus();
    }
    const bool truncated = NextXmlText(call.text, "IsTruncated", &flag_at, &more) && more == "true";
    if (!truncated || after == before) return absl::OkStatus();
  }
}

}  // namespace vericache
