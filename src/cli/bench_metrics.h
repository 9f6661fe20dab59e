// The measured values of `vericache bench`, by name: one value a round, medians at the end.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace vericache::cli {

// Values of one metric, a round each. Empty: it was left out.
struct Series {
  std::vector<double> values;

  // REQUIRES of all three: values is not empty.
  double Median() const;
  double Low() const;
  double High() const;
};

class Metrics {
 public:
  // Declares a metric, so that it has its place and is null in the JSON if it gets no value.
  void Declare(const std::string& name) { SeriesOf(name); }
  void Add(const std::string& name, double value) { SeriesOf(name)->values.push_back(value); }

  // Null if there is none of that name, or none of its values.
  const Series* Find(const std::string& name) const;
  // In the order in which they were first named.
  const std::vector<std::pair<std::string, Series>>& all() const { return all_; }

 private:
  Series* SeriesOf(const std::string& name);

  std::vector<std::pair<std::string, Series>> all_;  // a few dozen: searched from the front
};

// Names that have a depth, a width or a draft spec in them. The spec comes last, because it may
// hold any character: draft_step_ms_8192_sink:0.25+int4.
std::string DepthName(const char* what, int64_t depth);
std::string WidthName(const char* what, int64_t depth, int width);
std::string DraftName(const char* what, int64_t depth, const std::string& spec);

}  // namespace vericache::cli
