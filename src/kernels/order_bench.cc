// What row invariance costs: the two main kernels beside variants that are free to order their sums
// as they like (docs/why_own_kernels.md). The variants live here only; nothing else calls them.
//
//   order_bench [repetitions]
//
// One row of weights: the contract has one FMA chain an output over k; the free variant keeps four
// (every fourth block), so that no addition waits for the one before. With many rows the chains of
// different rows hide each other's latency and the order costs nothing to begin with, which is
// measured too. Attention: the contract's softmax goes over blocks of 64 positions; the free
// variant takes all 1,024 scores of a segment at once (one maximum, no rescaling) and keeps two
// chains a value. Results are compared within rounding before anything is timed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/check.h"
#include "base/fp_env.h"
#include "base/huge_memory.h"
#include "kernels/avx2/weights.h"
#include "kernels/kernels.h"

#define VC_KERNEL_NS order_bench
#include "kernels/scalar/scalar_math.h"
#include "kernels/vec/attention_tiles.h"

namespace vericache::order_bench {
namespace {

using avx2::kBytesQ8_0;

double Now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Medians of two functions that take turns.
template <typename A, typename B>
void Compare(const char* what, int repetitions, A contract, B free_order) {
  std::vector<double> a, b, ratio;
  for (int i = 0; i < repetitions; ++i) {
    const double t0 = Now();
    contract();
    const double t1 = Now();
    free_order();
    const double t2 = Now();
    a.push_back(t1 - t0);
    b.push_back(t2 - t1);
    ratio.push_back((t1 - t0) / (t2 - t1));
  }
  for (auto* v : {&a, &b, &ratio}) std::sort(v->begin(), v->end());
  const size_t half = a.size() / 2;
  std::printf("%-44s contract %8.1f us, free order %8.1f us, price %+5.1f %% (%+.1f to %+.1f)\n",
              what, a[half] * 1e6, b[half] * 1e6, (ratio[half] - 1) * 100,
              (ratio[ratio.size() / 4] - 1) * 100, (ratio[ratio.size() * 3 / 4] - 1) * 100);
}

// --- Q8_0 weights ------------------------------------------------------------------------------

// Q8_0 times kRows rows, kChains chains an output (block b goes to chain b % kChains).
template <int kRows, int kChains>
[[gnu::noinline]] void TileQ8_0(const uint8_t* data, int64_t num_blocks, const Activations& x,
                                float* y, int64_t ldy) {
  __m512 acc[kRows][kChains];
  for (int m = 0; m < kRows; ++m)
    for (int c = 0; c < kChains; ++c) acc[m][c] = _mm512_setzero_ps();
  const __m512i flip = _mm512_set1_epi8(-128);
  for (int64_t first = 0; first < num_blocks; first += kChains) {
#pragma GCC unroll 4
    for (int c = 0; c < kChains; ++c) {
      const int64_t b = first + c;
      const uint8_t* src = data + b * kBytesQ8_0;
#pragma GCC unroll 9
      for (int64_t i = 0; i < kBytesQ8_0; i += 64) __builtin_prefetch(src + 4096 + i, 0, 2);
      __m512i t[kRows];
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m)
        t[m] = _mm512_set1_epi32(-128 * x.sums[m * (x.cols / 32) + b]);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const __m512i w = _mm512_xor_si512(_mm512_loadu_si512(src + 64 * i), flip);
#pragma GCC unroll 12
        for (int m = 0; m < kRows; ++m) {
          int32_t four;
          __builtin_memcpy(&four, x.q + m * x.cols + 32 * b + 4 * i, 4);
          t[m] = _mm512_dpbusd_epi32(t[m], w, _mm512_set1_epi32(four));
        }
      }
      const __m512 d =
          _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 512)));
#pragma GCC unroll 12
      for (int m = 0; m < kRows; ++m) {
        const __m512 dx = _mm512_set1_ps(x.scale[m * (x.cols / 32) + b]);
        acc[m][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(t[m]), _mm512_mul_ps(d, dx), acc[m][c]);
      }
    }
  }
  for (int m = 0; m < kRows; ++m) {
    __m512 sum = acc[m][0];
    for (int c = 1; c < kChains; ++c) sum = _mm512_add_ps(sum, acc[m][c]);
    _mm512_storeu_ps(y + m * ldy, sum);
  }
}

