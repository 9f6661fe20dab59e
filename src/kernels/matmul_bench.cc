// Speed of the weight kernels: GOPS (2 per weight and row) and GB/s of packed weights, beside a
// plain read of the same bytes and the int8 peak of this CPU, all interleaved in one run.
//
//   matmul_bench [TYPE|all] [rows,rows,...] [threads,...] [table]
//
// Outputs are compared with the judge's before anything is timed: unequal bits, no number. Figures
// come from CPU time, since the machine is shared; those of the wall clock stand beside them.
#include <algorithm>
#include <atomic>
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

double Now(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Seconds of repeated regions: by the wall clock, and by the CPU time of the tasks divided by the
// number of threads, which other jobs on the machine stretch far less.
struct Samples {
  std::vector<double> wall, cpu;
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
  acts->view = {ActFormatOf(c.type), c.cols,           acts->f32.data(), acts->q.data(),
                acts->scale.data(),  acts->sums.data()};
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

// Runs the tasks on the pool; adds the CPU seconds of all of them to *cpu.
template <typename Task>
void TimedTasks(ThreadPool* pool, int64_t num_tasks, double* cpu, const Task& task_fn) {
  std::atomic<double> seconds{0.0};
  pool->ParallelFor(num_tasks, [&](int64_t task, int) {
    const double start = Now(CLOCK_THREAD_CPUTIME_ID);
    task_fn(task);
    seconds.fetch_add(Now(CLOCK_THREAD_CPUTIME_ID) - start);
  });
  *cpu += seconds.load();
}

template <typename Body>
void AddSample(ThreadPool* pool, const Body& body, Samples* samples) {
  const double start = Now(CLOCK_MONOTONIC);
  double cpu = 0.0;
  body(&cpu);
  samples->wall.push_back(Now(CLOCK_MONOTONIC) - start);
  samples->cpu.push_back(cpu / pool->num_threads());
}

void Run(const KernelTable& table, const PackedMatrix& w, const Activations& x, int64_t rows,
         ThreadPool* pool, float* y, double* cpu) {
  // Decoding has little work in a matrix: one task a thread, as a forward pass would do it.
  const int64_t tiles = (w.rows + kOutTile - 1) / kOutTile;
  const int64_t per_thread = (tiles + pool->num_threads() - 1) / pool->num_threads() * kOutTile;
  const int64_t step = rows < 8 ? per_thread : kOutsPerTask;
  TimedTasks(pool, (w.rows + step - 1) / step, cpu, [&](int64_t task) {
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

// One weight matrix in as many packed copies as make it come from memory, and the judge's copy.
struct Bench {
  const KernelTable& table;
  const Case& c;
  size_t bytes = 0;   // of one copy
  size_t stride = 0;  // from copy to copy
  size_t copies = 0;
  AlignedBuffer<uint8_t> packed;
  AlignedBuffer<uint8_t> judge_packed;

  PackedMatrix Copy(size_t i) const { return {c.type, c.rows, c.cols, packed.data() + i * stride}; }
};

Bench MakeBench(const KernelTable& table, const Case& c) {
  const auto src = RandomMatrix(c);
  const KernelTable& judge = *AllKernelTables()[0];
  Bench bench{table, c};
  bench.bytes = table.packed_bytes(c.type, c.rows, c.cols);
  bench.stride = (bench.bytes + 63) / 64 * 64;
  bench.copies = std::max<size_t>(1, kWorkingSetBytes / bench.stride);
  bench.packed.Resize(bench.copies * bench.stride);
  bench.packed.Fill(0);  // so that packing is not timed with page faults
  const double start = Now(CLOCK_THREAD_CPUTIME_ID);
  table.pack(c.type, c.rows, c.cols, src.data(), bench.packed.data(), 0, c.rows);
  const double seconds = Now(CLOCK_THREAD_CPUTIME_ID) - start;
  for (size_t i = 1; i < bench.copies; ++i) {
    std::memcpy(bench.packed.data() + i * bench.stride, bench.packed.data(), bench.bytes);
  }
  bench.judge_packed.Resize(judge.packed_bytes(c.type, c.rows, c.cols));
  judge.pack(c.type, c.rows, c.cols, src.data(), bench.judge_packed.data(), 0, c.rows);
  const double weights = static_cast<double>(c.rows * c.cols);
  std::printf("%s %ldx%ld  %.4f B/weight (file %.4f), pack %.2f Gweights/s\n", InfoOf(c.type).name,
              static_cast<long>(c.rows), static_cast<long>(c.cols),
              static_cast<double>(bench.bytes) / weights, static_cast<double>(src.size()) / weights,
              weights / seconds * 1e-9);
  return bench;
}

void CheckAgainstJudge(const Bench& bench, const Acts& acts, int64_t rows, ThreadPool* pool) {
  const Case& c = bench.c;
  std::vector<float> want(rows * c.rows), y(rows * c.rows);
  const PackedMatrix judge_w = {c.type, c.rows, c.cols, bench.judge_packed.data()};
  AllKernelTables()[0]->matmul(judge_w, acts.view, rows, 0, c.rows, want.data(), c.rows);
  double cpu = 0.0;
  Run(bench.table, bench.Copy(0), acts.view, rows, pool, y.data(), &cpu);
  VC_CHECK(std::memcmp(y.data(), want.data(), y.size() * sizeof(float)) == 0);
}

void Measure(const Bench& bench, const Acts& acts, int64_t rows, int threads) {
  ThreadPool pool(threads);
  CheckAgainstJudge(bench, acts, rows, &pool);
  std::vector<float> y(rows * bench.c.rows);
  // Few rows walk through all copies (bound by memory); many need fewer.
  const size_t used = std::min<size_t>(bench.copies, rows < 8 ? bench.copies : rows < 32 ? 8 : 2);
  const int64_t peak_steps = 2'000'000;
  Samples kernel, read, peak;
  for (int round = 0; round < kRounds; ++round) {
    AddSample(
        &pool,
        [&](double* cpu) {
          for (size_t i = 0; i < used; ++i) {
            Run(bench.table, bench.Copy(i), acts.view, rows, &pool, y.data(), cpu);
          }
        },
        &kernel);
    const size_t part = (used * bench.stride / threads + 63) / 64 * 64;
    AddSample(
        &pool,
        [&](double* cpu) {
          TimedTasks(&pool, threads, cpu, [&](int64_t task) {
            const size_t begin = std::min(used * bench.stride, part * task);
            const size_t end = std::min(used * bench.stride, begin + part);
            g_sink = ReadBytes(bench.packed.data() + begin, end - begin);
          });
        },
        &read);
    AddSample(
        &pool,
        [&](double* cpu) {
          TimedTasks(&pool, threads, cpu, [&](int64_t) { g_sink = Int8Peak(peak_steps); });
        },
        &peak);
  }
  const double gops = 2e-9 * static_cast<double>(bench.c.rows * bench.c.cols * rows) * used;
  const double gigabytes = 1e-9 * static_cast<double>(bench.bytes * used);
  const double peak_gops = 1e-9 * threads * peak_steps * 8 * 64;
  const double t = Median(kernel.cpu);
  std::printf(
      "  rows %3ld threads %d  %7.1f GOPS (%3.0f%% of peak %5.1f)  %6.2f GB/s (%3.0f%% of "
      "read %5.2f)  by wall clock %6.1f GOPS %5.2f GB/s (%3.0f%% of read)\n",
      static_cast<long>(rows), threads, gops / t, 100 * gops / t * Median(peak.cpu) / peak_gops,
      peak_gops / Median(peak.cpu), gigabytes / t, 100 * Median(read.cpu) / t,
      gigabytes / Median(read.cpu), gops / Median(kernel.wall), gigabytes / Median(kernel.wall),
      100 * Median(read.wall) / Median(kernel.wall));
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
    if (type != "all" && type != InfoOf(c.type).name) continue;
    const Bench bench = MakeBench(**table, c);
    for (int64_t num_rows : rows) {
      Acts acts;
      FillActs(**table, c, num_rows, &acts);
      for (int num_threads : threads) Measure(bench, acts, num_rows, num_threads);
    }
  }
  return 0;
}

}  // namespace
}  // namespace vericache

int main(int argc, char** argv) { return vericache::Main(argc, argv); }
