// What this machine can do at most: bytes read and multiply-adds a second, on N threads.
//
//   limits THREADS [MIB] [REPEATS]
//
// Prints one JSON object with the best of the repeats. The read walks a buffer far larger than any
// cache, each thread its own part; the multiply-adds keep 12 independent vectors in registers, in
// the widest vector that the build targets. bench/run.sh builds it with -O3 -march=native.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

namespace {

using Bytes = uint64_t __attribute__((vector_size(64)));
#ifdef __AVX512F__
using Floats = float __attribute__((vector_size(64)));
#else
using Floats = float __attribute__((vector_size(32)));
#endif
constexpr int kLanes = sizeof(Floats) / sizeof(float);
constexpr int kChains = 12;
constexpr int64_t kRounds = 4'000'000;

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds until all threads have done work(index).
double Parallel(int num_threads, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  const double start = Seconds();
  for (int i = 1; i < num_threads; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  return Seconds() - start;
}

uint64_t SumPart(const Bytes* begin, size_t count) {
  Bytes a{}, b{}, c{}, d{};
  for (size_t i = 0; i + 4 <= count; i += 4) {
    a += begin[i];
    b += begin[i + 1];
    c += begin[i + 2];
    d += begin[i + 3];
  }
  a += b + c + d;
  return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}

float MultiplyAdd(float start) {
  Floats acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = Floats{} + (start + static_cast<float>(c));
  const Floats x = Floats{} + 0.5f, y = Floats{} + 0.25f;
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) acc[c] = acc[c] * x + y;  // fused: -march=native has FMA
  }
  float sum = 0;
  for (int c = 0; c < kChains; ++c) sum += acc[c][0];
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const size_t mib = argc > 2 ? static_cast<size_t>(std::atoll(argv[2])) : 1024;
  const int repeats = argc > 3 ? std::atoi(argv[3]) : 5;
  if (threads < 1 || threads > 1024 || mib < 1 || repeats < 1) {
    std::fprintf(stderr, "usage: limits THREADS [MIB] [REPEATS]\n");
    return 2;
  }
  const size_t part = (mib << 20) / sizeof(Bytes) / static_cast<size_t>(threads) / 4 * 4;
  std::vector<Bytes> buffer(part * static_cast<size_t>(threads), Bytes{} + 1);
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  std::vector<float> floats(static_cast<size_t>(threads));
  double read = 1e30, fma = 1e30;
  for (int r = 0; r < repeats; ++r) {
    const double read_now = Parallel(threads, [&](int t) {
      const size_t i = static_cast<size_t>(t);
      sums[i] = SumPart(buffer.data() + i * part, part);
    });
    const double fma_now = Parallel(threads, [&](int t) {
      floats[static_cast<size_t>(t)] = MultiplyAdd(static_cast<float>(t));
    });
    read = read_now < read ? read_now : read;
    fma = fma_now < fma ? fma_now : fma;
  }
  for (const uint64_t sum : sums) {
    if (sum != part * 8) {  // every word is 1: also keeps the reads from being left out
      std::fprintf(stderr, "limits: the buffer was not read whole\n");
      return 1;
    }
  }
  const double bytes = static_cast<double>(buffer.size() * sizeof(Bytes));
  const double flops = 2.0 * kLanes * kChains * static_cast<double>(kRounds) * threads;
  std::printf(
      "{\"threads\": %d, \"read_gb_s\": %.2f, \"fma_gflops\": %.1f, \"lanes\": %d, "
      "\"check\": %g}\n",
      threads, bytes / read / 1e9, flops / fma / 1e9, kLanes, static_cast<double>(floats[0]));
  return 0;
}
