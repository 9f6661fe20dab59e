// Runs PullModel for pull_test.py:
//   pull_main ENDPOINT MODELS_DIR MODEL [TOKEN [NUM_RETRIES [STALL_S]]]
// Prints the path, or the error as "CODE: message" with exit status 1. Notes go to standard error.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "hub/hub.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: pull_main ENDPOINT MODELS_DIR MODEL [TOKEN [RETRIES [STALL]]]\n");
    return 2;
  }
  vericache::PullOptions options;
  options.endpoint = argv[1];
  options.models_dir = argv[2];
  options.model = argv[3];
  if (argc > 4) options.token = argv[4];
  if (argc > 5) options.num_retries_max = std::atoi(argv[5]);
  if (argc > 6) options.stall_timeout_s = std::atoi(argv[6]);
  options.retry_delay_ms = 10;
  options.connect_timeout_ms = 2000;
  options.on_note = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  int64_t last = -1, total = -1;
  options.on_progress = [&](int64_t bytes_done, int64_t bytes_total) {
    last = bytes_done;
    total = bytes_total;
  };
  const auto path = vericache::PullModel(options);
  if (!path.ok()) {
    std::printf("%s: %s\n", absl::StatusCodeToString(path.status().code()).c_str(),
                std::string(path.status().message()).c_str());
    return 1;
  }
  if (last != total) {
    std::printf("progress ended at %lld of %lld\n", static_cast<long long>(last),
                static_cast<long long>(total));
    return 1;
  }
  std::printf("%s\n", path->c_str());
  return 0;
}
