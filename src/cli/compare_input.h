// What `compare` runs: prompts from a file, or one document with a list of questions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "vericache/engine.h"

namespace vericache::cli {

struct CompareQuestion {
  std::string id;
  std::string kind;  // "json" answers are parsed as JSON; other kinds only name a group
  // With a document the user's turn; else exactly one of text and messages_json is set.
  std::string text;
  std::string messages_json;
  std::string tools_json;  // array of tool schemas, or ""
  int64_t max_tokens = 0;  // 0: not given
  SamplingOptions sampling;
};

struct CompareInput {
  std::string document_path;  // empty: every prompt stands alone
  std::string document;
  std::vector<CompareQuestion> questions;
};

// More than anyone waits for: a wrong file.
inline constexpr size_t kMaxCompareQuestions = 10000;

// A questions file: one request a line (request_line.h) with "question"; a prompts file: the same
// with "prompt" (raw text), "question" (one user turn) or "messages" (a chat), as for `batch`; what
// they say of drafts and priority is left out. Blank lines are skipped.
// ERRORS: kInvalidArgument naming file and line; `name` is for messages only.
enum class QuestionForm { kQuestionsOnly, kPrompts };
absl::StatusOr<std::vector<CompareQuestion>> ParseQuestions(std::string_view text,
                                                            QuestionForm form,
                                                            const std::string& name);

// The request that a prompt without a document makes.
Request RequestOf(const CompareQuestion& question);

// Reads both files of --document and --questions. ERRORS: kNotFound, kInvalidArgument.
absl::StatusOr<CompareInput> ReadDocumentInput(const std::string& document_path,
                                               const std::string& questions_path);
// Reads the file of -f.
absl::StatusOr<CompareInput> ReadPromptsInput(const std::string& path);

// How a document and a question become a prompt: the document is the start of all of them, so that
// its K/V are computed once.
class DocumentPrompt {
 public:
  // Chooses the first form `engine`'s template takes: document in the system message, in the user
  // message, or, without a template, raw text.
  static absl::StatusOr<DocumentPrompt> For(Engine* engine, const std::string& document);

  // The prompt of one question. For("...").Ask("?") and Ask(question) share the document's tokens.
  Request Ask(const std::string& question) const;

 private:
  enum class Form { kSystem, kUser, kRaw };
  DocumentPrompt(Form form, const std::string& document) : form_(form), document_(document) {}
  Form form_;
  std::string document_;
};

}  // namespace vericache::cli
