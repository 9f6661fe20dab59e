// Speed of attention beside its limits: the fp32 FMA peak and a plain read, measured in the same
// run.
//
//   attention_bench [repetitions] [heads_per_kv]
//
// Full KV: m positions at the end of a context, every (KV head, layer) read once, heads shared out
// to threads. Draft KV: one step over int4 groups and an f16 tail. All variants of a case alternate
// with the peak loop, medians are printed. Before any timing, m positions at once are compared bit
// for bit with one at a time: unequal bits, no number.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/fp_env.h"
#include "base/huge_memory.h"
#include "kernels/kernels.h"

namespace vericache {
namespace {

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// CPU seconds of the calling thread: on a shared machine, time spent waiting for a core says
// nothing about the code.
double ThreadSeconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Runs body(thread) on `num_threads` threads; returns the CPU seconds of the slowest.
double Timed(int num_threads, const std::function<void(int)>& body) {
  std::vector<std::thread> others;
  std::vector<double> seconds(num_threads);
  const auto run = [&](int t) {
    ScopedFpEnv fp_env;
    const double start = ThreadSeconds();
    body(t);
    seconds[t] = ThreadSeconds() - start;
  };
  for (int t = 1; t < num_threads; ++t) others.emplace_back(run, t);
  run(0);
  for (std::thread& other : others) other.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

// 12 chains of 8 lanes: enough to hide the latency of FMA on every x86 of the last ten years. 16
// flops an instruction.
#if defined(__x86_64__)
void FmaLoop(int64_t rounds) {
  for (int64_t i = 0; i < rounds; ++i) {
#define VC_FMA(n) "vfmadd231ps %%ymm15, %%ymm15, %%ymm" #n "\n\t"
    asm volatile(VC_FMA(0) VC_FMA(1) VC_FMA(2) VC_FMA(3) VC_FMA(4) VC_FMA(5) VC_FMA(6) VC_FMA(7)
                     VC_FMA(8) VC_FMA(9) VC_FMA(10) VC_FMA(11)::
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                           "xmm9", "xmm10", "xmm11", "xmm15");
#undef VC_FMA
  }
}
#else
void FmaLoop(int64_t rounds) {
  typedef float Lanes __attribute__((vector_size(32)));
  Lanes a[12] = {};
  for (int64_t i = 0; i < rounds; ++i) {
    for (Lanes& lane : a) lane = lane * 0.5f + 0.5f;
  }
  asm volatile("" ::"m"(a));
}
#endif

double PeakGflops(int num_threads) {
  constexpr int64_t kRounds = 2'000'000;
  const double s = Timed(num_threads, [](int) { FmaLoop(kRounds); });
  return num_threads * kRounds * 12 * 16.0 / s / 1e9;
}

// One sequence: `num_heads` KV heads (as if of all layers), each in its own run of blocks.
struct Context {
  KvShape shape;
  std::shared_ptr<uint8_t[]> memory;  // on huge pages, as the engine's blocks are
  size_t num_bytes;
  std::vector<const uint16_t*> blocks;
  FullKvView view;

  Context(int head_dim, int64_t num_tokens, int num_heads) {
    shape = {.num_layers = 1, .num_kv_heads = num_heads, .head_dim = head_dim};
    const int64_t num_blocks = (num_tokens + 63) / 64;
    const size_t num_values = num_blocks * shape.layer_block_values();
    num_bytes = num_values * sizeof(uint16_t);
    memory = AllocateHuge(num_bytes);
    VC_CHECK(memory != nullptr);
    auto* data = reinterpret_cast<uint16_t*>(memory.get());
    uint32_t state = 1;
    for (size_t i = 0; i < num_values; ++i) {  // f16 in +-[0.5, 1)
      state = state * 1664525u + 1013904223u;
      data[i] = static_cast<uint16_t>(0x3800 | ((state >> 8) & 0x83ff));
    }
    for (int64_t b = 0; b < num_blocks; ++b) {
      blocks.push_back(data + b * shape.layer_block_values());
    }
    view = {.blocks = blocks.data(), .shape = shape, .num_tokens = num_tokens};
  }
};

uint64_t g_sink;

double ReadGbps(int num_threads, const Context& context) {
  const size_t words = context.num_bytes / 8;
  const uint64_t* p = reinterpret_cast<const uint64_t*>(context.memory.get());
  std::vector<uint64_t> sums(num_threads * 8);
  const double s = Timed(num_threads, [&](int t) {
    uint64_t sum[8] = {};
    for (size_t i = words / num_threads * t; i + 8 <= words / num_threads * (t + 1); i += 8) {
      for (int k = 0; k < 8; ++k) sum[k] += p[i + k];
    }
    for (uint64_t x : sum) sums[t * 8] += x;
  });
  for (uint64_t x : sums) g_sink += x;
  return static_cast<double>(words) * 8 / s / 1e9;
}

struct Worker {
  AlignedBuffer<float> scratch, states[2], out;
  AttnState State(int i, int64_t rows, int64_t padded) {
    states[i].Resize(rows * (padded + 17));
    float* base = states[i].data();
    return {base + rows * (padded + 16), base + rows * padded, base};
  }
};

// Attention of m positions over one KV head; out [m * heads_per_kv][head_dim].
void AttendHead(const KernelTable& table, const Context& c, int head, const float* q, int64_t m,
                int heads_per_kv, Worker* w, float* out) {
  const int64_t head_dim = c.shape.head_dim;
  const int64_t padded = c.shape.padded_head_dim();
  w->scratch.Resize(AttnScratchFloats(head_dim));
  // Equal tiles of positions within the limit of flattened rows.
  const int64_t num_tiles = (m * heads_per_kv + kMaxAttnRows - 1) / kMaxAttnRows;
  const int64_t tile = (m + num_tiles - 1) / num_tiles;
  for (int64_t first = 0; first < m; first += tile) {
    const int64_t positions = std::min(tile, m - first);
    const AttnRows rows{q + first * heads_per_kv * head_dim, positions * heads_per_kv, heads_per_kv,
                        c.view.num_tokens - m + first};
    const AttnState total = w->State(0, rows.num_rows, padded);
    const AttnState next = w->State(1, rows.num_rows, padded);
    for (int64_t s = 0; s * kSegmentTokens < rows.first_pos + positions; ++s) {
      table.attend_segment(c.view, head, rows, s, s == 0 ? total : next, w->scratch.data());
      if (s > 0) table.attend_combine(rows.num_rows, padded, next, total);
    }
    table.attend_finish(rows.num_rows, head_dim, total, out + first * heads_per_kv * head_dim,
                        head_dim);
  }
}

bool BitsEqual(const KernelTable& table, const Context& c, const float* q, int64_t m,
               int heads_per_kv) {
  Worker w;
  const int64_t row = heads_per_kv * c.shape.head_dim;
  std::vector<float> wide(m * row), narrow(row);
  AttendHead(table, c, 0, q, m, heads_per_kv, &w, wide.data());
  for (int64_t i = 0; i < m; i += 5) {
    Context* cut = const_cast<Context*>(&c);  // the same KV, seen up to position i
    const int64_t all = c.view.num_tokens;
    cut->view.num_tokens = all - m + i + 1;
    AttendHead(table, c, 0, q + i * row, 1, heads_per_kv, &w, narrow.data());
    cut->view.num_tokens = all;
    if (std::memcmp(narrow.data(), wide.data() + i * row, row * sizeof(float)) != 0) return false;
  }
  return true;
}

struct Case {
  int heads_per_kv, head_dim;
  int64_t keys, m;
};

void BenchFull(const KernelTable& table, const Context& c, const Case& k, int repetitions) {
  AlignedBuffer<float> q(k.m * k.heads_per_kv * k.head_dim);
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<float>(static_cast<int>(i * 2654435761u >> 16 & 255) - 128) / 512.0f;
  }
  if (!BitsEqual(table, c, q.data(), k.m, k.heads_per_kv)) {
    std::printf("UNEQUAL BITS\n");
    std::exit(1);
  }
  // At most ~3 GFLOP a repetition.
  const double flops_per_head = 4.0 * k.keys * k.head_dim * k.heads_per_kv * k.m;
  const int heads =
      std::max(2, std::min(c.shape.num_kv_heads, static_cast<int>(3e9 / flops_per_head) / 2 * 2));
  for (const int num_threads : {1, 2}) {
    std::vector<double> times, peaks;
    std::vector<Worker> workers(num_threads);
    for (Worker& w : workers) w.out.Resize(q.size());
    for (int rep = 0; rep < repetitions; ++rep) {
      peaks.push_back(PeakGflops(num_threads));
      times.push_back(Timed(num_threads, [&](int t) {
        for (int h = t; h < heads; h += num_threads) {
          AttendHead(table, c, h, q.data(), k.m, k.heads_per_kv, &workers[t],
                     workers[t].out.data());
        }
      }));
    }
    const double s = Median(times);
    const double gflops = heads * flops_per_head / s / 1e9;
    std::printf(
        "%d x %3d  keys %5ld  m %2ld  threads %d  %8.3f ms/head  %6.1f GFLOPS  %3.0f%% of "
        "%5.1f  %5.1f GB/s\n",
        k.heads_per_kv, k.head_dim, static_cast<long>(k.keys), static_cast<long>(k.m), num_threads,
        s / heads * 1e3, gflops, 100 * gflops / Median(peaks), Median(peaks),
        heads * 4.0 * k.keys * k.head_dim / s / 1e9);
    std::fflush(stdout);
  }
}

// One draft step: every KV head once, int4 groups (or another format) and a tail of 40 keys.
void BenchDraft(const KernelTable& table, int heads_per_kv, int head_dim, int64_t kept,
                DraftFormat format, const char* name, int repetitions) {
  const int num_heads = 48;
  const int64_t groups = kept / kDraftGroup;
  const int64_t values = groups * kDraftGroup * head_dim;
  const size_t bytes = values * BitsOf(format) / 8;
  AlignedBuffer<uint8_t> data(num_heads * 2 * bytes);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = format == DraftFormat::kF16 && i % 2 == 1 ? 0x38 : static_cast<uint8_t>(i * 167 >> 3);
  }
  AlignedBuffer<uint16_t> scales(num_heads * 2 * values / 32);
  scales.Fill(0x2c00);  // 1/16
  AlignedBuffer<uint16_t> tail(48 * head_dim);
  tail.Fill(0x3400);
  std::vector<DraftHeadView> views;
  for (int h = 0; h < num_heads; ++h) {
    const uint16_t* scale = scales.data() + h * 2 * values / 32;
    const uint8_t* d = data.data() + h * 2 * bytes;
    views.push_back({format, format, head_dim, groups, d, scale, scale, d + bytes,
                     scale + values / 32, scale + values / 32, 40, tail.data(), tail.data()});
  }
  AlignedBuffer<float> q(heads_per_kv * head_dim);
  q.Fill(0.03f);
  for (const int num_threads : {1, 2}) {
    std::vector<double> times;
    std::vector<Worker> workers(num_threads);
    for (Worker& w : workers) {
      w.out.Resize(q.size());
      w.scratch.Resize(DraftScratchFloats(heads_per_kv, views[0].num_keys(), head_dim));
    }
    for (int rep = 0; rep < repetitions; ++rep) {
      times.push_back(Timed(num_threads, [&](int t) {
        for (int h = t; h < num_heads; h += num_threads) {
          table.attend_draft(views[h], q.data(), heads_per_kv, workers[t].out.data(), head_dim,
                             workers[t].scratch.data());
        }
      }));
    }
    const double s = Median(times);
    std::printf(
        "%d x %3d  draft %s  kept %5ld  threads %d  %8.1f us/head  %6.1f GFLOPS  %5.2f ms "
        "for %d heads\n",
        heads_per_kv, head_dim, name, static_cast<long>(kept), num_threads, s / num_heads * 1e6,
        num_heads * 4.0 * (groups * 32 + 40) * head_dim * heads_per_kv / s / 1e9, s * 1e3,
        num_heads);
  }
}

void BenchShape(const KernelTable& table, int heads_per_kv, int head_dim, int repetitions) {
  for (const int64_t keys : {2048, 8192, 32768}) {
    const int64_t bytes_per_head = keys * head_dim * 4;
    const int num_heads = static_cast<int>(std::max<int64_t>(2, (64 << 20) / bytes_per_head));
    const Context c(head_dim, keys, num_heads);
    if (keys == 32768) {
      std::printf("plain read: %.1f GB/s on 1 thread, %.1f on 2\n", ReadGbps(1, c), ReadGbps(2, c));
    }
    for (const int64_t m : {1, 8, 32}) {
      BenchFull(table, c, {heads_per_kv, head_dim, keys, m}, repetitions);
    }
  }
  for (const int64_t kept : {3264, 8192}) {
    for (int bits = 2; bits <= 8; ++bits) {
      BenchDraft(table, heads_per_kv, head_dim, kept, static_cast<DraftFormat>(bits),
                 ("int" + std::to_string(bits)).c_str(), repetitions);
    }
    BenchDraft(table, heads_per_kv, head_dim, kept, DraftFormat::kF16, "f16 ", repetitions);
  }
}

}  // namespace
}  // namespace vericache

int main(int argc, char** argv) {
  using namespace vericache;
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 7;
  const int only = argc > 2 ? std::atoi(argv[2]) : 0;
  const KernelTable* table = nullptr;
  for (const KernelTable* t : AllKernelTables()) {
    if (table == nullptr || std::strcmp(t->name, argc > 3 ? argv[3] : "avx512") == 0) table = t;
  }
  ScopedFpEnv fp_env;
  std::printf("kernels: %s\n", table->name);
  const int shapes[][2] = {{7, 64}, {6, 128}, {3, 64}};
  for (const auto& shape : shapes) {
    if (only == 0 || only == shape[0]) BenchShape(*table, shape[0], shape[1], repetitions);
  }
  return 0;
}
