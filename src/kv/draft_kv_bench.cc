// Time of DraftKv::Rebuild: 24 layers x 2 heads, head_dim 64, a quarter of 4,400 positions kept,
// which is what a draft chosen anew after every round costs beside the round itself.
//
//   draft_kv_bench [REPETITIONS] [THREADS] [CODEC...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "kv/draft_kv.h"

namespace vericache {

// FullKv lets a class of this name commit rows; this program does not link the engine's own.
class Prefill {
 public:
  static void Commit(FullKv* kv, int64_t num_rows) { kv->Commit(num_rows); }
};

namespace {

constexpr KvShape kShape{24, 2, 64};
constexpr int64_t kTokens = 4400, kKept = 1100;

struct Random {
  uint64_t state = 1;
  uint32_t Next() {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth, MMIX
    return static_cast<uint32_t>(state >> 33);
  }
  float Uniform() { return static_cast<float>(Next() % 20001) / 10000.0f - 1.0f; }
};

void Fill(FullKv* full, Random* random) {
  const size_t row = static_cast<size_t>(kShape.num_kv_heads) * kShape.head_dim;
  if (!full->Reserve(kTokens).ok()) std::abort();
  std::vector<float> k(kTokens * row), v(kTokens * row);
  for (int layer = 0; layer < kShape.num_layers; ++layer) {
    for (size_t i = 0; i < k.size(); ++i) {
      k[i] = random->Uniform() * 3 + static_cast<float>(i % 5);
      v[i] = random->Uniform();
    }
    full->Append(layer, k.data(), v.data(), kTokens);
  }
  Prefill::Commit(full, kTokens);
}

KeptSet RandomKept(Random* random) {
  KeptSet kept;
  for (int i = 0; i < kShape.num_layers * kShape.num_kv_heads; ++i) {
    std::vector<int32_t> positions;
    for (int32_t pos = 0; pos < kTokens - 1; ++pos) {
      const int64_t wanted = kKept - 1 - static_cast<int64_t>(positions.size());
      if (static_cast<int64_t>(random->Next() % (kTokens - 1 - pos)) < wanted)
        positions.push_back(pos);
    }
    positions.push_back(kTokens - 1);
    kept.positions.push_back(positions);
  }
  return kept;
}

void Bench(const std::string& name, const DraftCodec& codec, const FullKv& full,
           const KeptSet& kept, int repetitions, ThreadPool* pool) {
  DraftKv draft(kShape, codec, *SelectKernels());
  std::vector<double> ms;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    draft.Rebuild(full, kept, pool);
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    if (i > 0) ms.push_back(taken.count());  // the first one allocates
  }
  std::sort(ms.begin(), ms.end());
  // A hash, so that nothing gets faster by storing something else.
  std::string bytes;
  draft.AppendTo(&bytes);
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  std::printf("%-6s threads %d  median %6.2f ms  best %6.2f ms  %6.2f MB  %016llx\n", name.c_str(),
              pool->num_threads(), ms[ms.size() / 2], ms[0],
              static_cast<double>(draft.num_bytes()) / 1e6, static_cast<unsigned long long>(hash));
}

}  // namespace
}  // namespace vericache

int main(int argc, char** argv) {
  using namespace vericache;
  const int repetitions = argc > 1 ? std::max(2, std::atoi(argv[1])) : 30;
  ThreadPool pool(argc > 2 ? std::atoi(argv[2]) : 2);
  std::vector<std::string> names(argv + std::min(argc, 3), argv + argc);
  if (names.empty()) names = {"f16", "int2", "int3", "int4", "int6", "int8", "rot4", "k8v4"};
  Random random;
  FullKv full(kShape, *SelectKernels());
  Fill(&full, &random);
  const KeptSet kept = RandomKept(&random);
  for (const std::string& name : names) {
    DraftCodec codec;
    if (!ParseDraftCodec(name, &codec)) return std::printf("unknown codec %s\n", name.c_str()), 2;
    Bench(name, codec, full, kept, repetitions, &pool);
  }
  return 0;
}
