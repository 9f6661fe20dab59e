// What all backends share: the reader's side of a ReadQueue is the ledger's.
#pragma once

#include <functional>
#include <utility>

#include "storage/read_ledger.h"
#include "storage/read_queue.h"

namespace vericache {

class LedgerReadQueue : public ReadQueue {
 public:
  absl::Status Submit(absl::Span<const ReadRequest> requests, ReadTicket* ticket) final {
    return ledger_.Submit(requests, ticket);
  }
  absl::Status Wait(ReadTicket* ticket) final { return ledger_.Wait(ticket); }
  bool Done(const ReadTicket& ticket) const final { return ledger_.Done(ticket); }
  void CancelAll(absl::Span<ReadTicket> tickets) final { ledger_.CancelAll(tickets); }
  TicketTimes Times(const ReadTicket& ticket) const final { return ledger_.Times(ticket); }
  ReadStats stats() const final { return ledger_.stats(); }

 protected:
  LedgerReadQueue(const ReadQueueOptions& options, std::function<void()> wake)
      : ledger_(options, std::move(wake)) {}

  ReadLedger ledger_;
};

}  // namespace vericache