// The same loop in both orders: one chain an output, or several. The first is the contract's.
template <int kRows, int kChains>
void MatmulQ8_0(const PackedMatrix& w, const Activations& x, float* y) {
  const int64_t num_blocks = w.cols / 32;
  for (int64_t o = 0; o < w.rows; o += 16) {
    TileQ8_0<kRows, kChains>(w.data + o / 16 * num_blocks * kBytesQ8_0, num_blocks, x, y + o,
                             w.rows);
  }
}

void CheckClose(const std::vector<float>& a, const std::vector<float>& b, double tolerance) {
  double largest = 0, difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(a[i])));
    difference = std::max(difference, std::fabs(static_cast<double>(a[i]) - b[i]));
  }
  VC_CHECK(largest > 0 && difference <= tolerance * largest);
}

template <int kRows, int kChains>
void BenchMatmul(const KernelTable& table, int repetitions) {
  constexpr int64_t kOuts = 8192, kCols = 1024;
  std::vector<uint8_t> gguf(kOuts * kCols / 32 * 34);
  uint64_t state = 1;
  for (uint8_t& byte : gguf)
    byte = static_cast<uint8_t>((state = state * 6364136223846793005u + 1) >> 56);
  for (size_t b = 0; b < gguf.size(); b += 34) gguf[b] = 0, gguf[b + 1] = 0x20;  // scale 2^-7
  const auto packed = AllocateHuge(table.packed_bytes(TensorType::kQ8_0, kOuts, kCols) + 8192);
  table.pack(TensorType::kQ8_0, kOuts, kCols, gguf.data(), packed.get(), 0, kOuts);
  const PackedMatrix w{TensorType::kQ8_0, kOuts, kCols, packed.get()};
  std::vector<float> row(kCols), scale(kRows * kCols / 32);
  std::vector<int8_t> q(kRows * kCols + 64);
  std::vector<int16_t> sums(kRows * kCols / 32 + 32);
  for (int m = 0; m < kRows; ++m) {
    for (int64_t k = 0; k < kCols; ++k) row[k] = std::sin(0.37f * (k + 11 * m));
    table.quantize_per32(row.data(), kCols, &q[m * kCols], &scale[m * kCols / 32],
                         &sums[m * kCols / 32]);
  }
  const Activations x{ActFormat::kInt8Per32, kCols, nullptr, q.data(), scale.data(), sums.data()};
  std::vector<float> want(kRows * kOuts), one(want), several(want);
  table.matmul(w, x, kRows, 0, kOuts, want.data(), kOuts);
  MatmulQ8_0<kRows, 1>(w, x, one.data());
  MatmulQ8_0<kRows, kChains>(w, x, several.data());
  VC_CHECK(std::memcmp(want.data(), one.data(), want.size() * sizeof(float)) == 0);
  CheckClose(want, several, 1e-5);
  char what[64];
  std::snprintf(what, sizeof(what), "Q8_0 weights, %d row%s, %d chains", kRows,
                kRows == 1 ? "" : "s", kChains);
  Compare(
      what, repetitions, [&] { MatmulQ8_0<kRows, 1>(w, x, one.data()); },
      [&] { MatmulQ8_0<kRows, kChains>(w, x, several.data()); });
}

// --- Attention ---------------------------------------------------------------------------------

// Values with two chains: even and odd keys.
template <int R>
[[gnu::noinline]] void ValuesTwoChains(const float* p, int64_t ldp, const uint16_t* v, float* acc,
                                       int64_t lda) {
  Vec16 even[R], odd[R];
  for (int r = 0; r < R; ++r) even[r] = Load(acc + r * lda), odd[r] = Zero();
  for (int64_t j = 0; j < 64; j += 2) {
    const Vec16 a = Load(v + j * 16), b = Load(v + (j + 1) * 16);
    for (int r = 0; r < R; ++r) {
      even[r] = Fma(Set(p[r * ldp + j]), a, even[r]);
      odd[r] = Fma(Set(p[r * ldp + j + 1]), b, odd[r]);
    }
  }
  for (int r = 0; r < R; ++r) Store(Add(even[r], odd[r]), acc + r * lda);
}

