#include "remote/s3_read.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

// "bytes 0-99/1234". False: anything else.
bool ParseContentRange(std::string_view text, uint64_t* begin, uint64_t* end, uint64_t* total) {
  if (!text.starts_with("bytes ")) return false;
  const size_t dash = text.find('-'), slash = text.find('/');
  if (dash == text.npos || slash == text.npos || slash < dash) return false;
  uint64_t last = 0;
  if (!ParseInt(text.substr(6, dash - 6), begin) ||
      !ParseInt(text.substr(dash + 1, slash - dash - 1), &last) ||
      !ParseInt(text.substr(slash + 1), total) || last < *begin || last >= *total)
    return false;
  *end = last + 1;
  return true;
}

}  // namespace

void S3Reading::AddRange(uint64_t begin, uint64_t end) {
  ranges_.push_back(std::make_unique<Range>());
  Range* range = ranges_.back().get();
  range->begin = begin;
  range->end = end;
  range->call.url = url_;
  range->call.on_head = [this, range](const HttpCall& call) { return OnHead(range, call); };
  range->call.on_body = [this, range](const uint8_t* data, size_t size) {
    return OnBody(range, data, size);
  };
  Ask(range);
}

void S3Reading::Ask(Range* range) {
  range->call.headers = {StrCat("Range: bytes=", range->begin + range->done, "-", range->end - 1)};
  if (!etag_.empty()) range->call.headers.push_back("If-Match: " + etag_);
}

std::vector<HttpCall*> S3Reading::NextCalls() {
  const uint64_t step = client_->options().range_bytes;
  const size_t before = ranges_.size();
  if (before == 0) {
    AddRange(0, step);
  } else if (before == 1 && !senseless_ && !replaced_ && ranges_[0]->call.ok()) {
    for (uint64_t begin = ranges_[0]->end; begin < total_; begin += step)
      AddRange(begin, std::min(total_, begin + step));
  }
  std::vector<HttpCall*> calls;
  for (size_t i = before; i < ranges_.size(); ++i) calls.push_back(&ranges_[i]->call);
  return calls;
}

bool S3Reading::OnHead(Range* range, const HttpCall& call) {
  uint64_t begin = 0, end = 0, total = 0;
  if (call.status == 200) {
    // The whole object: small, or a server that knows no ranges.
    if (!ParseInt(call.Answer("content-length"), &total)) total = 0;
    end = total;
    range->done = 0;
    if (range->begin != 0) total = 0;  // only the first range can turn into all of them
  } else if (call.status != 206 ||
             !ParseContentRange(call.Answer("content-range"), &begin, &end, &total) ||
             begin != range->begin + range->done || end > range->end) {
    total = 0;
  }
  const std::string etag = call.Answer("etag");
  if (!etag_.empty() && !etag.empty() && etag != etag_) replaced_ = true;
  senseless_ |= total < kBlobHeaderBytes || total > kMaxBlobBytes + kBlobHeaderBytes;
  if (total_ != 0 && total != total_) replaced_ = true;
  if (senseless_ || replaced_) return false;
  if (total_ == 0) {
    total_ = total;
    senseless_ = !MakeRoomFor(total - kBlobHeaderBytes, &payload_);
    if (senseless_) return false;
  }
  if (etag_.empty() && etag.find_first_of("\r\n") == etag.npos) etag_ = etag;
  // A 206 that is shorter than asked for leaves a blob that is not whole.
  range->end = range->begin == 0 && call.status == 200 ? total : std::min(range->end, total);
  return true;
}

bool S3Reading::OnBody(Range* range, const uint8_t* data, size_t size) {
  uint64_t at = range->begin + range->done;
  if (size > range->end - at) {
    senseless_ = true;
    return false;
  }
  range->done += size;
  if (at < kBlobHeaderBytes) {
    const size_t step = static_cast<size_t>(std::min<uint64_t>(size, kBlobHeaderBytes - at));
    std::memcpy(header_.data() + at, data, step);
    data += step;
    size -= step;
    at += step;
  }
  if (size > 0) std::memcpy(payload_.data() + (at - kBlobHeaderBytes), data, size);
  return true;
}

S3Reading::Range* S3Reading::RangeOf(const HttpCall* call) {
  for (const auto& range : ranges_)
    if (&range->call == call) return range.get();
  return nullptr;
}

bool S3Reading::Resume(HttpCall* call) {
  Range* range = RangeOf(call);
  if (range == nullptr || senseless_ || replaced_) return false;
  if (total_ != 0 && range->begin + range->done >= range->end) return false;
  Ask(range);
  return true;
}

bool S3Reading::Restart() {
  for (const auto& range : ranges_)
    if (range->call.status == 412) replaced_ = true;
  if (!replaced_ || restarted_) return false;
  restarted_ = true;
  ranges_.clear();
  replaced_ = senseless_ = false;
  total_ = 0;
  etag_.clear();
  return true;
}

bool S3Reading::Whole() const {
  uint64_t done = 0;
  for (const auto& range : ranges_) done += range->done;
  return total_ != 0 && done == total_;
}

absl::StatusOr<BlobBytes> S3Reading::Take(bool* damaged) {
  *damaged = false;
  if (replaced_) return absl::NotFoundError("a blob that is being replaced");
  if (Whole() && !senseless_) {
    const bool sound = CheckBlobHeader(header_, key_, total_).ok() &&
                       CheckBlobPayload(header_, {payload_.data(), payload_.size()}).ok();
    *damaged = !sound;
    if (!sound) return absl::NotFoundError("a damaged blob");
    return std::move(payload_);
  }
  for (const auto& range : ranges_) {
    // 416: an object of no bytes.
    senseless_ |= range->call.status == 416;
    if (senseless_) break;
    VC_RETURN_IF_ERROR(client_->StatusOf(range->call));
  }
  *damaged = true;  // the server says that this was all
  return absl::NotFoundError("a blob of another length");
}

}  // namespace vericache
