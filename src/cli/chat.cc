// `vericache chat`: a conversation, line by line, on a terminal or through a pipe.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "base/status_macros.h"
#include "cli/chat_history.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/files.h"
#include "cli/generation.h"
#include "cli/interrupt.h"
#include "cli/models.h"
#include "cli/terminal.h"

namespace vericache::cli {
namespace {

constexpr char kCommandsHelp[] =
    "/exit   leave (also Ctrl-D); with --session the conversation is kept\n"
    "/reset  forget the conversation\n"
    "/stats  figures of the last answer\n"
    "/save   write the session now\n"
    "/help   this list\n"
    "Ctrl-C stops an answer. A line that begins with // is sent with one slash less.\n";

struct ChatOptions {
  ModelFlags model;
  PrefixFlags prefix;
  DecodingFlags decoding;
  std::string system, session;
  int64_t max_tokens = Request().max_tokens;
  bool show_rounds = false;
};

enum class LineKind { kText, kEnd, kInterrupted };

// A line of any length without its line break.
LineKind ReadLine(std::string* line) {
  char* buffer = nullptr;
  size_t capacity = 0;
  errno = 0;
  const ssize_t length = getline(&buffer, &capacity, stdin);
  const bool interrupted = length < 0 && errno == EINTR;
  if (length > 0) line->assign(buffer, static_cast<size_t>(length));
  std::free(buffer);
  if (interrupted) {
    clearerr(stdin);
    return LineKind::kInterrupted;
  }
  if (length <= 0) return LineKind::kEnd;
  while (line->ends_with('\n') || line->ends_with('\r')) line->pop_back();
  return LineKind::kText;
}

class Chat {
 public:
  Chat(const ChatOptions& options, Engine* engine)
      : o_(options),
        engine_(engine),
        history_(options.system),
        session_(engine->NewSession()),
        sampling_(options.decoding.SettleSampling()),
        on_terminal_(isatty(STDIN_FILENO) == 1) {}

  absl::Status Open();
  absl::Status Loop();

 private:
  // False: the conversation is over.
  absl::StatusOr<bool> Handle(const std::string& line);
  absl::StatusOr<bool> RunCommand(const std::string& command);
  absl::Status Answer(const std::string& text);
  absl::Status Save();

