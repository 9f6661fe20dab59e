// Flags: strict numbers, an environment twin for each, one way of wording what is wrong.
//
// The only header of ours that stands before CLI11; commands see Flags. Every flag has the twin
// VERICACHE_<LONG NAME> (`--draft-len`: VERICACHE_DRAFT_LEN); the command line wins.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "vericache/options.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace vericache::cli {

class Flags {
 public:
  explicit Flags(CLI::App* app) : app_(app) {}

  // `names` is "-n,--max-tokens"; `what` stands for the value in --help ("N").
  void Text(const std::string& names, const std::string& what, const std::string& help,
            std::string* value);
  // Text that must not be empty: a file or a name.
  void Name(const std::string& names, const std::string& what, const std::string& help,
            std::string* value);
  // Decimal digits only, within [min, max].
  void Integer(const std::string& names, const std::string& what, const std::string& help,
               int64_t* value, int64_t min, int64_t max);
  void Integer(const std::string& names, const std::string& what, const std::string& help,
               int* value, int min, int max);
  // Finite, within [min, max].
  void Real(const std::string& names, const std::string& what, const std::string& help,
            float* value, float min, float max);
  void Switch(const std::string& names, const std::string& help, bool* value);
  // `set` gets the text; its error's message is put after the flag's name.
  void Custom(const std::string& names, const std::string& what, const std::string& help,
              std::function<absl::Status(const std::string&)> set);
  // May be given several times, and gets all of it; the twin holds one text.
  void List(const std::string& names, const std::string& what, const std::string& help,
            std::function<absl::Status(const std::vector<std::string>&)> set);
  // A command below this one; one of them must be given. `chosen` is called if it was.
  void Subcommand(const std::string& name, const std::string& summary,
                  const std::function<void(Flags*)>& declare, std::function<void()> chosen);
  // Arguments without a name, any number of them.
  void Positionals(const std::string& what, const std::string& help,
                   std::vector<std::string>* values);
  // An argument without a name; has no twin.
  void Positional(const std::string& what, const std::string& help, std::string* value);

  // Reads settings from a file, `long-name = value` a line (INI or TOML as CLI11 reads them,
  // without sections), into those flags that neither the command line nor the environment has
  // given: to be called when those are parsed. ERRORS: kInvalidArgument naming file and setting,
  // kNotFound.
  std::function<absl::Status(const std::string& path)> ConfigReader();

  // Heading in --help for the flags that follow; "" hides them.
  void Group(const std::string& heading) { group_ = heading; }
  // Shown below the flags.
  void Examples(const std::string& text);

 private:
  void Finish(CLI::Option* option, const std::string& what);
  CLI::Option* Option(const std::string& names, const std::string& what, const std::string& help,
                      std::function<absl::Status(const std::vector<std::string>&)> set);

  CLI::App* app_;
  std::string group_ = "Options";
};

// "123", within [min, max]. ERRORS: kInvalidArgument: "'x' is not a whole number from 1 to 8".
absl::Status ParseInteger(const std::string& text, int64_t min, int64_t max, int64_t* value);
// "90s", "15m", "2h", "7d", "4w".
absl::Status ParseAge(const std::string& text, int64_t* seconds);
// "8GiB", "512M", "1e9" bytes; K, M, G, T are powers of 1024 with or without "iB" or "B".
absl::Status ParseBytes(const std::string& text, uint64_t* bytes);

// The flags that choose and load a model.
struct ModelFlags {
  std::string model;
  int threads = 0;
  int64_t ctx = 0;
  RopeOptions rope;
  std::string isa;
  int64_t chunk = 512;
  bool progress = false;
  uint64_t kv_memory = 0;  // 0: all K/V in RAM, without a limit
  std::string kv_dir;
  uint64_t kv_read_limit = 0;

  void Declare(Flags* flags);

 private:
  void DeclareRope(Flags* flags);
};

// The flags of prefixes that outlive the process (docs/prefix_cache.md).
struct PrefixFlags {
  std::string store;  // one or several with commas between them, near to far
  std::string mode = EngineOptions().prefix_store_mode;
  std::string plan = EngineOptions().prefix_plan;
  uint64_t store_bytes = 0;
  uint64_t memory_bytes = 0;  // has no flag here: a command of one answer gains nothing by it

  void Declare(Flags* flags);
  void DeclareStore(Flags* flags);
  void DeclareSize(Flags* flags);
  // For commands that look at where a prefix comes from.
  void DeclarePlan(Flags* flags);
};

// The flags that say how to draft and to sample.
struct DecodingFlags {
  std::string draft = Request().draft;
  int draft_len = 0;
  std::string propose;      // as Request::propose
  std::string draft_model;  // a file or a name; "": none
  SamplingOptions sampling;
  std::optional<uint64_t> seed;

  void DeclareDraft(Flags* flags);
  // `seed_default` says what no --seed means.
  void DeclareSampling(Flags* flags, const std::string& seed_default = "random, and told");
  // The sampling with its seed: where none was given and the temperature is not 0, a random one,
  // told on stderr, so that any answer can be made again.
  SamplingOptions SettleSampling() const;
};

}  // namespace vericache::cli
