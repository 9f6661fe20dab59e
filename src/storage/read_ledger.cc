#include "storage/read_ledger.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/steady_now.h"

namespace vericache {
namespace {

bool IsValid(const ReadRequest& request) {
  constexpr uint64_t kOffsetEnd = uint64_t{1} << 62;
  return request.file != nullptr && request.dest != nullptr && request.bytes > 0 &&
         request.offset % kSpillAlign == 0 && request.bytes % kSpillAlign == 0 &&
         reinterpret_cast<uintptr_t>(request.dest) % kSpillAlign == 0 &&
         request.offset <= kOffsetEnd && request.bytes <= kOffsetEnd - request.offset;
}

absl::Status ReadError(const ReadLedger::Chunk& chunk, int code) {
  const std::string message =
      absl::StrCat("cannot read spilled KV in ", chunk.file->folder(), ": ", std::strerror(code),
                   " (", chunk.bytes, " bytes at offset ", chunk.offset, "); check the disk");
  return code == EIO ? absl::DataLossError(message) : absl::UnavailableError(message);
}

absl::Status TooShort(const ReadLedger::Chunk& chunk) {
  return absl::DataLossError(absl::StrCat("spilled KV in ", chunk.file->folder(), " ends ",
                                          chunk.bytes, " bytes too early, after offset ",
                                          chunk.offset, "; check the disk"));
}

}  // namespace

ReadLedger::ReadLedger(const ReadQueueOptions& options, std::function<void()> wake)
    : read_bytes_(options.read_bytes),
      faults_(options.faults),
      wake_(std::move(wake)),
      bucket_(options.bytes_per_second) {}

absl::Status ReadLedger::Submit(absl::Span<const ReadRequest> requests, ReadTicket* ticket) {
  for (const ReadRequest& request : requests) {
    if (IsValid(request)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a read of spilled KV must consist of aligned pages of ", kSpillAlign,
                     " bytes; got ", request.bytes, " bytes at offset ", request.offset));
  }
  {
    const Lock lock(mutex_);
    if (stop_ || ticket->cancelled_) return absl::CancelledError("reading was cancelled");
    if (requests.empty()) return absl::OkStatus();
    const int64_t now_ns = SteadyNowNs();
    if (ticket->submit_ns_ == 0) ticket->submit_ns_ = now_ns;
    if (waiting_.empty() && num_in_flight_ == 0) busy_since_ns_ = now_ns;
    if (waiting_.empty()) bucket_.StartWork(now_ns);
    for (const ReadRequest& request : requests) {
      for (size_t done = 0; done < request.bytes; done += read_bytes_) {
        Chunk chunk;
        chunk.file = request.file;
        chunk.offset = request.offset + done;
        chunk.dest = request.dest + done;
        chunk.bytes = std::min(read_bytes_, request.bytes - done);
        chunk.ticket = ticket;
        waiting_.push_back(chunk);
        ++ticket->num_waiting_;
      }
    }
    work_.notify_all();
  }
  wake_();
  return absl::OkStatus();
}

absl::Status ReadLedger::Wait(ReadTicket* ticket) {
  Lock lock(mutex_);
  if (IsDone(*ticket)) return ticket->status_;
  if (ticket->num_waiting_ > 0) {
    std::stable_partition(waiting_.begin(), waiting_.end(),
                          [ticket](const Chunk& chunk) { return chunk.ticket == ticket; });
    work_.notify_all();  // the new front may start earlier than the old one
    lock.unlock();
    wake_();
    lock.lock();
  }
  const int64_t start_ns = SteadyNowNs();
  ticket->done_.wait(lock, [ticket] { return IsDone(*ticket); });
  ++stats_.num_waits;
  stats_.wait_ns += SteadyNowNs() - start_ns;
  return ticket->status_;
}

bool ReadLedger::Done(const ReadTicket& ticket) const {
  const Lock lock(mutex_);
  return IsDone(ticket);
}

void ReadLedger::TakeBack(ReadTicket* ticket) {
  if (ticket->num_waiting_ == 0) return;
  const auto end = std::remove_if(waiting_.begin(), waiting_.end(),
                                  [ticket](const Chunk& chunk) { return chunk.ticket == ticket; });
  waiting_.erase(end, waiting_.end());
  while (ticket->num_waiting_ > 0) {
    --ticket->num_waiting_;
    Finish(ticket, absl::CancelledError("reading was cancelled"));
  }
}

void ReadLedger::CancelAll(absl::Span<ReadTicket> tickets) {
  Lock lock(mutex_);
  for (ReadTicket& ticket : tickets) {
    ticket.cancelled_ = true;  // a short read in flight is not continued
    TakeBack(&ticket);
  }
  for (ReadTicket& ticket : tickets) {
    ticket.done_.wait(lock, [&ticket] { return IsDone(ticket); });
  }
}

