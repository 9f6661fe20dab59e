#include "kv/draft_spec.h"

#include <charconv>
#include <vector>

#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

constexpr std::string_view kSelectors = "sink, snapkv, verify";
constexpr std::string_view kCodecs = "f16, int8, int4";

bool ParseCodec(std::string_view name, DraftFormat* codec) {
  if (name == "f16")
    *codec = DraftFormat::kF16;
  else if (name == "int8")
    *codec = DraftFormat::kInt8;
  else if (name == "int4")
    *codec = DraftFormat::kInt4;
  else
    return false;
  return true;
}

// The shortest text that parses back to the same number.
std::string ShortestText(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

absl::Status Bad(std::string_view spec, std::string_view why) {
  return absl::InvalidArgumentError(StrCat("draft spec \"", spec, "\": ", why));
}

absl::Status ParseKey(std::string_view text, std::string_view pair, DraftSpec* spec) {
  const std::vector<std::string_view> parts = SplitOnce(pair, '=');
  int value = 0;
  if (parts.size() != 2 || !ParseInt(parts[1], &value))
    return Bad(text, StrCat("\"", pair, "\" is not key=integer"));
  const bool scored = spec->uses_queries();
  if (parts[0] == "sinks" && spec->selector == SelectorKind::kSink) {
    if (value < 0 || value > 4096) return Bad(text, "sinks must be 0 to 4096");
    spec->sinks = value;
  } else if (parts[0] == "window" && scored) {
    if (value < 1 || value > 256) return Bad(text, "window must be 1 to 256");
    spec->window = value;
  } else if (parts[0] == "pool" && scored) {
    if (value < 1 || value > 63 || value % 2 == 0) return Bad(text, "pool must be odd, 1 to 63");
    spec->pool = value;
  } else {
    return Bad(text,
               StrCat("unknown key \"", parts[0], "\" (",
                      scored ? "snapkv and verify take window, pool" : "sink takes sinks", ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DraftSpec> ParseDraftSpec(std::string_view text) {
  DraftSpec spec;
  if (text == "off") {
    spec.enabled = false;
    return spec;
  }
  if (ParseCodec(text, &spec.codec)) return spec;
  const std::vector<std::string_view> plus = SplitOnce(text, '+');
  if (plus.size() == 2 && !ParseCodec(plus[1], &spec.codec))
    return Bad(text, StrCat("unknown codec \"", plus[1], "\" (known: ", kCodecs, ")"));
  const std::vector<std::string_view> commas = Split(plus[0], ',');
  const std::vector<std::string_view> head = SplitOnce(commas[0], ':');
  if (head[0] == "sink")
    spec.selector = SelectorKind::kSink;
  else if (head[0] == "snapkv")
    spec.selector = SelectorKind::kSnapKv;
  else if (head[0] == "verify")
    spec.selector = SelectorKind::kVerify;
  else
    return Bad(text, StrCat("unknown selector or codec \"", head[0], "\" (off; codecs: ", kCodecs,
                            "; selectors: ", kSelectors, ")"));
  spec.fraction = 0.25;
  if (head.size() == 2 &&
      (!ParseDouble(head[1], &spec.fraction) || !(spec.fraction > 0) || !(spec.fraction <= 1)))
    return Bad(text, StrCat("fraction \"", head[1], "\" must be above 0 and at most 1"));
  for (size_t i = 1; i < commas.size(); ++i) VC_RETURN_IF_ERROR(ParseKey(text, commas[i], &spec));
  return spec;
}

std::string DraftSpec::ToString() const {
  if (!enabled) return "off";
  const std::string codec_name = codec == DraftFormat::kF16    ? "f16"
                                 : codec == DraftFormat::kInt8 ? "int8"
                                                               : "int4";
  if (selector == SelectorKind::kAll) return codec_name;
  const char* name = selector == SelectorKind::kSink     ? "sink:"
                     : selector == SelectorKind::kSnapKv ? "snapkv:"
                                                         : "verify:";
  std::string text = StrCat(name, ShortestText(fraction));
  const DraftSpec defaults;
  if (selector == SelectorKind::kSink && sinks != defaults.sinks) text += StrCat(",sinks=", sinks);
  if (uses_queries() && window != defaults.window) text += StrCat(",window=", window);
  if (uses_queries() && pool != defaults.pool) text += StrCat(",pool=", pool);
  if (codec != DraftFormat::kF16) text += "+" + codec_name;
  return text;
}

}  // namespace vericache
