#include "tests/serving/serving_test_util.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "gguf/reader.h"
#include "tokenizer/tokenizer.h"

namespace vericache {

void Collector::OnDelta(const ServeDelta& delta) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Choice& choice = choices_.at(delta.choice);
    EXPECT_FALSE(choice.end.has_value()) << "a delta behind the end";
    EXPECT_TRUE(!delta.text.empty() || !delta.token_ids.empty()) << "an empty delta";
    choice.text += delta.text;
    choice.ids.insert(choice.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    choice.logprobs.insert(choice.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    ++num_deltas_;
  }
  if (on_delta) on_delta(delta);
}

void Collector::OnEnd(ServeEnd end) {
  if (on_end) on_end(end);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Choice& choice = choices_.at(end.choice);
    EXPECT_FALSE(choice.end.has_value()) << "two ends";
    choice.end = std::move(end);
  }
  ended_.notify_all();
}

void Collector::OnDraft(int choice, std::string_view text) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    choices_.at(choice).drafts.emplace_back(text);
  }
  if (on_draft) on_draft(choice);
}

void Collector::OnPrefill(int64_t done, int64_t total) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++num_prefills_;
  }
  if (on_prefill) on_prefill(done, total);
}

const Collector::Choice& Collector::Wait(int choice) {
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [&] { return choices_.at(choice).end.has_value(); });
  return choices_.at(choice);
}

bool Collector::ended(int choice) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return choices_.at(choice).end.has_value();
}

int64_t Collector::num_prefills() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_prefills_;
}

int64_t Collector::num_deltas() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_deltas_;
}

void Gate::Open() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
  }
  opened_.notify_all();
}

void Gate::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  opened_.wait(lock, [&] { return open_; });
}

EngineOptions ServingOptions(uint64_t kv_memory, uint64_t prefix_memory) {
  EngineOptions options;
  options.model_path = kServingModel;
  options.num_threads = 2;
  options.kv_memory = kv_memory;
  options.kv_dir = testing::TempDir();
  options.prefix_memory_bytes = prefix_memory;
  return options;
}

