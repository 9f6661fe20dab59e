#include "cli/compare_input.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "cli/files.h"
#include "cli/request_line.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::json;

// What stands before the document, so that a model knows what the text is for.
constexpr char kIntro[] = "Answer questions about this document.\n\n";

absl::Status LineError(const std::string& name, size_t line, const std::string& what) {
  return absl::InvalidArgumentError(fmt::format("{}:{}: {}", name, line, what));
}

absl::StatusOr<CompareQuestion> ParseQuestion(std::string_view text, QuestionForm form) {
  VC_ASSIGN_OR_RETURN(RequestLine line, ParseRequestLine(text, SamplingOptions()));
  CompareQuestion question;
  question.id = line.id;
  question.kind = line.kind;
  question.sampling = line.sampling;
  if (line.max_tokens == 0)
    return absl::InvalidArgumentError("\"max_tokens\" must be a whole number above 0");
  question.max_tokens = line.max_tokens.value_or(0);
  if (form == QuestionForm::kQuestionsOnly) {
    if (line.question.empty()) return absl::InvalidArgumentError("\"question\" is missing");
    question.text = line.question;
    return question;
  }
  Request request;
  VC_RETURN_IF_ERROR(SetPrompt(line, &request));
  question.text = request.prompt;
  question.messages_json = request.messages_json;
  question.tools_json = request.tools_json;
  return question;
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  VC_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path, kPromptBytesMax));
  if (text.empty()) return absl::InvalidArgumentError(path + " is empty");
  return text;
}

// The JSON library replaces what is not UTF-8 when told to; a text that comes back is clean.
bool IsUtf8(const std::string& text) {
  const std::string written = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(written).get_ref<const std::string&>() == text;
}

}  // namespace

absl::StatusOr<std::vector<CompareQuestion>> ParseQuestions(std::string_view text,
                                                            QuestionForm form,
                                                            const std::string& name) {
  std::vector<CompareQuestion> questions;
  VC_RETURN_IF_ERROR(ForEachLine(text, [&](size_t number, std::string_view line) {
    absl::StatusOr<CompareQuestion> question = ParseQuestion(line, form);
    if (!question.ok()) return LineError(name, number, std::string(question.status().message()));
    if (questions.size() == kMaxCompareQuestions)
      return LineError(name, number, fmt::format("more than {} prompts", kMaxCompareQuestions));
    if (question->id.empty()) question->id = std::to_string(questions.size() + 1);
    questions.push_back(*std::move(question));
    return absl::OkStatus();
  }));
  if (questions.empty()) return absl::InvalidArgumentError(name + " holds no prompt");
  return questions;
}

absl::StatusOr<CompareInput> ReadDocumentInput(const std::string& document_path,
                                               const std::string& questions_path) {
  CompareInput input;
  input.document_path = document_path;
  VC_ASSIGN_OR_RETURN(input.document, ReadText(document_path));
  if (!IsUtf8(input.document))
    return absl::InvalidArgumentError(document_path + " is not UTF-8 text");
  VC_ASSIGN_OR_RETURN(const std::string text, ReadText(questions_path));
  VC_ASSIGN_OR_RETURN(input.questions,
                      ParseQuestions(text, QuestionForm::kQuestionsOnly, questions_path));
  return input;
}

absl::StatusOr<CompareInput> ReadPromptsInput(const std::string& path) {
  CompareInput input;
  VC_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  VC_ASSIGN_OR_RETURN(input.questions, ParseQuestions(text, QuestionForm::kPrompts, path));
  return input;
}

absl::StatusOr<DocumentPrompt> DocumentPrompt::For(Engine* engine, const std::string& document) {
  if (!engine->info().has_chat_template) return DocumentPrompt(Form::kRaw, document);
  const DocumentPrompt in_system(Form::kSystem, document);
  // Some templates refuse the system role; only then the user's turn holds the document.
  if (engine->TokenizePrompt(in_system.Ask("?")).ok()) return in_system;
  const DocumentPrompt in_user(Form::kUser, document);
  VC_RETURN_IF_ERROR(engine->TokenizePrompt(in_user.Ask("?")).status());
  return in_user;
}

Request DocumentPrompt::Ask(const std::string& question) const {
  Request request;
  const std::string opening = kIntro + document_;
  switch (form_) {
    case Form::kSystem:
      request.messages_json = ChatOf(opening, question);
      break;
    case Form::kUser:
      request.messages_json = ChatOf("", opening + "\n\n" + question);
      break;
    case Form::kRaw:
      request.prompt = opening + "\n\nQuestion: " + question + "\nAnswer:";
      break;
  }
  return request;
}

Request RequestOf(const CompareQuestion& question) {
  Request request;
  if (!question.messages_json.empty()) {
    request.messages_json = question.messages_json;
    request.tools_json = question.tools_json;
  } else {
    request.prompt = question.text;
  }
  if (question.max_tokens > 0) request.max_tokens = question.max_tokens;
  request.sampling = question.sampling;
  return request;
}

}  // namespace vericache::cli
