#include "cli/args.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>

#include "base/text.h"
#include "base/types.h"
#include "cli/errors.h"
#include "vericache/engine.h"
#include "vericache/prefixes.h"

namespace vericache::cli {
namespace {

// VERICACHE_DRAFT_LEN of "--draft-len" or "-x,--draft-len"; the first long name counts.
std::string EnvironmentName(const std::string& names) {
  const size_t begin = names.find("--") + 2;
  std::string name = "VERICACHE_";
  for (size_t i = begin; i < names.size() && names[i] != ','; ++i)
    name += names[i] == '-' ? '_' : static_cast<char>(std::toupper(names[i]));
  return name;
}

absl::Status ParseReal(const std::string& text, float min, float max, float* value) {
  double parsed = 0;
  if (!ParseDouble(text, &parsed) || !std::isfinite(parsed) || parsed < min || parsed > max)
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not a number from {} to {}", text, min, max));
  *value = static_cast<float>(parsed);
  return absl::OkStatus();
}

// 53 bits, so that a receipt's seed survives readers that keep numbers as doubles.
uint64_t RandomSeed() {
  std::random_device device;
  const uint64_t high = device(), low = device();
  return (high << 32 | low) & ((uint64_t{1} << 53) - 1);
}

}  // namespace

absl::Status ParseInteger(const std::string& text, int64_t min, int64_t max, int64_t* value) {
  int64_t parsed = 0;
  if (!ParseInt(text, &parsed) || parsed < min || parsed > max)
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not a whole number from {} to {}", text, min, max));
  *value = parsed;
  return absl::OkStatus();
}

absl::Status ParseBytes(const std::string& text, uint64_t* bytes) {
  std::string_view rest = text;
  int shift = 0;
  if (rest.ends_with('B')) rest.remove_suffix(rest.ends_with("iB") ? 2 : 1);
  constexpr std::string_view kUnits = "KMGT";
  if (!rest.empty()) {
    const size_t unit = kUnits.find(static_cast<char>(std::toupper(rest.back())));
    if (unit != std::string_view::npos) {
      shift = 10 * (static_cast<int>(unit) + 1);
      rest.remove_suffix(1);
    }
  }
  double number = 0;
  if (!ParseDouble(rest, &number) || !std::isfinite(number) || number <= 0 ||
      std::ldexp(number, shift) > 1e18)
    return absl::InvalidArgumentError(fmt::format("'{}' is not a size such as 8GiB or 512M", text));
  *bytes = static_cast<uint64_t>(std::ldexp(number, shift));
  return absl::OkStatus();
}

absl::Status ParseAge(const std::string& text, int64_t* seconds) {
  constexpr std::string_view kUnits = "smhdw";
  constexpr int64_t kSeconds[] = {1, 60, 3600, 86400, 604800};
  const size_t unit = text.empty() ? kUnits.npos : kUnits.find(text.back());
  int64_t number = 0;
  if (unit == kUnits.npos ||
      !ParseInteger(text.substr(0, text.size() - 1), 0, 1000000, &number).ok())
    return absl::InvalidArgumentError(fmt::format("'{}' is not an age such as 12h or 7d", text));
  *seconds = number * kSeconds[unit];
  return absl::OkStatus();
}

void Flags::Finish(CLI::Option* option, const std::string& what) {
  option->group(group_);
  if (!what.empty()) option->type_name(what);
}

void Flags::Custom(const std::string& names, const std::string& what, const std::string& help,
                   std::function<absl::Status(const std::string&)> set) {
  Option(names, what, help, [set = std::move(set)](const std::vector<std::string>& results) {
    return set(results.back());
  })->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

void Flags::List(const std::string& names, const std::string& what, const std::string& help,
                 std::function<absl::Status(const std::vector<std::string>&)> set) {
  constexpr int kMostTimes = 64;
  Option(names, what, help, std::move(set))
      ->expected(1, kMostTimes)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Flags::Subcommand(const std::string& name, const std::string& summary,
                       const std::function<void(Flags*)>& declare, std::function<void()> chosen) {
  CLI::App* command = app_->add_subcommand(name, summary);
  Flags flags(command);
  declare(&flags);
  command->parse_complete_callback(std::move(chosen));
  app_->require_subcommand(1);
}

void Flags::Positionals(const std::string& what, const std::string& help,
                        std::vector<std::string>* values) {
  Finish(app_->add_option(what, *values, help), "");
}

CLI::Option* Flags::Option(const std::string& names, const std::string& what,
                           const std::string& help,
                           std::function<absl::Status(const std::vector<std::string>&)> set) {
  const std::string variable = EnvironmentName(names);
  const std::string shown =
      names.substr(names.find("--"), names.find(',', names.find("--")) - names.find("--"));
  CLI::Option* option = app_->add_option(
      names,
      [set = std::move(set), shown, variable](const CLI::results_t& results) {
        const absl::Status status = set(results);
        if (status.ok()) return true;
        const char* twin = std::getenv(variable.c_str());
        const std::string source = twin != nullptr && results.back() == twin
                                       ? fmt::format("{} (or {})", shown, variable)
                                       : shown;
        throw CLI::ValidationError(source, std::string(status.message()));
      },
      help);
  option->envname(variable);
  Finish(option, what);
  return option;
}

void Flags::Text(const std::string& names, const std::string& what, const std::string& help,
                 std::string* value) {
  Custom(names, what, help, [value](const std::string& text) {
    *value = text;
    return absl::OkStatus();
  });
}

void Flags::Name(const std::string& names, const std::string& what, const std::string& help,
                 std::string* value) {
  Custom(names, what, help, [value](const std::string& text) {
    *value = text;
    return text.empty() ? absl::InvalidArgumentError("the name is empty") : absl::OkStatus();
  });
}

void Flags::Integer(const std::string& names, const std::string& what, const std::string& help,
                    int64_t* value, int64_t min, int64_t max) {
  Custom(names, what, help, [value, min, max](const std::string& text) {
    return ParseInteger(text, min, max, value);
  });
}

void Flags::Integer(const std::string& names, const std::string& what, const std::string& help,
                    int* value, int min, int max) {
  Custom(names, what, help, [value, min, max](const std::string& text) {
    int64_t parsed = 0;
    const absl::Status status = ParseInteger(text, min, max, &parsed);
    if (status.ok()) *value = static_cast<int>(parsed);
    return status;
  });
}

void Flags::Real(const std::string& names, const std::string& what, const std::string& help,
                 float* value, float min, float max) {
  Custom(names, what, help,
         [value, min, max](const std::string& text) { return ParseReal(text, min, max, value); });
}

void Flags::Switch(const std::string& names, const std::string& help, bool* value) {
  CLI::Option* option = app_->add_flag(names, *value, help);
  option->envname(EnvironmentName(names));
  Finish(option, "");
}

void Flags::Positional(const std::string& what, const std::string& help, std::string* value) {
  Finish(app_->add_option(what, *value, help), "");
}

std::function<absl::Status(const std::string&)> Flags::ConfigReader() {
  return [app = app_](const std::string& path) -> absl::Status {
    std::ifstream file(path);
    if (!file) return absl::NotFoundError(fmt::format("cannot read the settings in {}", path));
    try {
      for (const CLI::ConfigItem& item : CLI::ConfigBase().from_config(file)) {
        const auto bad = [&](std::string_view why) {
          return absl::InvalidArgumentError(fmt::format("{}: '{}' {}", path, item.fullname(), why));
        };
        CLI::Option* option =
            item.parents.empty() ? app->get_option_no_throw("--" + item.name) : nullptr;
        if (option == nullptr || item.name == "config" || item.name == "help")
          return bad("is no setting; they are named as the flags");
        if (item.inputs.size() != 1) return bad("must have one value");
        if (option->count() > 0) continue;  // the command line or the environment has spoken
        option->add_result(item.inputs[0]);
        option->run_callback();
      }
    } catch (const CLI::Error& error) {
      return absl::InvalidArgumentError(fmt::format("{}: {}", path, error.what()));
    }
    return absl::OkStatus();
  };
}

void Flags::Examples(const std::string& text) {
  app_->footer("Examples:\n" + text +
               "\n\nEach flag can also be set by VERICACHE_<LONG NAME> in the environment.");
}

void ModelFlags::Declare(Flags* flags) {
  flags->Group("Model");
  flags->Name("-m,--model", "MODEL", "GGUF file, or the name of one in the models folder", &model);
  flags->Integer("--ctx", "N", "Context in tokens (default: the model's, or what memory allows)",
                 &ctx, 1, int64_t{1} << 40);
  DeclareRope(flags);
  flags->Integer("--threads", "N", "Compute threads (default: physical cores at hand)", &threads, 1,
                 1024);
  flags->Switch("--progress", "Show progress even if stderr is no terminal", &progress);
  flags->Custom("--kv-memory", "SIZE",
                "RAM for all K/V, such as 64MiB; the rest is on disk (default: all in RAM)",
                [this](const std::string& text) { return ParseBytes(text, &kv_memory); });
  flags->Name("--kv-dir", "DIR", "Folder for K/V beyond --kv-memory (default /var/tmp)", &kv_dir);
  flags->Group("");
  flags->Custom("--kv-read-limit", "SIZE", "Bytes a second read back from --kv-dir at most",
                [this](const std::string& text) { return ParseBytes(text, &kv_read_limit); });
  flags->Text("--isa", "NAME", "Kernels: scalar, avx2, avx512", &isa);
  flags->Integer("--chunk", "N", "Rows of a prefill pass", &chunk, 1, 1 << 20);
  flags->Group("Options");
}

// What a wrong combination means only the model file can tell; see Engine::Load().
void ModelFlags::DeclareRope(Flags* flags) {
  flags->Custom("--rope-scaling", "TYPE",
                "none, linear, yarn: reach beyond the trained context (default: the model file's)",
                [this](const std::string& text) {
                  rope.scaling = text;
                  const bool known = text == "none" || text == "linear" || text == "yarn";
                  return known ? absl::OkStatus()
                               : absl::InvalidArgumentError(
                                     fmt::format("'{}' is none of none, linear, yarn", text));
                });
  flags->Custom("--rope-scale", "X", "Make the context X times as long, such as 4",
                [this](const std::string& text) {
                  const bool good = ParseDouble(text, &rope.scale) && std::isfinite(rope.scale) &&
                                    rope.scale >= 1;
                  return good ? absl::OkStatus()
                              : absl::InvalidArgumentError(
                                    fmt::format("'{}' is not a number of at least 1", text));
                });
  flags->Integer("--rope-orig-context", "N",
                 "Tokens that the model was trained for (default: what its file says)",
                 &rope.orig_context, 1, 1 << 28);
}

// Several are joined: the engine takes one text. A URL is checked here, before a model is loaded.
void PrefixFlags::DeclareStore(Flags* flags) {
  flags->List("--prefix-store", "STORE",
              "Keep K/V here: DIR, redis://..., s3://...; again for a further tier, near to far",
              [this](const std::vector<std::string>& texts) {
                store.clear();
                for (const std::string& text : texts) {
                  if (text.empty()) return absl::InvalidArgumentError("the name is empty");
                  store += (store.empty() ? "" : ",") + text;
                }
                return CheckPrefixStore(store);
              });
}

void PrefixFlags::Declare(Flags* flags) {
  flags->Group("Prefix store");
  DeclareStore(flags);
  flags->Custom("--prefix-store-mode", "MODE", "rw, or ro: write nothing (default rw)",
                [this](const std::string& text) {
                  mode = text;
                  return text == "rw" || text == "ro" ? absl::OkStatus()
                                                      : absl::InvalidArgumentError(fmt::format(
                                                            "'{}' is neither rw nor ro", text));
                });
  DeclareSize(flags);
  flags->Group("Options");
}

void PrefixFlags::DeclareSize(Flags* flags) {
  flags->Custom("--prefix-store-size", "SIZE",
                "Bytes the store may take, such as 8GiB (default: what its volume has free)",
                [this](const std::string& text) { return ParseBytes(text, &store_bytes); });
}

void PrefixFlags::DeclarePlan(Flags* flags) {
  flags->Group("Prefix store");
  flags->Custom("--prefix-plan", "PLAN",
                "From a store far away: auto, load, draft-first, recompute; with --verifier also "
                "remote, remote-plain (default auto)",
                [this](const std::string& text) {
                  plan = text;
                  constexpr std::string_view kPlans[] = {"auto",      "load",   "draft-first",
                                                         "recompute", "remote", "remote-plain"};
                  const bool good =
                      std::find(std::begin(kPlans), std::end(kPlans), text) != std::end(kPlans);
                  return good ? absl::OkStatus()
                              : absl::InvalidArgumentError(
                                    fmt::format("'{}' is none of auto, load, draft-first, "
                                                "recompute, remote, remote-plain",
                                                text));
                });
  flags->Group("Options");
}

void DecodingFlags::DeclareDraft(Flags* flags) {
  flags->Group("Draft");
  flags->Custom(
      "--draft", "SPEC",
      fmt::format("Draft KV: SELECTOR[:FRACTION][+CODEC], CODEC, or off (default {})", draft),
      [this](const std::string& text) {
        draft = text;
        return CanonicalDraftSpec(text).status();
      });
  flags->Custom(
      "--draft-len", "N", "Tokens drafted a round, or auto (default auto)",
      [this](const std::string& text) {
        int64_t parsed = 0;
        if (text != "auto" && !ParseInteger(text, 1, kMaxDraftLen, &parsed).ok())
          return absl::InvalidArgumentError(fmt::format(
              "'{}' is neither auto nor a whole number from 1 to {}", text, kMaxDraftLen));
        draft_len = static_cast<int>(parsed);
        return absl::OkStatus();
      });
  flags->Custom("--propose", "WHAT",
                "Also draft by ngram, model, or both: ngram,model; or off (default: as it pays)",
                [this](const std::string& text) {
                  propose = text;
                  const bool known = text == "ngram" || text == "model" || text == "ngram,model" ||
                                     text == "model,ngram" || text == "off";
                  return known ? absl::OkStatus()
                               : absl::InvalidArgumentError(fmt::format(
                                     "'{}' is none of ngram, model, ngram,model, off", text));
                });
  flags->Name("--draft-model", "MODEL", "A small model of the same tokenizer, for proposals",
              &draft_model);
  flags->Group("Options");
}

void DecodingFlags::DeclareSampling(Flags* flags, const std::string& seed_default) {
  flags->Group("Sampling");
  flags->Real("--temp", "T", "Temperature, 0 to 100 (default 0: greedy)", &sampling.temperature, 0,
              100);
  flags->Integer("--top-k", "N", "Keep the N likeliest tokens (default 0: all)", &sampling.top_k, 0,
                 int64_t{1} << 40);
  flags->Real("--top-p", "P", "Keep the likeliest tokens that sum to P (default 1: all)",
              &sampling.top_p, 1e-9F, 1);
  flags->Real("--min-p", "P", "Keep tokens of at least P times the best's probability (default 0)",
              &sampling.min_p, 0, 1);
  flags->Custom("--seed", "N", fmt::format("Seed of the sampling (default: {})", seed_default),
                [this](const std::string& text) {
                  uint64_t parsed = 0;
                  if (text.find('-') != std::string::npos || !ParseInt(text, &parsed))
                    return absl::InvalidArgumentError(fmt::format(
                        "'{}' is not a whole number from 0 to 18446744073709551615", text));
                  seed = parsed;
                  return absl::OkStatus();
                });
  flags->Group("Options");
}

SamplingOptions DecodingFlags::SettleSampling() const {
  SamplingOptions settled = sampling;
  settled.seed = seed.value_or(0);
  if (!seed.has_value() && settled.temperature > 0) {
    settled.seed = RandomSeed();
    Notice(fmt::format("seed {}", settled.seed));
  }
  return settled;
}

}  // namespace vericache::cli
