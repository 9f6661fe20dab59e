#include "cli/compare_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "cli/files.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::json;

// What stands before the document, so that a model knows what the text is for.
constexpr char kIntro[] = "Answer questions about this document.\n\n";

absl::Status LineError(const std::string& name, size_t line, const std::string& what) {
  return absl::InvalidArgumentError(fmt::format("{}:{}: {}", name, line, what));
}

// The member as a non-empty string; nullopt if there is none. ERRORS: it has another type.
absl::StatusOr<std::string> StringMember(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end()) return std::string();
  if (!it->is_string() || it->get_ref<const std::string&>().empty())
    return absl::InvalidArgumentError(fmt::format("\"{}\" must be a text that is not empty", key));
  return it->get<std::string>();
}

std::string ChatOf(const std::string& system, const std::string& user) {
  Json messages = Json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", user}});
  return messages.dump();
}

// Ranges are checked where the request is made.
absl::Status ReadSampling(const Json& object, SamplingOptions* sampling) {
  for (const auto& [key, value] :
       {std::pair<const char*, float*>{"temperature", &sampling->temperature},
        {"top_p", &sampling->top_p},
        {"min_p", &sampling->min_p}}) {
    const auto it = object.find(key);
    if (it == object.end()) continue;
    if (!it->is_number())
      return absl::InvalidArgumentError(fmt::format("\"{}\" must be a number", key));
    *value = it->get<float>();
  }
  for (const char* key : {"top_k", "seed"}) {
    const auto it = object.find(key);
    if (it == object.end()) continue;
    if (!it->is_number_unsigned())
      return absl::InvalidArgumentError(
          fmt::format("\"{}\" must be a whole number, 0 or more", key));
    const uint64_t number = it->get<uint64_t>();
    if (key[0] == 's') {
      sampling->seed = number;
    } else {
      sampling->top_k = static_cast<int64_t>(std::min<uint64_t>(number, INT64_MAX));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CompareQuestion> ParseQuestion(const Json& object, QuestionForm form) {
  CompareQuestion question;
  VC_ASSIGN_OR_RETURN(question.id, StringMember(object, "id"));
  if (question.id.empty()) {
    VC_ASSIGN_OR_RETURN(question.id, StringMember(object, "custom_id"));
  }
  VC_ASSIGN_OR_RETURN(question.kind, StringMember(object, "kind"));
  if (const auto it = object.find("max_tokens"); it != object.end()) {
    if (!it->is_number_integer() || it->get<int64_t>() < 1)
      return absl::InvalidArgumentError("\"max_tokens\" must be a whole number above 0");
    question.max_tokens = it->get<int64_t>();
  }
  VC_RETURN_IF_ERROR(ReadSampling(object, &question.sampling));
  VC_ASSIGN_OR_RETURN(const std::string asked, StringMember(object, "question"));
  if (form == QuestionForm::kQuestionsOnly) {
    if (asked.empty()) return absl::InvalidArgumentError("\"question\" is missing");
    question.text = asked;
    return question;
  }
  VC_ASSIGN_OR_RETURN(question.text, StringMember(object, "prompt"));
  const auto messages = object.find("messages");
  const int given = !asked.empty() + !question.text.empty() + (messages != object.end());
  if (given != 1)
    return absl::InvalidArgumentError("give one of \"prompt\", \"question\" and \"messages\"");
  if (!asked.empty()) question.messages_json = ChatOf("", asked);
  if (messages != object.end()) {
    if (!messages->is_array() || messages->empty())
      return absl::InvalidArgumentError("\"messages\" must be a list of chat messages");
    question.messages_json = messages->dump();
  }
  if (const auto tools = object.find("tools"); tools != object.end()) {
    if (!tools->is_array() || question.messages_json.empty())
      return absl::InvalidArgumentError("\"tools\" must be a list, beside \"messages\"");
    if (!tools->empty()) question.tools_json = tools->dump();
  }
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
  size_t line_number = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) return LineError(name, line_number, "expected one JSON object a line");
    absl::StatusOr<CompareQuestion> question = ParseQuestion(object, form);
    if (!question.ok())
      return LineError(name, line_number, std::string(question.status().message()));
    if (questions.size() == kMaxCompareQuestions)
      return LineError(name, line_number,
                       fmt::format("more than {} prompts", kMaxCompareQuestions));
    if (question->id.empty()) question->id = std::to_string(questions.size() + 1);
    questions.push_back(*std::move(question));
  }
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
