// Runs a fuzz target for about a second without libFuzzer: every seed of a folder as it is, then
// mutations of them.
//
// Input number i is a pure function of the seeds and i, so a failure repeats. When the process
// dies, the input is left in smoke-crash.bin, or in the file named by the second argument.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// Present in sanitizer builds, which end the process without a signal.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Bytes = std::vector<uint8_t>;

constexpr auto kDuration = std::chrono::milliseconds(1000);
constexpr int kMaxMutations = 5;
constexpr size_t kMaxInputBytes = 1 << 16;
constexpr uint64_t kInteresting[] = {0,
                                     1,
                                     2,
                                     7,
                                     8,
                                     16,
                                     31,
                                     32,
                                     33,
                                     64,
                                     127,
                                     128,
                                     255,
                                     256,
                                     4096,
                                     0x7fff,
                                     0x8000,
                                     0xffff,
                                     0x7fffffff,
                                     0x80000000,
                                     0xffffffff,
                                     uint64_t{1} << 32,
                                     uint64_t{1} << 60,
                                     uint64_t{1} << 61,
                                     uint64_t{1} << 62,
                                     ~uint64_t{0} >> 1,
                                     uint64_t{1} << 63,
                                     ~uint64_t{0} - 31,
                                     ~uint64_t{0}};

const uint8_t* current_data = nullptr;
size_t current_size = 0;
uint64_t num_executions = 0;
const char* crash_path = "smoke-crash.bin";

// Only calls that are safe within a signal handler.
void SaveInput() {
  if (current_data == nullptr) return;
  const int fd = open(crash_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) return;
  size_t written = 0;
  while (written < current_size) {
    const ssize_t step = write(fd, current_data + written, current_size - written);
    if (step <= 0) break;
    written += static_cast<size_t>(step);
  }
  close(fd);
  static const char kNote[] = "smoke: the failing input was saved: ";
  (void)!write(STDERR_FILENO, kNote, sizeof(kNote) - 1);
  (void)!write(STDERR_FILENO, crash_path, std::strlen(crash_path));
  (void)!write(STDERR_FILENO, "\n", 1);
  current_data = nullptr;
}

void OnSignal(int signal_number) {
  SaveInput();
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

void Execute(const Bytes& input) {
  // A block of exactly this size, so that the sanitizer sees the first byte behind it.
  const std::unique_ptr<uint8_t[]> exact(new uint8_t[input.size()]);
  std::copy(input.begin(), input.end(), exact.get());
  current_data = exact.get();
  current_size = input.size();
  LLVMFuzzerTestOneInput(exact.get(), input.size());
  current_data = nullptr;
  ++num_executions;
}

void Mutate(const std::vector<Bytes>& seeds, std::mt19937_64* random, Bytes* input) {
  const auto below = [&](size_t limit) { return static_cast<size_t>((*random)() % limit); };
  const size_t size = input->size();
  if (size == 0) {
    input->push_back(static_cast<uint8_t>((*random)()));
    return;
  }
  const size_t at = below(size);
  const size_t run = std::min(size - at, 1 + below(32));
  switch (below(7)) {
    case 0:  // one bit
      (*input)[at] ^= static_cast<uint8_t>(1 << below(8));
      break;
    case 1:  // one byte
      (*input)[at] = static_cast<uint8_t>((*random)());
      break;
    case 2: {  // a number that breaks careless arithmetic
      const uint64_t value = kInteresting[below(std::size(kInteresting))];
      const size_t width = std::min(size - at, size_t{1} << below(4));
      std::memcpy(input->data() + at, &value, width);
      break;
    }
    case 3:  // the end cut off
      input->resize(at);
      break;
    case 4:  // a run taken out
      input->erase(input->begin() + at, input->begin() + at + run);
      break;
    case 5: {  // a run doubled
      const Bytes copy(input->begin() + at, input->begin() + at + run);
      input->insert(input->begin() + at, copy.begin(), copy.end());
      break;
    }
    default: {  // a run of another seed
      const Bytes& other = seeds[below(seeds.size())];
      if (other.empty()) break;
      const size_t from = below(other.size());
      const size_t length = std::min({other.size() - from, size - at, 1 + below(64)});
      std::copy_n(other.begin() + from, length, input->begin() + at);
    }
  }
  if (input->size() > kMaxInputBytes) input->resize(kMaxInputBytes);
}

// By name, so that the order does not depend on the file system.
std::vector<Bytes> LoadSeeds(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: fuzz_NAME_smoke CORPUS_FOLDER [CRASH_FILE]\n");
    return 2;
  }
  if (argc > 2) crash_path = argv[2];
  const std::vector<Bytes> seeds = LoadSeeds(argv[1]);
  if (seeds.empty()) {
    std::fprintf(stderr, "smoke: no seeds in %s\n", argv[1]);
    return 1;
  }
  if (&__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(SaveInput);
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(number, OnSignal);
  }
  for (const Bytes& seed : seeds) Execute(seed);
  const auto end = std::chrono::steady_clock::now() + kDuration;
  for (uint64_t i = 0; std::chrono::steady_clock::now() < end; ++i) {
    std::mt19937_64 random(i);
    Bytes input = seeds[i % seeds.size()];
    const uint64_t num_mutations = 1 + random() % kMaxMutations;
    for (uint64_t m = 0; m < num_mutations; ++m) Mutate(seeds, &random, &input);
    Execute(input);
  }
  std::printf("smoke: %llu executions from %zu seeds\n",
              static_cast<unsigned long long>(num_executions), seeds.size());
  return 0;
}
