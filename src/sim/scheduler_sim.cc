// scheduler_sim: replays one seed of the scheduler's simulation, many of them, or the comparisons.
//
//   scheduler_sim --seed N [--verbose]
//   scheduler_sim --from N --count M
//   scheduler_sim --stagger | --regret | --regret-row N

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sim/comparison.h"
#include "sim/simulation.h"

namespace vericache {
namespace {

bool RunSeed(uint64_t seed, bool verbose, bool print) {
  SimOptions options;
  options.verbose = verbose;
  const absl::StatusOr<SimStats> stats = RunScenario(MakeScenario(seed), options);
  if (!stats.ok()) {
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                std::string(stats.status().message()).c_str());
    return false;
  }
  if (print) {
    std::printf(
        "seed %llu: %.3f s, %lld steps, %lld tokens, %lld rounds, stall %.3f s, "
        "%lld preempted, %lld retried\n",
        static_cast<unsigned long long>(seed), stats->seconds,
        static_cast<long long>(stats->num_steps), static_cast<long long>(stats->num_emitted),
        static_cast<long long>(stats->num_rounds), stats->stall_s,
        static_cast<long long>(stats->num_preempted), static_cast<long long>(stats->num_retried));
  }
  return true;
}

int Main(int argc, char** argv) {
  uint64_t from = 0, count = 0;
  bool verbose = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const bool has_value = i + 1 < argc;
    if (arg == "--verbose") {
      verbose = true;
    } else if (arg == "--stagger") {
      std::fputs(StaggerTable(CompareStagger()).c_str(), stdout);
    } else if (arg == "--regret") {
      std::fputs(RegretTable(CompareController(1)).c_str(), stdout);
    } else if (arg == "--stagger-row" && has_value) {
      PrintStaggerRun(std::atoi(argv[++i]));
    } else if (arg == "--regret-row" && has_value) {
      PrintControllerRun(std::atoi(argv[++i]));
    } else if (arg == "--seed" && has_value) {
      from = std::strtoull(argv[++i], nullptr, 10);
      count = 1;
    } else if (arg == "--from" && has_value) {
      from = std::strtoull(argv[++i], nullptr, 10);
      count = count == 0 ? 1 : count;
    } else if (arg == "--count" && has_value) {
      count = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::fprintf(stderr,
                   "usage: scheduler_sim --seed N [--verbose] | --from N --count M | "
                   "--stagger | --regret | --regret-row N\n");
      return 2;
    }
  }
  bool good = true;
  for (uint64_t seed = from; seed < from + count; ++seed) {
    good = RunSeed(seed, verbose, count == 1) && good;
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace vericache

int main(int argc, char** argv) { return vericache::Main(argc, argv); }
