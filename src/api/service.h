// CompletionService over an engine: one thread runs it, any thread hands requests in.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "api/serve_loop.h"
#include "vericache/engine.h"
#include "vericache/serving.h"

namespace vericache {

// THREADS: safe. The lock is held for moments only: never in a pass, a rendering, a tokenizer or a
// sink's call.
class Service : public CompletionService {
 public:
  Service(std::unique_ptr<Engine> engine, const ServiceOptions& options);
  ~Service() override;  // Stop(0)

  const ModelInfo& info() const override { return engine_->info(); }
  absl::StatusOr<RenderedPrompt> RenderPrompt(const Request& request) override;
  std::string Detokenize(absl::Span<const int32_t> token_ids) const override;
  std::string TokenBytes(int32_t id) const override;
  absl::StatusOr<ServeId> Submit(ServeRequest request, std::shared_ptr<ServeSink> sink) override;
  void Cancel(ServeId id) override;
  ServiceStats stats() const override;
  absl::StatusOr<Receipt> MakeReceipt(const Completion& completion,
                                      const SamplingOptions& sampling) override;
  void Stop(double grace_s) override;

 private:
  void Run();
  bool TakeInbox();
  absl::Status CheckRoom(int num_choices) const;
  void Publish(const ServiceStats& stats);
  bool WantsCancel(ServeId id) const;

  const std::unique_ptr<Engine> engine_;
  const ServiceOptions options_;
  ServeLoop loop_;  // the thread's, but for MakeChoices()
  std::mutex digest_mutex_;

  mutable std::mutex mutex_;  // of all below
  std::condition_variable wake_, ended_;
  std::vector<ServeChoices> inbox_;
  std::vector<ServeId> cancels_;
  ServeId next_id_ = 1;
  int64_t num_submitted_ = 0;  // choices
  int64_t num_open_ = 0;       // of them, those that have not ended
  ServiceStats stats_;         // as last published
  double progress_s_ = 0;      // when the last pass ended, or work began
  bool stopping_ = false;
  double deadline_s_ = 0;  // of what still runs then
  bool has_ended_ = false;
  std::thread thread_;
};

}  // namespace vericache
