#include "kv/draft_spec.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

struct SelectorName {
  std::string_view name;
  SelectorKind kind;
  std::string_view keys;  // besides keep and f16
  bool takes_fraction = true;
};
constexpr SelectorName kSelectors[] = {
    {"all", SelectorKind::kAll, "", false},
    {"sink", SelectorKind::kSink, "sinks"},
    {"snapkv", SelectorKind::kSnapKv, "window, pool"},
    {"verify", SelectorKind::kVerify, "window, pool, score, floor, chunk"},
    {"kvzip", SelectorKind::kKvzip, "sinks, window, chunk"},
    {"expected", SelectorKind::kExpected, "sinks, window, future"},
    {"h2o", SelectorKind::kH2o, ""},
    {"quest", SelectorKind::kQuest, "whole"},
    {"kept", SelectorKind::kKept, "file", false},
};

struct IntKey {
  std::string_view name;
  int DraftSpec::*value;
  int min, max, multiple_of = 1;
};
constexpr IntKey kIntKeys[] = {
    {"sinks", &DraftSpec::sinks, 0, 4096},    {"window", &DraftSpec::window, 1, 256},
    {"pool", &DraftSpec::pool, 1, 63},        {"chunk", &DraftSpec::chunk, 64, 2048, 16},
    {"future", &DraftSpec::future, 1, 65536}, {"whole", &DraftSpec::whole, 0, 1024},
};

const SelectorName& NameOf(SelectorKind kind) {
  for (const SelectorName& s : kSelectors)
    if (s.kind == kind) return s;
  return kSelectors[0];
}

std::string AllSelectors() {
  std::string names;
  for (const SelectorName& s : kSelectors) names += StrCat(names.empty() ? "" : ", ", s.name);
  return names;
}

// The shortest text that parses back to the same number.
std::string ShortestText(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

absl::Status Bad(std::string_view spec, std::string_view why) {
  return absl::InvalidArgumentError(StrCat("draft spec \"", spec, "\": ", why));
}

bool TakesKey(const SelectorName& selector, std::string_view key) {
  if (key == "keep" || key == "f16") return true;
  for (std::string_view name : Split(selector.keys, ',')) {
    if (!name.empty() && name.front() == ' ') name.remove_prefix(1);
    if (!name.empty() && name == key) return true;
  }
  return false;
}

constexpr int kMaxLayer = 4095;

bool ParseLayers(std::string_view text, LayerSet* layers) {
  for (std::string_view part : Split(text, '/')) {
    const std::vector<std::string_view> ends = SplitOnce(part, '-');
    int first = 0, last = 0;
    if (!ParseInt(ends.front(), &first) || !ParseInt(ends.back(), &last) || first < 0 ||
        last < first || last > kMaxLayer)
      return false;
    layers->ranges.emplace_back(first, last);
  }
  return true;
}

absl::Status ParseIntKey(std::string_view text, const IntKey& key, std::string_view value,
                         DraftSpec* spec) {
  int number = 0;
  if (!ParseInt(value, &number))
    return Bad(text, StrCat("\"", key.name, "=", value, "\" is not key=integer"));
  if (number < key.min || number > key.max || number % key.multiple_of != 0)
    return Bad(text,
               StrCat(key.name, " must be ", key.min, " to ", key.max,
                      key.multiple_of > 1 ? StrCat(", a multiple of ", key.multiple_of) : ""));
  if (key.name == "pool" && number % 2 == 0)
    return Bad(text, StrCat("pool must be odd, ", key.min, " to ", key.max));
  spec->*key.value = number;
  return absl::OkStatus();
}

absl::Status ParseKey(std::string_view text, std::string_view pair, DraftSpec* spec) {
  const SelectorName& selector = NameOf(spec->selector);
  const std::vector<std::string_view> parts = SplitOnce(pair, '=');
  if (!TakesKey(selector, parts[0]))
    return Bad(text, StrCat("unknown key \"", parts[0], "\" (", selector.name, " takes ",
                            selector.keys, selector.keys.empty() ? "" : ", ", "keep, f16)"));
  if (parts.size() != 2 || parts[1].empty())
    return Bad(text, StrCat("\"", pair, "\" is not key=value"));
  const std::string_view value = parts[1];
  for (const IntKey& key : kIntKeys)
    if (key.name == parts[0]) return ParseIntKey(text, key, value, spec);
  if (parts[0] == "score") {
    if (value != "snapkv" && value != "vegas") return Bad(text, "score must be snapkv or vegas");
    spec->score = value == "vegas" ? VerifyScore::kVegas : VerifyScore::kSnapKv;
  } else if (parts[0] == "floor") {
    if (!ParseDouble(value, &spec->floor) || !(spec->floor >= 0) || !(spec->floor <= 1))
      return Bad(text, StrCat("floor \"", value, "\" must be 0 to 1"));
  } else if (parts[0] == "file") {
    spec->file = value;
  } else {
    LayerSet* layers = parts[0] == "keep" ? &spec->keep_layers : &spec->f16_layers;
    layers->ranges.clear();
    if (!ParseLayers(value, layers))
      return Bad(text, StrCat("\"", pair, "\": layers are like 0-1/27"));
  }
  return absl::OkStatus();
}

absl::Status ParseSelector(std::string_view text, std::string_view head, DraftSpec* spec) {
  const std::vector<std::string_view> parts = SplitOnce(head, ':');
  const auto* selector = std::find_if(std::begin(kSelectors), std::end(kSelectors),
                                      [&](const SelectorName& s) { return s.name == parts[0]; });
  if (selector == std::end(kSelectors))
    return Bad(text, StrCat("unknown selector or codec \"", parts[0], "\" (off; codecs: ",
                            kDraftCodecNames, "; selectors: ", AllSelectors(), ")"));
  spec->selector = selector->kind;
  if (selector->takes_fraction) spec->fraction = 0.25;
  if (parts.size() == 1) return absl::OkStatus();
  if (!selector->takes_fraction)
    return Bad(text, StrCat("\"", selector->name, "\" takes no fraction"));
  if (!ParseDouble(parts[1], &spec->fraction) || !(spec->fraction > 0) || !(spec->fraction <= 1))
    return Bad(text, StrCat("fraction \"", parts[1], "\" must be above 0 and at most 1"));
  return absl::OkStatus();
}

absl::Status CheckWhole(std::string_view text, const DraftSpec& spec) {
  if (spec.selector == SelectorKind::kKept && spec.file.empty())
    return Bad(text, "kept needs file=FILE.npz");
  if (spec.floor > 0 && spec.score == VerifyScore::kVegas)
    return Bad(text, "score=vegas takes no floor");
  if (spec.floor > spec.fraction)
    return Bad(text, StrCat("floor ", spec.floor, " is above the fraction ", spec.fraction));
  return absl::OkStatus();
}

}  // namespace

