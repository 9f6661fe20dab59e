#include "engine/query_window.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kernel_test_util.h"

namespace vericache {
namespace {

constexpr int kLayers = 3, kHeads = 2, kHeadDim = 4, kRow = kHeads * kHeadDim;

ModelConfig Config() {
  ModelConfig config;
  config.num_layers = kLayers;
  config.num_heads = kHeads;
  config.num_kv_heads = 1;
  config.head_dim = kHeadDim;
  return config;
}

// Another for each layer, position and channel here, and one that f16 holds.
float QueryValue(int layer, int64_t pos, int channel) {
  const int64_t value = (pos * kLayers + layer) * kRow + channel;
  return static_cast<float>(value % 2048) * static_cast<float>(1 << (value / 2048));
}

// One pass of `n` rows through all layers.
void Pass(QueryWindow* window, int64_t first_pos, int64_t n) {
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<float> q;
    for (int64_t row = 0; row < n; ++row)
      for (int c = 0; c < kRow; ++c) q.push_back(QueryValue(layer, first_pos + row, c));
    window->OnLayer({layer, first_pos, n, nullptr, q.data(), nullptr, nullptr});
  }
}

void ExpectRows(const QueryRows& rows, int64_t begin, int64_t end) {
  ASSERT_EQ(rows.num_rows, end - begin);
  ASSERT_EQ(rows.num_heads, kHeads);
  if (rows.num_rows > 0) {
    ASSERT_EQ(rows.first_pos, begin);
  }
  ASSERT_EQ(rows.q.size(), static_cast<size_t>(kLayers));
  for (int layer = 0; layer < kLayers; ++layer) {
    ASSERT_EQ(rows.q[layer].size(), static_cast<size_t>(rows.num_rows * kRow));
    for (int64_t row = 0; row < rows.num_rows; ++row)
      for (int c = 0; c < kRow; ++c)
        ASSERT_EQ(rows.q[layer][row * kRow + c], QueryValue(layer, begin + row, c))
            << "layer " << layer << " row " << row;
  }
}

TEST(QueryWindow, KeepsTheNewestRowsForEveryChunkSize) {
  for (int num_rows : {1, 2, 8, 32}) {
    for (int64_t first : {0, 5, 64}) {  // a session's prefill starts behind its prefix
      for (int64_t total : {1, 2, 7, 8, 9, 31, 32, 33, 100}) {
        for (int64_t chunk : {1, 2, 3, 8, 13, 32, 33, 100}) {
          QueryWindow window(Config(), &Judge(), num_rows);
          for (int64_t done = 0; done < total; done += chunk)
            Pass(&window, first + done, std::min(chunk, total - done));
          ExpectRows(window.Take(), first + std::max<int64_t>(0, total - num_rows), first + total);
        }
      }
    }
  }
}

TEST(QueryWindow, KeepsTheNewestRowsForRandomChunks) {
  TestRandom random(1);
  for (int run = 0; run < 100; ++run) {
    const int num_rows = 1 + static_cast<int>(random.Below(40));
    const int64_t first = random.Below(50);
    QueryWindow window(Config(), &Judge(), num_rows);
    int64_t total = 0;
    for (int pass = 0; pass < 8; ++pass) {
      const int64_t n = 1 + random.Below(50);
      Pass(&window, first + total, n);
      total += n;
      ExpectRows(window.Take(), first + std::max<int64_t>(0, total - num_rows), first + total);
    }
  }
}

// A prefill that starts again elsewhere must not mix in rows of its former run.
TEST(QueryWindow, AGapForgetsOlderRows) {
  QueryWindow window(Config(), &Judge(), 8);
  Pass(&window, 0, 20);
  Pass(&window, 30, 3);
  ExpectRows(window.Take(), 30, 33);
  Pass(&window, 33, 2);
  ExpectRows(window.Take(), 30, 35);
  Pass(&window, 0, 4);
  ExpectRows(window.Take(), 0, 4);
}

TEST(QueryWindow, IsEmptyBeforeTheFirstPass) {
  ExpectRows(QueryWindow(Config(), &Judge(), 8).Take(), 0, 0);
}

// Verifications: a pass brings `brought` rows, `kept` of them hold, the next begins behind those.
TEST(QueryWindow, ForgetsRejectedRows) {
  for (int num_rows : {1, 4, 8}) {
    for (int max_rejected : {3, 16}) {
      QueryWindow window(Config(), &Judge(), num_rows);
      int64_t end = 5;  // behind a session's prefix
      Pass(&window, end, 7);
      end += 7;
      uint64_t state = num_rows * 100 + max_rejected;
      for (int round = 0; round < 50; ++round) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const int64_t brought = 1 + static_cast<int64_t>((state >> 40) % (max_rejected + 1));
        const int64_t kept = 1 + static_cast<int64_t>((state >> 20) % brought);
        window.MayReject(brought - 1);  // grows as longer drafts come
        Pass(&window, end, brought);
        end += kept;
        ExpectRows(window.Take(end), std::max<int64_t>(5, end - num_rows), end);
      }
    }
  }
}

}  // namespace
}  // namespace vericache
