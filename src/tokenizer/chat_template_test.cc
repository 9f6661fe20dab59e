#include "tokenizer/chat_template.h"

#include <signal.h>
#include <sys/wait.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tokenizer/chatml.h"

namespace vericache {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

constexpr char kGoldenDir[] = "tests/golden/tokenizer/";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

ChatRequest Request(std::string messages) {
  ChatRequest request;
  request.messages_json = std::move(messages);
  return request;
}

constexpr char kUser[] = R"([{"role": "user", "content": "Hello"}])";

absl::StatusOr<std::string> RenderOnce(const std::string& source, ChatTemplateLimits limits = {}) {
  return ChatTemplate(source, "<s>", "</s>", limits).Render(Request(kUser));
}

ChatRequest RequestOf(const Json& test_case) {
  ChatRequest request = Request(test_case["messages"].dump());
  if (!test_case["tools"].is_null()) request.tools_json = test_case["tools"].dump();
  if (!test_case["extra"].empty()) request.extra_json = test_case["extra"].dump();
  request.add_generation_prompt = test_case["add_generation_prompt"].get<bool>();
  return request;
}

TEST(ChatTemplate, EqualsTransformers) {
  const Json golden = Json::parse(ReadFile(std::string(kGoldenDir) + "chat_golden.json"));
  std::map<std::string, std::unique_ptr<ChatTemplate>> templates;
  for (const Json& test_case : golden["cases"]) {
    const std::string name = test_case["template"];
    SCOPED_TRACE(name + " " + test_case["name"].get<std::string>());
    std::unique_ptr<ChatTemplate>& chat = templates[name];
    if (chat == nullptr)
      chat = std::make_unique<ChatTemplate>(ReadFile(std::string(kGoldenDir) + "templates/" + name),
                                            "<s>", "</s>");
    const absl::StatusOr<std::string> prompt = chat->Render(RequestOf(test_case));
    if (test_case["expected"].is_null()) {
      EXPECT_EQ(prompt.status().code(), absl::StatusCode::kInvalidArgument) << prompt.status();
    } else {
      ASSERT_TRUE(prompt.ok()) << prompt.status();
      EXPECT_EQ(*prompt, test_case["expected"].get<std::string>());
    }
  }
  EXPECT_GT(golden["cases"].size(), 100u);
}

TEST(ChatTemplate, BuiltinChatMlEqualsJinja) {
  const Json golden = Json::parse(ReadFile(std::string(kGoldenDir) + "chat_golden.json"));
  for (const char* name : {"smollm2.jinja", "qwen2.5.jinja"}) {
    const std::string source = ReadFile(std::string(kGoldenDir) + "templates/" + name);
    EXPECT_TRUE(ChatTemplate(source, "", "").is_builtin());
    // A comment makes it another source with the same output: this one goes to Jinja2.
    ChatTemplate jinja(source + "{# #}", "", "");
    EXPECT_FALSE(jinja.is_builtin());
    const ChatMlStyle* style = FindChatMlStyle(source);
    ASSERT_NE(style, nullptr);
    int num_builtin = 0;
    for (const Json& test_case : golden["cases"]) {
      if (test_case["template"] != name) continue;
      SCOPED_TRACE(test_case["name"].get<std::string>());
      const ChatRequest request = RequestOf(test_case);
      const std::optional<std::string> prompt = RenderChatMl(*style, request);
      if (!prompt.has_value()) continue;
      ++num_builtin;
      const absl::StatusOr<std::string> expected = jinja.Render(request);
      ASSERT_TRUE(expected.ok()) << expected.status();
      EXPECT_EQ(*prompt, *expected);
    }
    EXPECT_GE(num_builtin, 20);
  }
}

TEST(ChatTemplate, BuiltinLeavesTheUnusualToJinja) {
  const ChatMlStyle* style =
      FindChatMlStyle(ReadFile(std::string(kGoldenDir) + "templates/qwen2.5.jinja"));
  ASSERT_NE(style, nullptr);
  for (const char* messages :
       {"[]", "{}", "not json", "[1]", R"([{"role": "user"}])", R"([{"content": "x"}])",
        R"([{"role": "tool", "content": "x"}])", R"([{"role": "user", "content": null}])",
        R"([{"role": "user", "content": [{"type": "text", "text": "x"}]}])",
        R"([{"role": "user", "content": "x", "name": "y"}])",
        R"([{"role": "assistant", "content": "", "tool_calls": []}])",
        R"([{"role": "user", "content": "\ud83d"}])"})
    EXPECT_FALSE(RenderChatMl(*style, Request(messages)).has_value()) << messages;
  ChatRequest request = Request(kUser);
  request.tools_json = R"([{"type": "function"}])";
  EXPECT_FALSE(RenderChatMl(*style, request).has_value());
}

TEST(ChatTemplate, RefusalHasTheTemplatesOwnWords) {
  const auto prompt = RenderOnce("{{ raise_exception('Roles must alternate, <so> there!') }}");
  EXPECT_EQ(prompt.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(prompt.status().message()),
              HasSubstr("Roles must alternate, <so> there!"));
}

TEST(ChatTemplate, BrokenTemplatesNameLineAndConstruct) {
  struct Broken {
    const char* source;
    const char* line;
    const char* construct;
  };
  for (const Broken& broken : std::initializer_list<Broken>{
           {"a\n{% if %}\n", "line 2", "{% if %}"},
           {"a\nb\n{{ x", "line 3", "{{ x"},
           {"\n{% unknown_tag %}", "line 2", "unknown_tag"},
           {"a\n\n{{ missing.field }}\n", "line 3", "'missing' is undefined"},
           {"{{ 1 + 'a' }}", "line 1", "TypeError"},
           {"{{ messages | no_such_filter }}", "line 1", "no_such_filter"},
           {"\n\n{% for x in range(10 ** 9) %}{% endfor %}", "line 3", "Range too big"},
           {"\n{{ ''.__class__.__mro__ }}", "line 2", "__class__"},
           {"\n{{ messages.append(1) }}", "line 2", "append"},
           {"{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}", "line", "calls itself"},
           {"{% include 'x' %}", "line 1", "include"},
           {"{{ namespace(__init__=1) }}", "line 1", "underscore"},
       }) {
    const auto prompt = RenderOnce(broken.source);
    EXPECT_EQ(prompt.status().code(), absl::StatusCode::kInvalidArgument) << broken.source;
    EXPECT_THAT(std::string(prompt.status().message()),
                AllOf(HasSubstr(broken.line), HasSubstr(broken.construct), Not(HasSubstr("\n"))));
  }
}

TEST(ChatTemplate, EndlessTemplateIsStoppedAndTheNextRenderingWorks) {
  const std::string source =
      "{% if messages | length == 1 %}{% for a in range(99999) %}{% for b in range(99999) %}"
      "{% endfor %}{% endfor %}{% else %}fine{% endif %}";
  ChatTemplateLimits limits;
  limits.timeout_ms = 300;
  ChatTemplate chat(source, "", "", limits);
  const std::string two = R"([{"role": "user", "content": ""}, {"role": "user", "content": ""}])";
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(chat.Render(Request(kUser)).status().code(), absl::StatusCode::kDeadlineExceeded);
    // A new process compiles the template anew; on a busy machine the short limit may pass.
    absl::StatusOr<std::string> prompt = chat.Render(Request(two));
    for (int attempt = 0; attempt < 20 && absl::IsDeadlineExceeded(prompt.status()); ++attempt)
      prompt = chat.Render(Request(two));
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(*prompt, "fine");
  }
}

