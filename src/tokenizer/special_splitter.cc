#include "tokenizer/special_splitter.h"

#include "base/check.h"

namespace vericache {

void SpecialSplitter::Add(std::string_view token_text, TokenId id) {
  VC_CHECK(!token_text.empty() && token_text.size() <= kMaxTokenBytes);
  int32_t node = 0;
  for (char byte : token_text) {
    const auto [child, is_new] =
        nodes_[node].children.try_emplace(byte, static_cast<int32_t>(nodes_.size()));
    node = child->second;
    if (is_new) nodes_.emplace_back();
  }
  nodes_[node].id = id;
}

void SpecialSplitter::Split(std::string_view text,
                            absl::FunctionRef<void(std::string_view, TokenId)> visit) const {
  size_t plain_begin = 0;
  size_t pos = 0;
  while (pos < text.size()) {
    TokenId found_id = -1;
    size_t found_end = pos;
    int32_t node = 0;
    for (size_t end = pos; end < text.size();) {
      const auto child = nodes_[node].children.find(text[end]);
      if (child == nodes_[node].children.end()) break;
      node = child->second;
      ++end;
      if (nodes_[node].id >= 0) {
        found_id = nodes_[node].id;
        found_end = end;
      }
    }
    if (found_id < 0) {
      ++pos;
      continue;
    }
    if (pos > plain_begin) visit(text.substr(plain_begin, pos - plain_begin), -1);
    visit(text.substr(pos, found_end - pos), found_id);
    pos = plain_begin = found_end;
  }
  if (text.size() > plain_begin) visit(text.substr(plain_begin), -1);
}

}  // namespace vericache
