// How many tokens the next round drafts.
//
// "auto" doubles after a fully accepted draft and halves when less than one half was accepted,
// within [4, 64]. It changes speed only, never the text.
#pragma once

namespace vericache {

class DraftLength {
 public:
  static DraftLength Fixed(int num_tokens) { return DraftLength(num_tokens, true); }
  static DraftLength Auto() { return DraftLength(16, false); }

  int next() const { return next_; }
  bool fixed() const { return fixed_; }
  int max() const { return fixed_ ? next_ : kMax; }
  void Update(int num_drafted, int num_accepted);

 private:
  DraftLength(int next, bool fixed) : next_(next), fixed_(fixed) {}
  static constexpr int kMin = 4, kMax = 64;
  int next_;
  bool fixed_;
};

}  // namespace vericache
