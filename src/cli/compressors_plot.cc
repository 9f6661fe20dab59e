#include "cli/compressors_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/compressors_report.h"

namespace vericache::cli {
namespace {

// Sizes in pixels.
constexpr double kPanel = 420, kHeight = 460, kLeft = 56, kRight = 14, kTop = 54, kBottom = 54;
constexpr double kLineHeight = 13, kCharWidth = 6.6;
// Okabe and Ito's colours, which colour-blind readers can tell apart: by selector.
constexpr const char* kColours[] = {"#D55E00", "#0072B2", "#009E73", "#CC79A7",
                                    "#E69F00", "#56B4E9", "#7F7F7F", "#000000"};

std::string Escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

struct Axis {
  double low, high, from, to;  // values, pixels
  double At(double value) const {
    const double share = std::log(std::clamp(value, low, high) / low) / std::log(high / low);
    return from + share * (to - from);
  }
};

struct Box {
  double x0, y0, x1, y1;
  bool Meets(const Box& o) const { return x0 < o.x1 && o.x0 < x1 && y0 < o.y1 && o.y0 < y1; }
};

// The name before the fraction: specs of one selector share a colour.
std::string SelectorOf(const std::string& spec) {
  return spec.substr(0, spec.find_first_of(":,+"));
}

class Panel {
 public:
  Panel(const CompressorsReport& report, const std::string& kind, double left)
      : report_(report),
        kind_(kind),
        x_{LowestKept(report), 1.0, left + kLeft, left + kPanel - kRight},
        y_{1.0, static_cast<double>(report.draft_len + 1), kHeight - kBottom, kTop} {}

  std::string Draw() {
    DrawAxes();
    for (size_t i = 0; i < report_.specs.size(); ++i) {
      const SpecSummary s = Summarize(report_, report_.specs[i], kind_);
      const double x = x_.At(s.kept_fraction), y = y_.At(std::max(1.0, s.mean_run));
      taken_.push_back({x - 4, y - 4, x + 4, y + 4});
      points_.push_back({x, y});
    }
    for (size_t i = 0; i < report_.specs.size(); ++i) DrawPoint(i);
    return std::move(svg_);
  }

 private:
  struct Point {
    double x, y;
  };

  // All panels share their axes, so that they can be compared.
  static double LowestKept(const CompressorsReport& report) {
    double low = 0.25;
    for (const StudiedSpec& spec : report.specs)
      for (const DraftReplayReport& replay : spec.replays)
        low = std::min(low, std::max(replay.kept_fraction, 1e-3));
    return low * 0.8;
  }

  void Line(double x0, double y0, double x1, double y1, const char* colour) {
    svg_ += fmt::format("<line x1='{:.1f}' y1='{:.1f}' x2='{:.1f}' y2='{:.1f}' stroke='{}'/>\n", x0,
                        y0, x1, y1, colour);
  }
  void Text(double x, double y, const char* anchor, const std::string& text,
            const char* extra = "") {
    svg_ += fmt::format("<text x='{:.1f}' y='{:.1f}' text-anchor='{}'{}>{}</text>\n", x, y, anchor,
                        extra, Escaped(text));
  }

  void DrawAxes() {
    const SpecSummary any =
        report_.specs.empty() ? SpecSummary() : Summarize(report_, report_.specs.front(), kind_);
    Text(x_.from, kTop - 12, "start", fmt::format("{} ({} prompts)", kind_, any.num_prompts),
         " font-weight='bold'");
    for (double kept : {0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0}) {
      if (kept < x_.low) continue;
      Line(x_.At(kept), y_.from, x_.At(kept), y_.to, "#e4e4e4");
      Text(x_.At(kept), y_.from + 16, "middle", fmt::format("{:g}", kept));
    }
    for (double run : {1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0}) {
      if (run > y_.high) continue;
      Line(x_.from, y_.At(run), x_.to, y_.At(run), "#e4e4e4");
      Text(x_.from - 6, y_.At(run) + 4, "end", fmt::format("{:g}", run));
    }
    Text((x_.from + x_.to) / 2, y_.from + 36, "middle", "kept fraction of the KV's bytes");
  }

  // Next to the point where there is room; the nearest such place wins.
  void DrawPoint(size_t idx) {
    const std::string& spec = report_.specs[idx].spec;
    const Point p = points_[idx];
    const double width = kCharWidth * static_cast<double>(spec.size());
    const auto box_at = [&](double dx, double dy) {
      return Box{p.x + dx, p.y + dy - kLineHeight / 2, p.x + dx + width,
                 p.y + dy + kLineHeight / 2};
    };
    Box best = box_at(8, 0);
    double best_cost = 1e9;
    for (int step = 0; step <= 24; ++step) {
      for (const double dy : {step * -7.0, step * 7.0}) {
        for (const double dx : {8.0, -8.0 - width, 22.0, -22.0 - width}) {
          const Box box = box_at(dx, dy);
          if (box.x0 < x_.from || box.x1 > x_.to + kRight || box.y0 < kTop - 4 || box.y1 > y_.from)
            continue;
          if (std::any_of(taken_.begin(), taken_.end(),
                          [&](const Box& other) { return box.Meets(other); }))
            continue;
          const double cost = step * 7.0 + std::abs(dx < 0 ? dx + width : dx) / 2;
          if (cost < best_cost) {
            best_cost = cost;
            best = box;
          }
        }
      }
    }
    taken_.push_back(best);
    const double near_x = best.x0 > p.x ? best.x0 - 1 : best.x1 + 1;
    const double mid_y = (best.y0 + best.y1) / 2;
    if (best_cost > 12) Line(p.x, p.y, near_x, mid_y, "#b0b0b0");
    svg_ += fmt::format("<circle cx='{:.1f}' cy='{:.1f}' r='4' fill='{}'/>\n", p.x, p.y,
                        ColourOf(SelectorOf(spec)));
    Text(best.x0, mid_y + 4, "start", spec);
  }

  const char* ColourOf(const std::string& selector) const {
    std::vector<std::string> seen;
    for (const StudiedSpec& spec : report_.specs) {
      const std::string name = SelectorOf(spec.spec);
      if (std::find(seen.begin(), seen.end(), name) == seen.end()) seen.push_back(name);
    }
    const size_t idx = std::find(seen.begin(), seen.end(), selector) - seen.begin();
    return kColours[idx % std::size(kColours)];
  }

  const CompressorsReport& report_;
  const std::string kind_;
  const Axis x_, y_;
  std::vector<Point> points_;
  std::vector<Box> taken_;
  std::string svg_;
};

}  // namespace

std::string CompressorsPlot(const CompressorsReport& report) {
  const std::vector<std::string> kinds = report.Kinds();
  const double width = kPanel * static_cast<double>(kinds.size());
  std::string svg = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' width='{0:.0f}' height='{1:.0f}' "
      "viewBox='0 0 {0:.0f} {1:.0f}' font-family='sans-serif' font-size='11'>\n"
      "<rect width='100%' height='100%' fill='white'/>\n"
      "<text x='{2:.0f}' y='20' font-size='14'>Tokens a round emits: {3}, drafts of at most {4}"
      "</text>\n",
      width, kHeight, kLeft, Escaped(report.model.name), report.draft_len);
  double left = 0;
  for (const std::string& kind : kinds) {
    svg += Panel(report, kind, left).Draw();
    left += kPanel;
  }
  return svg + "</svg>\n";
}

}  // namespace vericache::cli