// One segment of 1,024 keys for R heads of one position, everything in the handiest order.
template <int R>
void AttendFree(const FullKvView& kv, const float* q, float* p, float* out) {
  const int64_t d = kv.shape.head_dim, n = kSegmentTokens;
  for (int64_t block = 0; block < n / 64; ++block) {
    const uint16_t* k = kv.Head(block, 0);
    QkGroups<R, 2>({d, kLog2E, n}, q, F16Source{k, k + kv.shape.k_block_values()}, 4,
                   p + block * 64);
  }
  const Exp2NonPositiveNoNan exp2;
  for (int r = 0; r < R; ++r) {
    float* s = p + r * n;
    Vec16 max = Load(s), sum = Zero();
    for (int64_t j = 16; j < n; j += 16) max = MaxOrSecond(max, Load(s + j));
    const Vec16 m = Set(MaxLane(max));
    for (int64_t j = 0; j < n; j += 16) {
      const Vec16 e = exp2(Sub(Load(s + j), m));
      Store(e, s + j);
      sum = Add(sum, e);
    }
    const Vec16 inverse = Set(1.0f / LaneTree(sum));
    for (int64_t j = 0; j < n; j += 16) Store(Mul(Load(s + j), inverse), s + j);
  }
  for (int64_t i = 0; i < R * d; ++i) out[i] = 0.0f;
  for (int64_t block = 0; block < n / 64; ++block) {
    const uint16_t* v = kv.Head(block, 0) + kv.shape.k_block_values();
    for (int64_t g = 0; g < d / 16; ++g)
      ValuesTwoChains<R>(p + block * 64, n, v + g * 64 * 16, out + g * 16, d);
  }
}

template <int R>
void BenchAttention(const KernelTable& table, int head_dim, int repetitions) {
  const KvShape shape{.num_layers = 1, .num_kv_heads = 1, .head_dim = head_dim};
  const int64_t num_blocks = kSegmentTokens / 64;
  const auto memory = AllocateHuge(num_blocks * shape.layer_block_values() * 2);
  auto* data = reinterpret_cast<uint16_t*>(memory.get());
  std::vector<const uint16_t*> blocks;
  for (int64_t b = 0; b < num_blocks; ++b) blocks.push_back(data + b * shape.layer_block_values());
  uint32_t state = 1;
  for (size_t i = 0; i < num_blocks * shape.layer_block_values(); ++i) {
    state = state * 1664525u + 1013904223u;
    data[i] = static_cast<uint16_t>(0x3800 | ((state >> 8) & 0x83ff));
  }
  const FullKvView kv{.blocks = blocks.data(), .shape = shape, .num_tokens = kSegmentTokens};
  AlignedBuffer<float> q(R * head_dim), p(R * kSegmentTokens), scratch(AttnScratchFloats(head_dim));
  for (int i = 0; i < R * head_dim; ++i) q[i] = 0.3f * std::sin(0.7f * i);
  AlignedBuffer<float> max(R), sum(R * 16), acc(R * head_dim);
  std::vector<float> want(R * head_dim), got(want);
  const auto contract = [&] {
    const AttnState state_of{max.data(), sum.data(), acc.data()};
    table.attend_segment(kv, 0, {q.data(), R, R, kSegmentTokens - 1}, 0, state_of, scratch.data());
    table.attend_finish(R, head_dim, state_of, want.data(), head_dim);
  };
  const auto free_order = [&] { AttendFree<R>(kv, q.data(), p.data(), got.data()); };
  contract();
  free_order();
  CheckClose(want, got, 1e-4);
  char what[64];
  std::snprintf(what, sizeof(what), "attention, 1 position, %d x %d, 1,024 keys", R, head_dim);
  Compare(what, 20 * repetitions, contract, free_order);
}

}  // namespace
}  // namespace vericache::order_bench

int main(int argc, char** argv) {
  using namespace vericache;
  using namespace vericache::order_bench;
  const auto table = SelectKernels("avx512");
  if (!table.ok()) {
    std::printf("order_bench: %s\n", std::string(table.status().message()).c_str());
    return 1;
  }
  const ScopedFpEnv fp_env;
  const int repetitions = argc > 1 ? std::max(1, std::atoi(argv[1])) : 51;
  BenchMatmul<1, 4>(**table, repetitions);
  BenchMatmul<2, 4>(**table, repetitions);
  BenchMatmul<8, 2>(**table, repetitions);
  BenchMatmul<12, 2>(**table, repetitions);
  BenchAttention<7>(**table, 64, repetitions);
  BenchAttention<6>(**table, 128, repetitions);
  return 0;
}