std::unique_ptr<Engine> LoadServingEngine(const EngineOptions& options) {
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::unique_ptr<CompletionService> StartTestService(const EngineOptions& options,
                                                    const ServiceOptions& service) {
  auto started = StartService(LoadServingEngine(options), service);
  EXPECT_TRUE(started.ok()) << started.status();
  return *std::move(started);
}

ServeRequest Ask(std::vector<int32_t> prompt, int64_t max_tokens) {
  ServeRequest request;
  request.request.prompt_token_ids = std::move(prompt);
  request.request.max_tokens = max_tokens;
  return request;
}

Expected Oracle(Engine* engine, const ServeRequest& asked, int choice) {
  Request request = asked.request;
  request.sampling.choice = choice;
  request.use_prefix_cache = false;
  auto whole = engine->Generate(request);
  EXPECT_TRUE(whole.ok()) << whole.status();
  if (!whole.ok()) return {};
  Expected want = {whole->token_ids, whole->text, whole->finish_reason, "", whole->logits_hash};
  for (size_t n = 1; n <= whole->token_ids.size() && !asked.stop.empty(); ++n) {
    Utf8Assembler characters;
    std::string text = characters.Push(engine->Detokenize({whole->token_ids.data(), n}));
    text += characters.Flush();
    size_t first_end = text.npos;
    for (const std::string& stop : asked.stop) {
      const size_t at = text.find(stop);
      if (at == text.npos || at + stop.size() > first_end) continue;
      if (at + stop.size() == first_end && stop.size() <= want.stop_string.size()) continue;
      first_end = at + stop.size();
      want.stop_string = stop;
    }
    if (first_end == text.npos) continue;
    want.text = text.substr(0, first_end - want.stop_string.size());
    want.ids.resize(n);
    want.finish_reason = "stop";
    request.max_tokens = static_cast<int64_t>(n);
    want.logits_hash = engine->Generate(request)->logits_hash;
    break;
  }
  return want;
}

void ExpectAnswer(const Collector::Choice& got, const Expected& want, const std::string& what) {
  ASSERT_TRUE(got.end.has_value()) << what;
  ASSERT_TRUE(got.end->status.ok()) << what << ": " << got.end->status;
  const Completion& completion = got.end->completion;
  EXPECT_EQ(got.ids, want.ids) << what;
  EXPECT_EQ(completion.token_ids, want.ids) << what;
  EXPECT_EQ(got.text, want.text) << what;
  EXPECT_EQ(completion.text, want.text) << what;
  EXPECT_EQ(completion.finish_reason, want.finish_reason) << what;
  EXPECT_EQ(got.end->stop_string, want.stop_string) << what;
  EXPECT_EQ(completion.logits_hash, want.logits_hash) << what;
  EXPECT_EQ(completion.usage.completion_tokens, static_cast<int64_t>(want.ids.size())) << what;
}

std::string PieceOf(const std::string& text, size_t at, size_t size) {
  const auto starts = [&](size_t i) {
    return i >= text.size() || (static_cast<uint8_t>(text[i]) & 0xC0) != 0x80;
  };
  for (; at < text.size(); ++at) {
    if (!starts(at)) continue;
    size_t end = at + size;
    while (!starts(end)) ++end;
    const std::string piece = text.substr(at, end - at);
    if (piece.find("\xEF\xBF\xBD") == piece.npos) return piece;
  }
  return "";
}

bool SameLogprobs(const std::vector<PositionLogprobs>& a, const std::vector<PositionLogprobs>& b) {
  const auto same_token = [](const TokenLogprob& x, const TokenLogprob& y) {
    return x.id == y.id && std::memcmp(&x.logprob, &y.logprob, sizeof(float)) == 0;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& x, const auto& y) {
    return same_token(x.chosen, y.chosen) &&
           std::equal(x.top.begin(), x.top.end(), y.top.begin(), y.top.end(), same_token);
  });
}

namespace {

std::string ReadModel() {
  std::ifstream file(kServingModel, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string WriteModel(const std::string& bytes, const std::string& name) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

template <typename Int>
std::string LittleEndian(Int value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

}  // namespace

std::string ModelWithTemplate(const std::string& source, const std::string& name) {
  constexpr size_t kEntriesBegin = 24, kAlignment = 32;
  const std::string key = "tokenizer.chat_template";
  std::string text = source + "{#";
  // The tensors behind must stay aligned.
  const size_t fixed = 8 + key.size() + 4 + 8 + 2;
  while ((fixed + text.size()) % kAlignment != 0) text += ' ';
  text += "#}";
  const std::string entry = LittleEndian<uint64_t>(key.size()) + key + LittleEndian<uint32_t>(8) +
                            LittleEndian<uint64_t>(text.size()) + text;
  std::string bytes = ReadModel();
  uint64_t num_entries = 0;
  std::memcpy(&num_entries, bytes.data() + 16, 8);
  ++num_entries;
  std::memcpy(bytes.data() + 16, &num_entries, 8);
  bytes.insert(kEntriesBegin, entry);
  return WriteModel(bytes, name);
}

std::string ModelWithBadToken(int32_t token, const std::string& name) {
  std::string bytes = ReadModel();
  const auto file = GgufFile::Open(kServingModel);
  EXPECT_TRUE(file.ok()) << file.status();
  const GgufTensor* embedding = (*file)->FindTensor("token_embd.weight");
  const uint64_t row_bytes = embedding->num_bytes / embedding->rows();
  const uint16_t nan = 0x7E00;  // f16
  std::memcpy(bytes.data() + embedding->offset + token * row_bytes + 6, &nan, sizeof(nan));
  return WriteModel(bytes, name);
}

}  // namespace vericache
