// Fuzzes the tokenizer. Input that begins as a GGUF file is read as a vocabulary; any other is
// text for the tiny vocabularies of tests/golden/tokenizer:
//   - text that is not UTF-8 is refused, all other text is encoded;
//   - decode(encode(text)) == text, where the rule promises it: not for text that qwen2 brings to
//     NFC first, nor for the two bytes that the smollm vocabulary lacks;
//   - the stream assembler yields the same text whatever the size of its pieces.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/check.h"
#include "tokenizer/nfc.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace vericache {
namespace {

struct Vocab {
  std::string name;
  std::unique_ptr<GgufFile> file;
  std::unique_ptr<Tokenizer> tokenizer;
};

// Found from this source file: smoke tests run in the build folder.
std::string GoldenDir() {
  const std::string source = __FILE__;
  return source.substr(0, source.rfind('/')) + "/../tests/golden/tokenizer/";
}

const std::vector<Vocab>& Vocabs() {
  static const auto* const kVocabs = [] {
    auto* vocabs = new std::vector<Vocab>;
    for (const char* name : {"gpt-2", "smollm", "qwen2", "llama-bpe"}) {
      auto file = GgufFile::Open(GoldenDir() + "tiny-" + name + ".gguf");
      VC_CHECK(file.ok());
      auto tokenizer = Tokenizer::Create(**file);
      VC_CHECK(tokenizer.ok());
      vocabs->push_back({name, *std::move(file), *std::move(tokenizer)});
    }
    return vocabs;
  }();
  return *kVocabs;
}

bool RoundTrips(const std::string& kind, std::string_view text) {
  if (kind == "qwen2") return !ToNfc(text).has_value();
  if (kind == "smollm") return text.find_first_of("\x04\xF1") == text.npos;
  return true;
}

void CheckText(std::string_view text) {
  const bool is_utf8 = FindInvalidUtf8(text) == text.npos;
  for (const Vocab& vocab : Vocabs()) {
    for (const SpecialText special : {SpecialText::kAsText, SpecialText::kAsToken}) {
      const auto ids = vocab.tokenizer->Encode(text, special);
      VC_CHECK(ids.ok() == is_utf8);
      if (!is_utf8 || !RoundTrips(vocab.name, text)) continue;
      VC_CHECK(vocab.tokenizer->Decode(*ids, special) == text);
    }
  }
}

void CheckAssembler(std::string_view bytes) {
  Utf8Assembler whole, single;
  std::string expected = whole.Push(bytes);
  expected += whole.Flush();
  std::string text;
  for (const char byte : bytes) text += single.Push(std::string_view(&byte, 1));
  text += single.Flush();
  VC_CHECK(text == expected);
  VC_CHECK(FindInvalidUtf8(text) == text.npos);
  if (FindInvalidUtf8(bytes) == bytes.npos) VC_CHECK(text == bytes);
}

void CheckVocabFile(absl::Span<const uint8_t> bytes) {
  const auto file = GgufFile::FromMemory(bytes, "fuzz");
  if (!file.ok()) return;
  const auto tokenizer = Tokenizer::Create(**file);
  if (!tokenizer.ok()) return;
  for (const SpecialText special : {SpecialText::kAsText, SpecialText::kAsToken}) {
    const auto ids = (*tokenizer)->Encode("hello 123\n\n <|im_end|> caf\xC3\xA9", special);
    VC_CHECK(ids.ok());
    for (const TokenId id : *ids) VC_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    (void)(*tokenizer)->Decode(*ids, special);
  }
}

}  // namespace
}  // namespace vericache

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (text.substr(0, 4) == "GGUF") {
    vericache::CheckVocabFile({data, size});
  } else {
    vericache::CheckText(text);
    vericache::CheckAssembler(text);
  }
  return 0;
}
