// Speed of the weight kernels: GOPS (2 per weight and row) and GB/s of packed weights, beside a
// plain read of the same bytes and the int8 peak of this CPU, all interleaved in one run.
//
//   matmul_bench [TYPE|all] [rows,rows,...] [threads,...] [table]
//
// Outputs are compared with the judge's before anything is timed: unequal bits, no number.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/tensor_type.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace vericache {
namespace {

// Wall time, or with one thread its CPU time, which other jobs on the machine do not stretch.
class Stopwatch {
 public:
  explicit Stopwatch(int num_threads) : cpu_(num_threads == 1), start_(Now()) {}
  double Seconds() const { return Now() - start_; }

 private:
  double Now() const {
    timespec t;
    clock_gettime(cpu_ ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  bool cpu_;
  double start_;
};

struct Case {
  TensorType type;
  int64_t rows;
  int64_t cols;
};
// Shapes of qwen2.5-coder 0.5b, 1.5b and smollm2.
constexpr Case kCases[] = {
    {TensorType::kQ5_0, 4864, 896},  {TensorType::kQ8_0, 8192, 896},
    {TensorType::kQ4_1, 1536, 576},  {TensorType::kQ4_K, 8960, 1536},
    {TensorType::kQ6_K, 1536, 8960}, {TensorType::kF16, 1024, 1024},
};
// Copies of each matrix, so that no cache holds them all.
constexpr size_t kWorkingSetBytes = size_t{160} << 20;
constexpr int kRounds = 7;
// Outputs one task computes.
constexpr int64_t kOutsPerTask = 128;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Random bits; f16 fields set to 2^-7 so that no sum overflows.
std::vector<uint8_t> RandomMatrix(const Case& c) {
  const TensorTypeInfo& info = InfoOf(c.type);
  std::vector<uint8_t> bytes(c.rows * c.cols / info.block_values * info.block_bytes);
  uint64_t state = 1;
  for (uint8_t& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<uint8_t>(state >> 56);
  }
  const uint16_t half = 0x2000;
  for (size_t b = 0; b < bytes.size(); b += info.block_bytes) {
    if (c.type == TensorType::kQ6_K) {
      std::memcpy(&bytes[b + 208], &half, 2);
    } else {
      std::memcpy(&bytes[b], &half, 2);
    }
    if (c.type == TensorType::kQ4_1 || c.type == TensorType::kQ4_K) {
      std::memcpy(&bytes[b + 2], &half, 2);
    }
  }
  return bytes;
}

struct Acts {
  std::vector<float> f32;
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int16_t> sums;
  Activations view;
};

void FillActs(const KernelTable& table, const Case& c, int64_t rows, Acts* acts) {
  acts->f32.resize(rows * c.cols);
  for (size_t i = 0; i < acts->f32.size(); ++i) {
    acts->f32[i] = static_cast<float>((i * 2654435761u >> 16) % 2001) / 1000.0f - 1.0f;
  }
  acts->q.resize(rows * c.cols);
  acts->scale.resize(rows * c.cols / 32);
  acts->sums.resize(rows * c.cols / 16);
  acts->view = {ActFormatOf(c.type),  c.cols,           acts->f32.data(), acts->q.data(),
                acts->scale.data(), acts->sums.data()};
  for (int64_t r = 0; r < rows; ++r) {
    const float* x = &acts->f32[r * c.cols];
    int8_t* q = &acts->q[r * c.cols];
    if (acts->view.format == ActFormat::kInt8Per32) {
      table.quantize_per32(x, c.cols, q, &acts->scale[r * c.cols / 32],
                           &acts->sums[r * c.cols / 32]);
    } else if (acts->view.format == ActFormat::kInt8Per256) {
      table.quantize_per256(x, c.cols, q, &acts->scale[r * c.cols / 256],
                            &acts->sums[r * c.cols / 16]);
    }
  }
}

void Run(const KernelTable& table, const PackedMatrix& w, const Activations& x, int64_t rows,
         ThreadPool* pool, float* y) {
  // Decoding has little work in a matrix: one task a thread, as a forward pass would do it.
  const int64_t tiles = (w.rows + kOutTile - 1) / kOutTile;
  const int64_t per_thread = (tiles + pool->num_threads() - 1) / pool->num_threads() * kOutTile;
  const int64_t step = rows < 8 ? per_thread : kOutsPerTask;
  pool->ParallelFor((w.rows + step - 1) / step, [&](int64_t task, int) {
    table.matmul(w, x, rows, task * step, std::min(w.rows, (task + 1) * step), y, w.rows);
  });
}

// Reads all bytes; the sum keeps the compiler honest.
uint64_t ReadBytes(const uint8_t* data, size_t size) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 64 <= size; i += 64) {
    for (int j = 0; j < 8; ++j) {
      uint64_t word;
      std::memcpy(&word, data + i + 8 * j, 8);
      sums[j] ^= word;
    }
  }
  uint64_t sum = 0;
  for (uint64_t s : sums) sum ^= s;
  return sum;
}

#if defined(__x86_64__)
using Vec = long long __attribute__((vector_size(32)));
// vpmaddubsw and vpaddw on registers alone: what no kernel can pass.
__attribute__((target("avx2"), noinline)) int64_t Int8Peak(int64_t steps) {
  Vec w = {1, 2, 3, 4}, x = {5, 6, 7, 8};
  Vec t[8] = {};
  for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      Vec p;
      __asm__ volatile("vpmaddubsw %2, %1, %0" : "=x"(p) : "x"(w), "x"(x));
      __asm__ volatile("vpaddw %1, %0, %0" : "+x"(t[j]) : "x"(p));
    }
  }
#pragma GCC unroll 8
  for (int j = 1; j < 8; ++j) t[0] ^= t[j];
  return t[0][0];
}
#else
int64_t Int8Peak(int64_t steps) { return steps; }
#endif

