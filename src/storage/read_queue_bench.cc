// How fast a folder's disk delivers spilled K/V: backend x size of a read x reads in flight.
//
//   read_queue_bench FOLDER [MIB] [REPETITIONS]
//
// Writes MIB mebibytes (default 512) to an unlinked file, then reads all of it in pieces of a
// stream's size (1 MiB a request) through registered staging memory. The variants take turns;
// printed are medians and the slowest and fastest of the repetitions (default 5). What was read is
// compared with what was written once per variant before anything is timed.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/huge_memory.h"
#include "storage/read_queue.h"
#include "storage/spill_file.h"

namespace vericache {
namespace {

constexpr size_t kRequestBytes = size_t{1} << 20;
constexpr size_t kStagingBytes = size_t{64} << 20;

struct Variant {
  ReadBackend backend;
  size_t read_bytes;
  int depth;
  std::vector<double> gb_per_s;
  std::vector<double> cpu_s_per_gb;
};

double NowS() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double CpuS() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

void FillMebibyte(uint64_t idx, uint8_t* data) {
  uint64_t word = (idx + 1) * 0x9E3779B97F4A7C15u;
  for (size_t i = 0; i < kRequestBytes; i += 8) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(data + i, &word, 8);
  }
}

void Die(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

// Reads the file once, the staging memory as a ring. `check` compares every byte.
void ReadAll(const SpillFile& file, size_t num_requests, uint8_t* staging, ReadQueue* queue,
             bool check) {
  const size_t ring = kStagingBytes / kRequestBytes;
  std::vector<uint8_t> expected(kRequestBytes);
  std::vector<std::unique_ptr<ReadTicket>> tickets(num_requests);
  const auto submit = [&](size_t i) {
    tickets[i] = std::make_unique<ReadTicket>();
    const ReadRequest request{&file, i * kRequestBytes, staging + i % ring * kRequestBytes,
                              kRequestBytes};
    if (absl::Status status = queue->Submit({request}, tickets[i].get()); !status.ok()) Die(status);
  };
  for (size_t i = 0; i < std::min(ring, num_requests); ++i) submit(i);
  for (size_t i = 0; i < num_requests; ++i) {
    if (absl::Status status = queue->Wait(tickets[i].get()); !status.ok()) Die(status);
    if (check) {
      FillMebibyte(i, expected.data());
      if (std::memcmp(expected.data(), staging + i % ring * kRequestBytes, kRequestBytes) != 0) {
        Die(absl::DataLossError("read something else than was written"));
      }
    }
    if (i + ring < num_requests) submit(i + ring);
  }
}

void Measure(const SpillFile& file, size_t num_requests, const std::shared_ptr<uint8_t[]>& staging,
             bool check, Variant* variant) {
  ReadQueueOptions options;
  options.backend = variant->backend;
  options.read_bytes = variant->read_bytes;
  options.depth = variant->depth;
  options.staging = staging;
  options.staging_bytes = kStagingBytes;
  auto queue = MakeReadQueue(options);
  if (!queue.ok()) Die(queue.status());
  const double start_s = NowS(), start_cpu_s = CpuS();
  ReadAll(file, num_requests, staging.get(), queue->get(), check);
  if (check) return;
  const double gb = static_cast<double>(num_requests * kRequestBytes) * 1e-9;
  variant->gb_per_s.push_back(gb / (NowS() - start_s));
  variant->cpu_s_per_gb.push_back((CpuS() - start_cpu_s) / gb);
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: read_queue_bench FOLDER [MIB] [REPETITIONS]\n");
    return 2;
  }
  const size_t num_requests = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 512;
  const int repetitions = argc > 3 ? std::atoi(argv[3]) : 5;
  auto file = SpillFile::Create(argv[1]);
  if (!file.ok()) Die(file.status());
  const std::shared_ptr<uint8_t[]> staging = AllocateHuge(kStagingBytes);
  if (staging == nullptr) Die(absl::ResourceExhaustedError("no memory"));
  const double start_s = NowS();
  for (size_t i = 0; i < num_requests; ++i) {
    FillMebibyte(i, staging.get());
    const absl::Status status = (*file)->Write(i * kRequestBytes, staging.get(), kRequestBytes);
    if (!status.ok()) Die(status);
  }
  std::printf("%zu MiB, %s; written at %.2f GB/s, one MiB after the other\n", num_requests,
              (*file)->direct() ? "O_DIRECT" : "page cache",
              static_cast<double>(num_requests * kRequestBytes) * 1e-9 / (NowS() - start_s));
  std::vector<Variant> variants;
  for (const ReadBackend backend : {ReadBackend::kAuto, ReadBackend::kPread}) {
    for (const size_t kib : {64, 128, 256, 512, 1024}) {
      for (const int depth : {1, 2, 4, 8, 16, 32}) {
        if (backend == ReadBackend::kPread && depth > 4) continue;
        variants.push_back({backend, kib << 10, depth, {}, {}});
      }
    }
  }
  for (int i = -1; i < repetitions; ++i) {
    for (Variant& variant : variants) Measure(**file, num_requests, staging, i < 0, &variant);
  }
  std::printf("%-8s %9s %6s  %6s %6s %6s  %s\n", "backend", "KiB/read", "depth", "GB/s", "min",
              "max", "CPU s/GB");
  for (Variant& variant : variants) {
    std::sort(variant.gb_per_s.begin(), variant.gb_per_s.end());
    std::sort(variant.cpu_s_per_gb.begin(), variant.cpu_s_per_gb.end());
    const size_t half = variant.gb_per_s.size() / 2;
    std::printf("%-8s %9zu %6d  %6.2f %6.2f %6.2f  %.3f\n",
                variant.backend == ReadBackend::kPread ? "pread" : "auto", variant.read_bytes >> 10,
                variant.depth, variant.gb_per_s[half], variant.gb_per_s.front(),
                variant.gb_per_s.back(), variant.cpu_s_per_gb[half]);
  }
  return 0;
}

}  // namespace
}  // namespace vericache

int main(int argc, char** argv) { return vericache::Main(argc, argv); }