TEST(ChatTemplate, EndlessArithmeticIsStopped) {
  ChatTemplateLimits limits;
  limits.timeout_ms = 300;
  EXPECT_EQ(RenderOnce("{{ 9 ** (9 ** 9) }}", limits).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST(ChatTemplate, EndlessOutputIsStopped) {
  ChatTemplateLimits limits;
  limits.timeout_ms = 20000;
  for (const char* source : {"{% for i in range(99999) %}{{ 'x' * 1024 }}{% endfor %}",  // 100 MB
                             "{{ 'x' * 100000000 }}", "{{ 'x' * 10 ** 12 }}",
                             "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}"}) {
    const absl::Status status = RenderOnce(source, limits).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << source << ": " << status;
  }
}

TEST(ChatTemplate, OutputLimitIsInBytesAndInclusive) {
  ChatTemplateLimits limits;
  limits.max_output_bytes = 30;
  EXPECT_TRUE(RenderOnce("{{ 'é' * 15 }}", limits).ok());
  EXPECT_EQ(RenderOnce("{{ 'é' * 16 }}", limits).status().code(),
            absl::StatusCode::kResourceExhausted);
  const std::string chatml = ReadFile(std::string(kGoldenDir) + "templates/smollm2.jinja");
  EXPECT_EQ(RenderOnce(chatml, limits).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(ChatTemplate, BadRequestsAreRefusedWithTheirPlace) {
  ChatTemplate chat("{{ messages | length }}", "", "");
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  for (const std::string& messages :
       {std::string("nonsense"), std::string("{}"), std::string("[1]"), std::string(""), deep,
        std::string("[{\"role\": \"\xE2\x80\"}]")}) {
    const auto prompt = chat.Render(Request(messages));
    EXPECT_EQ(prompt.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(prompt.status().message()), HasSubstr("messages"));
  }
  ChatRequest request = Request(kUser);
  request.tools_json = "{}";
  EXPECT_THAT(std::string(chat.Render(request).status().message()), HasSubstr("tools"));
  ASSERT_TRUE(chat.Render(Request(kUser)).ok());
}

TEST(ChatTemplate, HalfSurrogateIsRefused) {
  ChatTemplate chat("{{ messages[0].content }}", "", "");
  const auto prompt = chat.Render(Request(R"([{"role": "user", "content": "\ud83d"}])"));
  EXPECT_EQ(prompt.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(prompt.status().message()), HasSubstr("surrogate"));
}

TEST(ChatTemplate, LargeConversationPassesThroughTheSocket) {
  ChatTemplateLimits limits;
  limits.timeout_ms = 60000;
  ChatTemplate chat("{{ messages[0].content }}", "", "", limits);
  const std::string content(3000000, 'x');
  const auto prompt = chat.Render(Request(R"([{"role": "user", "content": ")" + content + "\"}]"));
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(*prompt, content);
}

TEST(ChatTemplate, ThreadsRenderOneAtATime) {
  ChatTemplateLimits limits;
  limits.timeout_ms = 60000;
  ChatTemplate chat("{{ messages[0].content }}", "", "", limits);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&chat, i] {
      const std::string text = std::to_string(i);
      for (int round = 0; round < 20; ++round) {
        const auto prompt =
            chat.Render(Request(R"([{"role": "user", "content": ")" + text + "\"}]"));
        ASSERT_TRUE(prompt.ok()) << prompt.status();
        EXPECT_EQ(*prompt, text);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(ChatTemplate, LeavesNoProcessBehind) {
  ASSERT_TRUE(RenderOnce("x").ok());
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no child at all
}

TEST(ChatTemplate, KilledProcessIsReplaced) {
  ChatTemplate chat("{{ messages[0].content }}", "", "");
  for (int round = 0; round < 3; ++round) {
    const auto prompt = chat.Render(Request(kUser));
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    EXPECT_EQ(*prompt, "Hello");
    pid_t child = 0;
    std::ifstream("/proc/thread-self/children") >> child;
    if (child <= 0) GTEST_SKIP() << "this kernel does not list children";
    ASSERT_EQ(kill(child, SIGKILL), 0);
  }
}

TEST(ChatTemplate, AMachineThatStandsStillIsNotTheTemplatesFault) {
  ChatTemplateLimits limits;
  limits.timeout_ms = 300;
  ChatTemplate chat("{{ messages[0].content }}", "", "", limits);
  ASSERT_TRUE(chat.Render(Request(kUser)).ok());
  pid_t child = 0;
  std::ifstream("/proc/thread-self/children") >> child;
  if (child <= 0) GTEST_SKIP() << "this kernel does not list children";
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  std::thread goes_on([child] {
    std::this_thread::sleep_for(std::chrono::milliseconds(900));
    kill(child, SIGCONT);
  });
  const auto prompt = chat.Render(Request(kUser));
  goes_on.join();
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  EXPECT_EQ(*prompt, "Hello");
  // Nor does it wait for ever.
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  EXPECT_EQ(chat.Render(Request(kUser)).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(ChatTemplate, TemplateCannotOpenFilesEvenOutsideTheSandbox) {
  // The lookups that escape older sandboxes; whichever gets through finds no file to open.
  for (const char* source :
       {"{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'].system('id') }}", "{{ ''['__class__'] }}x",
        "{{ strftime_now.__globals__ }}x", "{{ dict.__subclasses__() }}",
        "{{ ('%s' | attr('format')) ~ ({} | attr('__class__')) }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}"}) {
    const auto prompt = RenderOnce(source);
    if (prompt.ok()) {
      EXPECT_THAT(*prompt, AllOf(Not(HasSubstr("uid=")), Not(HasSubstr("class '"))));
    }
  }
}

}  // namespace
}  // namespace vericache