void ReadLedger::Stop() {
  {
    const Lock lock(mutex_);
    stop_ = true;
    while (!waiting_.empty()) TakeBack(waiting_.front().ticket);
    work_.notify_all();
  }
  wake_();
}

int64_t ReadLedger::Take(Chunk* chunk) {
  const Lock lock(mutex_);
  return TakeLocked(SteadyNowNs(), chunk);
}

bool ReadLedger::TakeBlocking(Chunk* chunk) {
  Lock lock(mutex_);
  for (;;) {
    const int64_t wait_ns = TakeLocked(SteadyNowNs(), chunk);
    if (wait_ns == 0) return true;
    if (wait_ns == kStop) return false;
    if (wait_ns == kNothing) {
      work_.wait(lock);
    } else {
      work_.wait_for(lock, std::chrono::nanoseconds(wait_ns));
    }
  }
}

int64_t ReadLedger::TakeLocked(int64_t now_ns, Chunk* chunk) {
  while (!waiting_.empty()) {
    Chunk& front = waiting_.front();
    if (!front.planned) {
      front.planned = true;
      front.issue_bytes = front.bytes;
      if (faults_ != nullptr) {
        const FaultPlan::Fault fault = faults_->NextRead(front.bytes);
        front.error = fault.error;
        front.issue_bytes = std::min(front.bytes, fault.bytes_max);
        front.start_ns = now_ns + fault.delay_us * 1000;
      }
    }
    const int64_t wait_ns = std::max(front.start_ns - now_ns, bucket_.NsUntilFree(now_ns));
    if (wait_ns > 0) return wait_ns;
    *chunk = front;
    waiting_.pop_front();
    --chunk->ticket->num_waiting_;
    ++chunk->ticket->num_in_flight_;
    ++num_in_flight_;
    ++stats_.num_reads;
    if (chunk->error == 0) {
      bucket_.Take(now_ns, chunk->issue_bytes);
      return 0;
    }
    CompleteLocked(*chunk, -chunk->error);
  }
  return stop_ ? kStop : kNothing;
}

void ReadLedger::Complete(const Chunk& chunk, int64_t result) {
  // The file outlives this: its ticket is not done yet.
  if (result > 0) chunk.file->DropCache(chunk.offset, static_cast<size_t>(result));
  const Lock lock(mutex_);
  CompleteLocked(chunk, result);
}

void ReadLedger::CompleteLocked(const Chunk& chunk, int64_t result) {
  ReadTicket* ticket = chunk.ticket;
  --ticket->num_in_flight_;
  --num_in_flight_;
  size_t done = result > 0 ? static_cast<size_t>(result) : 0;
  done = std::min(done, chunk.bytes);
  // What is left of a short read starts on a page again, as O_DIRECT demands.
  if (done < chunk.bytes) done = done / kSpillAlign * kSpillAlign;
  stats_.bytes += static_cast<int64_t>(done);
  const bool again = result == -EINTR || result == -EAGAIN || done > 0;
  if (done < chunk.bytes && again && !stop_ && !ticket->cancelled_) {
    Chunk rest;
    rest.file = chunk.file;
    rest.offset = chunk.offset + done;
    rest.dest = chunk.dest + done;
    rest.bytes = chunk.bytes - done;
    rest.ticket = ticket;
    waiting_.push_front(rest);
    ++ticket->num_waiting_;
    work_.notify_one();
    return;
  }
  if (done == chunk.bytes) {
    Finish(ticket, absl::OkStatus());
  } else if (again) {
    Finish(ticket, absl::CancelledError("reading was cancelled"));
  } else {
    Finish(ticket, result < 0 ? ReadError(chunk, static_cast<int>(-result)) : TooShort(chunk));
  }
}

void ReadLedger::Finish(ReadTicket* ticket, const absl::Status& status) {
  if (ticket->status_.ok()) ticket->status_ = status;
  const int64_t now_ns = SteadyNowNs();
  ticket->complete_ns_ = now_ns;
  // Under the lock: the moment it is released the reader may destroy the ticket.
  if (IsDone(*ticket)) ticket->done_.notify_all();
  if (waiting_.empty() && num_in_flight_ == 0 && busy_since_ns_ != 0) {
    stats_.busy_ns += now_ns - busy_since_ns_;
    busy_since_ns_ = 0;
  }
}

TicketTimes ReadLedger::Times(const ReadTicket& ticket) const {
  const Lock lock(mutex_);
  return {ticket.submit_ns_, IsDone(ticket) ? ticket.complete_ns_ : 0};
}

ReadStats ReadLedger::stats() const {
  const Lock lock(mutex_);
  ReadStats stats = stats_;
  if (busy_since_ns_ != 0) stats.busy_ns += SteadyNowNs() - busy_since_ns_;
  return stats;
}

}  // namespace vericache
