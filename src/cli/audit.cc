// `vericache audit`: computes a receipt's answer again.
#include <fmt/format.h>

#include <memory>
#include <string>

#include "base/status_macros.h"
#include "cli/audit_report.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/files.h"
#include "cli/interrupt.h"
#include "cli/json_out.h"
#include "cli/models.h"

namespace vericache::cli {
namespace {

struct AuditOptions {
  ModelFlags model;
  std::string receipt;
  bool slow = false;
};

// The receipt's path, if such a file is here; else its name, in the models folder. Engine::Audit()
// compares the digest, so a wrong file cannot pass.
absl::StatusOr<std::string> ModelOfReceipt(const Receipt& receipt) {
  if (!receipt.model_path.empty() && FileExists(receipt.model_path)) return receipt.model_path;
  const absl::StatusOr<std::string> found = FindModel(receipt.model_name);
  if (found.ok()) return *found;
  return absl::NotFoundError(
      fmt::format("the receipt's model is neither at {} nor in the models folder as {}: name it "
                  "by -m",
                  receipt.model_path, receipt.model_name));
}

absl::Status Audit(const AuditOptions& o) {
  if (o.receipt.empty()) return UsageError("no receipt given: vericache audit RECEIPT");
  VC_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(o.receipt, kJsonBytesMax));
  VC_ASSIGN_OR_RETURN(const Receipt receipt, ParseReceipt(text));
  ModelFlags flags = o.model;
  if (flags.model.empty()) {
    VC_ASSIGN_OR_RETURN(flags.model, ModelOfReceipt(receipt));
  }
  // Others that are given are told of, by Engine::Audit().
  if (flags.rope == RopeOptions()) flags.rope = receipt.rope;
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, LoadEngine(flags));
  InstallInterruptHandler();
  return AuditAndReport(engine.get(), receipt,
                        o.slow ? AuditMode::kTokenByToken : AuditMode::kOnePass, WishOf(flags),
                        stdout);
}

}  // namespace

absl::Status AuditAndReport(Engine* engine, const Receipt& receipt, AuditMode mode,
                            ProgressWish progress, std::FILE* out) {
  ProgressBar bar("audit", ProgressUnit::kTokens, progress);
  Callbacks callbacks;
  callbacks.on_prefill = [&bar](int64_t done, int64_t total) {
    bar.Update(done, total);
    return !Interrupted();
  };
  callbacks.on_text = [](std::string_view) { return !Interrupted(); };
  VC_ASSIGN_OR_RETURN(const AuditReport report, engine->Audit(receipt, mode, callbacks));
  bar.Finish();
  const std::string how = mode == AuditMode::kOnePass ? "in one pass" : "token by token";
  if (Interrupted()) return absl::CancelledError("the audit was stopped");
  if (report.ok) {
    fmt::print(out,
               "audit    OK: {} tokens after a prompt of {} and the logits hash are the same, "
               "computed again {} in {}\n",
               report.num_tokens, receipt.prompt_token_ids.size(), how,
               FormatSeconds(report.seconds));
    return absl::OkStatus();
  }
  if (report.first_mismatch >= 0)
    return absl::DataLossError(fmt::format(
        "audit FAILED: token {} of {} is \"{}\" in the receipt and \"{}\" computed again {}",
        report.first_mismatch + 1, report.num_tokens, report.expected_token, report.actual_token,
        how));
  return absl::DataLossError(fmt::format(
      "audit FAILED: the {} tokens are the same, the logits hash is {} in the receipt and {} "
      "computed again {}",
      report.num_tokens, report.expected_hash, report.actual_hash, how));
}

CommandBody DeclareAudit(Flags* flags) {
  auto o = std::make_shared<AuditOptions>();
  flags->Positional("RECEIPT", "File written by `vericache run --receipt` (- for standard input)",
                    &o->receipt);
  flags->Switch("--slow", "Decode token by token instead of one pass over the whole answer",
                &o->slow);
  o->model.Declare(flags);
  flags->Examples(
      "  vericache audit receipt.json\n"
      "  vericache audit receipt.json -m another/place/model.gguf --slow\n"
      "\n"
      "A receipt by itself proves nothing: anyone can write one. The proof is this replay, which\n"
      "computes the answer again from the model and compares tokens and logits bit for bit.\n"
      "Exit status 1 if anything differs.");
  return [o] { return Audit(*o); };
}

}  // namespace vericache::cli