volatile uint64_t g_sink;

struct Times {
  std::vector<double> kernel, read, peak;
};

void BenchCase(const KernelTable& table, const Case& c, const std::vector<int64_t>& row_counts,
               const std::vector<int>& thread_counts) {
  const auto src = RandomMatrix(c);
  const KernelTable& judge = *AllKernelTables()[0];
  const size_t bytes = table.packed_bytes(c.type, c.rows, c.cols);
  const size_t stride = (bytes + 63) / 64 * 64;
  const size_t copies = std::max<size_t>(1, kWorkingSetBytes / stride);
  AlignedBuffer<uint8_t> packed(copies * stride);
  const Stopwatch pack_watch(1);
  table.pack(c.type, c.rows, c.cols, src.data(), packed.data(), 0, c.rows);
  const double pack_seconds = pack_watch.Seconds();
  for (size_t i = 1; i < copies; ++i) std::memcpy(packed.data() + i * stride, packed.data(), bytes);
  AlignedBuffer<uint8_t> judge_packed(judge.packed_bytes(c.type, c.rows, c.cols));
  judge.pack(c.type, c.rows, c.cols, src.data(), judge_packed.data(), 0, c.rows);
  std::printf("%s %ldx%ld  %.4f B/weight (file %.4f), pack %.2f Gweights/s\n",
              InfoOf(c.type).name, static_cast<long>(c.rows), static_cast<long>(c.cols),
              static_cast<double>(bytes) / static_cast<double>(c.rows * c.cols),
              static_cast<double>(src.size()) / static_cast<double>(c.rows * c.cols),
              static_cast<double>(c.rows * c.cols) / pack_seconds * 1e-9);
  for (int64_t rows : row_counts) {
    Acts acts;
    FillActs(table, c, rows, &acts);
    std::vector<float> want(rows * c.rows), y(rows * c.rows);
    judge.matmul({c.type, c.rows, c.cols, judge_packed.data()}, acts.view, rows, 0, c.rows,
                 want.data(), c.rows);
    for (int threads : thread_counts) {
      ThreadPool pool(threads);
      const PackedMatrix first = {c.type, c.rows, c.cols, packed.data()};
      Run(table, first, acts.view, rows, &pool, y.data());
      VC_CHECK(std::memcmp(y.data(), want.data(), y.size() * sizeof(float)) == 0);
      // Few rows walk through all copies (memory-bound); many need no more than one.
      const size_t used = rows < 8 ? copies : std::min<size_t>(copies, rows < 32 ? 8 : 2);
      const double ops = 2.0 * static_cast<double>(c.rows * c.cols * rows) * used;
      const double read_bytes = static_cast<double>(bytes) * used;
      const int64_t peak_steps = 2'000'000;
      Times times;
      for (int round = 0; round < kRounds; ++round) {
        Stopwatch watch(threads);
        for (size_t i = 0; i < used; ++i) {
          const PackedMatrix w = {c.type, c.rows, c.cols, packed.data() + i * stride};
          Run(table, w, acts.view, rows, &pool, y.data());
        }
        times.kernel.push_back(watch.Seconds());
        watch = Stopwatch(threads);
        const size_t part = (used * stride / threads + 63) / 64 * 64;
        pool.ParallelFor(threads, [&](int64_t task, int) {
          const size_t begin = std::min(used * stride, part * task);
          const size_t end = std::min(used * stride, begin + part);
          g_sink = ReadBytes(packed.data() + begin, end - begin);
        });
        times.read.push_back(watch.Seconds());
        watch = Stopwatch(threads);
        pool.ParallelFor(threads, [&](int64_t, int) { g_sink = Int8Peak(peak_steps); });
        times.peak.push_back(watch.Seconds());
      }
      const double seconds = Median(times.kernel);
      const double gops = ops / seconds * 1e-9;
      const double peak = threads * peak_steps * 8 * 64.0 / Median(times.peak) * 1e-9;
      const double gbps = read_bytes / seconds * 1e-9;
      const double read = read_bytes / Median(times.read) * 1e-9;
      std::printf("  rows %3ld threads %d  %7.1f GOPS (%3.0f%% of int8 peak %5.1f)  "
                  "%6.2f GB/s (%3.0f%% of read %5.2f)  best %7.1f GOPS\n",
                  static_cast<long>(rows), threads, gops, 100 * gops / peak, peak, gbps,
                  100 * gbps / read, read,
                  ops / *std::min_element(times.kernel.begin(), times.kernel.end()) * 1e-9);
    }
  }
}

std::vector<int64_t> Numbers(const char* text) {
  std::vector<int64_t> numbers;
  for (const char* p = text; *p != '\0';) {
    char* end;
    numbers.push_back(std::strtol(p, &end, 10));
    p = *end == ',' ? end + 1 : end;
    if (end == text) break;
  }
  return numbers;
}

int Main(int argc, char** argv) {
  const std::string_view type = argc > 1 ? argv[1] : "all";
  const auto rows = Numbers(argc > 2 ? argv[2] : "1,4,8,64");
  std::vector<int> threads;
  for (int64_t n : Numbers(argc > 3 ? argv[3] : "1,2")) threads.push_back(static_cast<int>(n));
  const auto table = SelectKernels(argc > 4 ? argv[4] : "");
  if (!table.ok()) {
    std::fprintf(stderr, "%s\n", std::string(table.status().message()).c_str());
    return 1;
  }
  for (const Case& c : kCases) {
    if (type == "all" || type == InfoOf(c.type).name) BenchCase(**table, c, rows, threads);
  }
  return 0;
}

}  // namespace
}  // namespace vericache

int main(int argc, char** argv) { return vericache::Main(argc, argv); }
