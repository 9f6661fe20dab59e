#include "cli/bench_metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace vericache::cli {

double Series::Median() const {
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

double Series::Low() const { return *std::min_element(values.begin(), values.end()); }
double Series::High() const { return *std::max_element(values.begin(), values.end()); }

const Series* Metrics::Find(const std::string& name) const {
  for (const auto& [key, series] : all_)
    if (key == name) return series.values.empty() ? nullptr : &series;
  return nullptr;
}

Series* Metrics::SeriesOf(const std::string& name) {
  for (auto& [key, series] : all_)
    if (key == name) return &series;
  all_.emplace_back(name, Series());
  return &all_.back().second;
}

std::string DepthName(const char* what, int64_t depth) { return fmt::format("{}_{}", what, depth); }

std::string WidthName(const char* what, int64_t depth, int width) {
  return fmt::format("{}_{}_{}", what, depth, width);
}

std::string DraftName(const char* what, int64_t depth, const std::string& spec) {
  return fmt::format("{}_{}_{}", what, depth, spec);
}

}  // namespace vericache::cli
