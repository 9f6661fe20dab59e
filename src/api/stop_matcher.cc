#include "api/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace vericache {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) {
  for (const std::string& text : stops) {
    Stop stop = {text, std::vector<size_t>(text.size()), 0};
    for (size_t i = 1, border = 0; i < text.size(); ++i) {
      while (border > 0 && text[i] != text[border]) border = stop.failure[border - 1];
      if (text[i] == text[border]) ++border;
      stop.failure[i] = border;
    }
    stops_.push_back(std::move(stop));
  }
}

void StopMatcher::Advance(char byte, Stop* stop) {
  while (stop->state > 0 && byte != stop->text[stop->state])
    stop->state = stop->failure[stop->state - 1];
  if (byte == stop->text[stop->state]) ++stop->state;
}

std::string StopMatcher::Push(std::string_view text) {
  if (matched_) return "";
  for (const char byte : text) {
    held_.push_back(byte);
    const Stop* longest = nullptr;
    for (Stop& stop : stops_) {
      Advance(byte, &stop);
      const bool whole = stop.state == stop.text.size();
      if (whole && (longest == nullptr || longest->text.size() < stop.text.size())) longest = &stop;
    }
    if (longest == nullptr) continue;
    matched_ = true;
    stop_ = longest->text;
    held_.resize(held_.size() - stop_.size());
    return std::exchange(held_, "");
  }
  size_t kept = 0;
  for (const Stop& stop : stops_) kept = std::max(kept, stop.state);
  std::string shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::Flush() { return std::exchange(held_, ""); }

}  // namespace vericache