bool LayerSet::Has(int layer) const {
  return std::any_of(ranges.begin(), ranges.end(),
                     [&](auto range) { return range.first <= layer && layer <= range.second; });
}

std::string LayerSet::ToString() const {
  std::string text;
  for (auto [first, last] : ranges)
    text += StrCat(text.empty() ? "" : "/", first, first == last ? "" : StrCat("-", last));
  return text;
}

absl::StatusOr<DraftSpec> ParseDraftSpec(std::string_view text) {
  DraftSpec spec;
  if (text == "off") {
    spec.enabled = false;
    return spec;
  }
  if (ParseDraftCodec(text, &spec.codec)) return spec;
  // The codec stands behind the last plus sign; a file's name may hold others.
  std::string_view front = text;
  if (const size_t plus = text.rfind('+'); plus != text.npos) {
    const std::string_view codec = text.substr(plus + 1);
    const bool known = ParseDraftCodec(codec, &spec.codec);
    if (!known && text.find("file=") == text.npos)
      return Bad(text, StrCat("unknown codec \"", codec, "\" (known: ", kDraftCodecNames, ")"));
    if (known) front = text.substr(0, plus);
  }
  const std::vector<std::string_view> commas = Split(front, ',');
  VC_RETURN_IF_ERROR(ParseSelector(text, commas[0], &spec));
  for (size_t i = 1; i < commas.size(); ++i) VC_RETURN_IF_ERROR(ParseKey(text, commas[i], &spec));
  VC_RETURN_IF_ERROR(CheckWhole(text, spec));
  return spec;
}

ScoreKind DraftSpec::score_kind() const {
  if (!enabled) return ScoreKind::kNone;
  switch (selector) {
    case SelectorKind::kKvzip:
      return ScoreKind::kKvzip;
    case SelectorKind::kVerify:
      return floor > 0 ? ScoreKind::kKvzip : ScoreKind::kNone;
    case SelectorKind::kExpected:
      return ScoreKind::kExpected;
    case SelectorKind::kH2o:
      return ScoreKind::kH2o;
    default:
      return ScoreKind::kNone;
  }
}

std::string DraftSpec::score_key() const {
  switch (score_kind()) {
    case ScoreKind::kKvzip:
      return StrCat("kvzip ", chunk);
    case ScoreKind::kExpected:
      return StrCat("expected ", sinks, " ", future);
    case ScoreKind::kH2o:
      return "h2o";
    case ScoreKind::kNone:
      break;
  }
  return "";
}

double DraftSpec::FractionOf(int layer) const {
  const bool all = selector == SelectorKind::kAll || selector == SelectorKind::kQuest;
  return all || keep_layers.Has(layer) ? 1.0 : fraction;
}

std::vector<DraftCodec> DraftSpec::CodecsOf(int num_layers) const {
  std::vector<DraftCodec> codecs;
  for (int layer = 0; layer < num_layers; ++layer) codecs.push_back(CodecOf(layer));
  return codecs;
}

std::string DraftSpec::ToString() const {
  if (!enabled) return "off";
  const bool by_layer = !keep_layers.ranges.empty() || !f16_layers.ranges.empty();
  if (selector == SelectorKind::kAll && !by_layer) return codec.ToString();
  const SelectorName& name = NameOf(selector);
  std::string text(name.name);
  if (name.takes_fraction) text += ":" + ShortestText(fraction);
  const DraftSpec defaults;
  for (const IntKey& key : kIntKeys)
    if (TakesKey(name, key.name) && this->*key.value != defaults.*key.value)
      text += StrCat(",", key.name, "=", this->*key.value);
  if (score == VerifyScore::kVegas) text += ",score=vegas";
  if (floor > 0) text += ",floor=" + ShortestText(floor);
  if (!file.empty()) text += ",file=" + file;
  if (!keep_layers.ranges.empty()) text += ",keep=" + keep_layers.ToString();
  if (!f16_layers.ranges.empty()) text += ",f16=" + f16_layers.ToString();
  // A file named "a+int4" stored in f16 must not read as "a" stored in int4.
  DraftCodec last;
  const size_t plus = text.rfind('+');
  if (!(codec == DraftCodec()) ||
      (plus != text.npos && ParseDraftCodec(text.substr(plus + 1), &last)))
    text += "+" + codec.ToString();
  return text;
}

}  // namespace vericache