  const ChatOptions& o_;
  Engine* const engine_;
  ChatHistory history_;
  Session session_;
  const SamplingOptions sampling_;
  const bool on_terminal_;
  std::optional<Completion> last_;
};

absl::Status Chat::Open() {
  if (!engine_->info().has_chat_template) {
    Notice("this model has no chat template: it gets the conversation as raw text");
  }
  if (o_.session.empty()) return absl::OkStatus();
  const std::string words = ChatHistory::PathFor(o_.session);
  if (FileExists(words)) {
    VC_ASSIGN_OR_RETURN(ChatHistory history, ChatHistory::Load(words));
    if (!o_.system.empty() && history.system() != o_.system)
      return absl::FailedPreconditionError(fmt::format(
          "--system is not the system message of {}: leave it out, or use another session",
          o_.session));
    history_ = std::move(history);
  }
  if (FileExists(o_.session)) {
    VC_ASSIGN_OR_RETURN(session_, engine_->LoadSession(o_.session));
  }
  fmt::print(stderr, "session  {}: {} messages, KV of {} tokens\n", o_.session,
             history_.num_messages(), session_.token_ids().size());
  return absl::OkStatus();
}

absl::Status Chat::Save() {
  if (o_.session.empty()) return absl::OkStatus();
  VC_RETURN_IF_ERROR(history_.Save(ChatHistory::PathFor(o_.session)));
  return engine_->SaveSession(session_, o_.session);
}

absl::Status Chat::Answer(const std::string& text) {
  VC_RETURN_IF_ERROR(history_.AddUser(text));
  Request request;
  if (engine_->info().has_chat_template) {
    request.messages_json = history_.MessagesJson();
  } else {
    request.prompt = history_.Transcript();
  }
  request.max_tokens = o_.max_tokens;
  request.sampling = sampling_;
  request.draft = o_.decoding.draft;
  request.draft_len = o_.decoding.draft_len;
  request.propose = o_.decoding.propose;
  WatchOptions watch;
  watch.rounds = o_.show_rounds ? RoundsOutput::kShown : RoundsOutput::kNone;
  watch.progress = WishOf(o_.model);
  Watcher watcher(*engine_, watch);
  absl::StatusOr<Completion> completion =
      engine_->Generate(request, &session_, watcher.MakeCallbacks());
  watcher.Finish();
  ClearInterrupt();  // it was for this answer
  if (!completion.ok()) {
    history_.RemoveLast();
    return completion.status();
  }
  if (watcher.stdout_failed())
    return absl::UnavailableError("cannot write the answer to standard output");
  // Through a pipe answers would run into each other.
  if (!on_terminal_ && !IsTerminal(STDOUT_FILENO) && !WriteStdout("\n"))
    return absl::UnavailableError("cannot write the answer to standard output");
  history_.AddAssistant(completion->text);
  last_ = *std::move(completion);
  // The words are small: a crash costs no more than the KV, which can be computed again.
  if (o_.session.empty()) return absl::OkStatus();
  return history_.Save(ChatHistory::PathFor(o_.session));
}

absl::StatusOr<bool> Chat::RunCommand(const std::string& command) {
  if (command == "/exit") return false;
  if (command == "/reset") {
    history_.Reset();
    session_ = engine_->NewSession();
    fmt::print(stderr, "forgotten\n");
  } else if (command == "/stats") {
    fmt::print(stderr, "{}",
               last_.has_value() ? Summary(*last_) + PrefixSummary(engine_) : "no answer yet\n");
  } else if (command == "/save") {
    if (o_.session.empty()) {
      fmt::print(stderr, "there is nowhere to save to: start with --session FILE\n");
    } else {
      VC_RETURN_IF_ERROR(Save());
      fmt::print(stderr, "saved to {}\n", o_.session);
    }
  } else {
    fmt::print(stderr, "{}", kCommandsHelp);
  }
  return true;
}

absl::StatusOr<bool> Chat::Handle(const std::string& line) {
  const std::string stripped(absl::StripAsciiWhitespace(line));
  if (stripped.empty()) return true;
  if (stripped.starts_with('/') && !stripped.starts_with("//")) return RunCommand(stripped);
  const absl::Status status = Answer(stripped.starts_with("//") ? stripped.substr(1) : line);
  if (status.ok()) return true;
  // A person can say it differently; a script must notice.
  if (!on_terminal_) return status;
  if (absl::IsCancelled(status)) {
    fmt::print(stderr, "stopped\n");
    return true;
  }
  (void)ReportError(status);
  if (absl::IsOutOfRange(status)) Notice("/reset begins a new conversation");
  return true;
}

absl::Status Chat::Loop() {
  if (on_terminal_) fmt::print(stderr, "/help lists the commands\n");
  for (;;) {
    if (on_terminal_) fmt::print(stderr, "> ");
    std::string line;
    const LineKind kind = Interrupted() ? LineKind::kInterrupted : ReadLine(&line);
    if (kind == LineKind::kInterrupted) {
      if (!on_terminal_) return absl::CancelledError("stopped");
      ClearInterrupt();
      fmt::print(stderr, "\nCtrl-D or /exit leaves\n");
      continue;
    }
    if (kind == LineKind::kEnd) {
      if (on_terminal_) fmt::print(stderr, "\n");
      break;
    }
    VC_ASSIGN_OR_RETURN(const bool goes_on, Handle(line));
    if (!goes_on) break;
  }
  return Save();
}

absl::Status RunChat(const ChatOptions& o) {
  if (!o.session.empty()) VC_RETURN_IF_ERROR(CheckWritable("--session", o.session));
  VC_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      LoadEngine(o.model, o.prefix, o.decoding.draft_model));
  InstallInterruptHandler();
  Chat chat(o, engine.get());
  VC_RETURN_IF_ERROR(chat.Open());
  return chat.Loop();
}

}  // namespace

CommandBody DeclareChat(Flags* flags) {
  auto o = std::make_shared<ChatOptions>();
  flags->Text("--system", "TEXT", "System message", &o->system);
  flags->Integer("-n,--max-tokens", "N", "Tokens of an answer at most (default 256)",
                 &o->max_tokens, 1, int64_t{1} << 31);
  flags->Name("--session", "FILE",
              "Keep KV here and the words in FILE.chat.json; a later start goes on without prefill",
              &o->session);
  flags->Switch("--show-rounds", "Show drafted tokens as they are checked", &o->show_rounds);
  o->model.Declare(flags);
  o->prefix.Declare(flags);
  o->prefix.DeclarePlan(flags);
  o->decoding.DeclareDraft(flags);
  o->decoding.DeclareSampling(flags);
  flags->Examples(
      std::string("  vericache chat -m smollm2-135m\n"
                  "  vericache chat -m model.gguf --session trip.kv --temp 0.7\n"
                  "  printf 'Hello\\nAnd in French?\\n' | vericache chat -m model.gguf\n"
                  "\n"
                  "Each line is a message. In the conversation:\n") +
      kCommandsHelp);
  return [o] { return RunChat(*o); };
}

}  // namespace vericache::cli
