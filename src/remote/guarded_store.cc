#include "remote/guarded_store.h"

#include <utility>

#include "base/text.h"

namespace vericache {
namespace {

bool IsFailure(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
      return false;
    default:
      return true;
  }
}

}  // namespace

absl::Status GuardedStore::Refused() {
  ++skipped_;
  return absl::UnavailableError(StrCat("the prefix store ", Name(), " has just failed; not tried"));
}

void GuardedStore::Judge(const absl::Status& status) {
  last_failed_ = IsFailure(status);
  if (!last_failed_) {
    if (breaker_.Succeeded() && on_notice_)
      on_notice_(StrCat("the prefix store ", Name(), " answers again"));
    return;
  }
  ++errors_;
  if (absl::IsDeadlineExceeded(status)) ++late_;
  const std::string why(status.message());
  // It will not heal by itself.
  if (absl::IsPermissionDenied(status) && !refusal_told_.exchange(true) && on_notice_)
    on_notice_(StrCat("the prefix store ", Name(), " cannot be used: ", why));
  if (breaker_.Failed() && on_notice_)
    on_notice_(StrCat("the prefix store ", Name(), " is left alone for a while: ", why));
}

template <typename Ask>
auto GuardedStore::Timed(const Ask& ask) {
  const auto start = LinkMeter::Clock::now();
  auto answer = ask();
  const std::chrono::duration<double> time = LinkMeter::Clock::now() - start;
  if (answer.ok()) link_.Answered(time.count());
  Judge(answer.status());
  return answer;
}

absl::Status GuardedStore::Put(const BlobKey& key, absl::Span<const std::string_view> parts) {
  if (!breaker_.Allow()) return Refused();
  const absl::Status status = store_->Put(key, parts);
  Judge(status);
  return status;
}

absl::StatusOr<BlobBytes> GuardedStore::Get(const BlobKey& key, Deadline deadline) {
  if (!breaker_.Allow()) return Refused();
  link_.StartWaiting();
  absl::StatusOr<BlobBytes> blob = store_->Get(key, deadline);
  link_.StopWaiting(blob.ok() ? blob->size() : 0);
  Judge(blob.status());
  return blob;
}

void GuardedStore::GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) {
  if (!breaker_.Allow()) {
    for (size_t i = 0; i < keys.size(); ++i)
      if (!sink(i, Refused())) return;
    return;
  }
  // One verdict for all of them: they share their fate, and the breaker counts calls.
  absl::Status worst;
  link_.StartWaiting();
  store_->GetMany(keys, deadline, [&](size_t idx, absl::StatusOr<BlobBytes> blob) {
    if (IsFailure(blob.status())) worst = blob.status();
    link_.StopWaiting(blob.ok() ? blob->size() : 0);
    const bool more = sink(idx, std::move(blob));
    link_.StartWaiting();
    return more;
  });
  link_.StopWaiting(0);
  Judge(worst);
}

absl::StatusOr<int64_t> GuardedStore::CountPresent(absl::Span<const BlobKey> keys,
                                                   Deadline deadline) {
  if (!breaker_.Allow()) return Refused();
  return Timed([&] { return store_->CountPresent(keys, deadline); });
}

absl::StatusOr<size_t> GuardedStore::FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) {
  if (!breaker_.Allow()) return Refused();
  return Timed([&] { return store_->FindFirst(keys, deadline); });
}

absl::Status GuardedStore::Remove(const BlobKey& key) {
  if (!breaker_.Allow()) return Refused();
  const absl::Status status = store_->Remove(key);
  Judge(status);
  return status;
}

void GuardedStore::Touch(absl::Span<const BlobKey> keys) {
  // A hint is not worth another wait.
  if (!last_failed_ && breaker_.Allow()) store_->Touch(keys);
}

absl::Status GuardedStore::List(std::string_view hex_prefix,
                                const std::function<bool(const BlobInfo&)>& visit) {
  const absl::Status status = store_->List(hex_prefix, visit);
  Judge(status);
  return status;
}

BlobStoreStats GuardedStore::Stats() {
  BlobStoreStats stats = store_->Stats();
  stats.errors += errors_;
  stats.late += late_;
  stats.skipped += skipped_;
  return stats;
}

}  // namespace vericache
