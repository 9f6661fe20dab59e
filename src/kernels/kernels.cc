// Builds the kernel tables and chooses one for this CPU.
#include "kernels/kernels.h"

#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/table_parts.h"

namespace vericache {
namespace {

#if defined(__x86_64__)
#define VC_HAVE_X86_KERNELS 1
#else
#define VC_HAVE_X86_KERNELS 0
#endif

#define VC_BUILD_TABLE(ns, table_name) \
  [] {                                 \
    KernelTable table{};               \
    table.name = table_name;           \
    ns::FillMatmul(&table);            \
    ns::FillRows(&table);              \
    ns::FillAttention(&table);         \
    ns::FillDraftAttention(&table);    \
    ns::FillDraftEncode(&table);       \
    return table;                      \
  }()

// CPU features a table needs that this CPU lacks, as words; empty if it can run.
std::string MissingFeatures(std::string_view name) {
  std::string missing;
#if VC_HAVE_X86_KERNELS
  __builtin_cpu_init();
  const auto require = [&missing](bool present, const char* feature) {
    if (!present) absl::StrAppend(&missing, missing.empty() ? "" : ", ", feature);
  };
  if (name == "scalar" || name == "avx2" || name == "avx512")
    require(__builtin_cpu_supports("fma") != 0, "FMA");
  if (name == "avx2" || name == "avx512") {
    require(__builtin_cpu_supports("avx2") != 0, "AVX2");
    require(__builtin_cpu_supports("f16c") != 0, "F16C");
  }
  if (name == "avx512") {
    require(__builtin_cpu_supports("avx512f") != 0, "AVX-512F");
    require(__builtin_cpu_supports("avx512bw") != 0, "AVX-512BW");
    require(__builtin_cpu_supports("avx512vl") != 0, "AVX-512VL");
    require(__builtin_cpu_supports("avx512dq") != 0, "AVX-512DQ");
    require(__builtin_cpu_supports("avx512vnni") != 0, "AVX-512 VNNI");
  }
#endif
  return missing;
}

// Every table of this build, in the order of AllKernelTables(), whatever the CPU.
absl::Span<const KernelTable* const> BuiltTables() {
  static const KernelTable baseline = VC_BUILD_TABLE(scalar_baseline, "scalar-baseline");
#if VC_HAVE_X86_KERNELS
  static const KernelTable scalar = VC_BUILD_TABLE(scalar_fma, "scalar");
  static const KernelTable avx2 = VC_BUILD_TABLE(avx2, "avx2");
  static const KernelTable avx512 = VC_BUILD_TABLE(avx512, "avx512");
  static const KernelTable* const tables[] = {&scalar, &avx2, &avx512, &baseline};
#else
  // Elsewhere FMA is part of the base instruction set and one scalar build is enough.
  static const KernelTable scalar = VC_BUILD_TABLE(scalar_baseline, "scalar");
  static const KernelTable* const tables[] = {&scalar, &baseline};
#endif
  return tables;
}

}  // namespace

ActFormat ActFormatOf(TensorType weight_type) {
  switch (weight_type) {
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      return ActFormat::kF32;
    case TensorType::kQ8_0:
    case TensorType::kQ5_0:
    case TensorType::kQ4_1:
      return ActFormat::kInt8Per32;
    case TensorType::kQ4_K:
    case TensorType::kQ6_K:
      return ActFormat::kInt8Per256;
  }
  return ActFormat::kF32;
}

absl::Span<const KernelTable* const> AllKernelTables() {
  struct Runnable {
    const KernelTable* tables[5];
    size_t num_tables = 0;
  };
  static const Runnable runnable = [] {
    Runnable result;
    for (const KernelTable* table : BuiltTables()) {
      if (MissingFeatures(table->name).empty()) result.tables[result.num_tables++] = table;
    }
    return result;
  }();
  return {runnable.tables, runnable.num_tables};
}

absl::StatusOr<const KernelTable*> SelectKernels(std::string_view name) {
  if (name.empty()) {
    // The fastest that runs here. Where not even AVX2 does, say so instead of being a hundred times
    // slower unasked.
    if (VC_HAVE_X86_KERNELS && MissingFeatures("avx512").empty()) return SelectKernels("avx512");
    name = VC_HAVE_X86_KERNELS ? "avx2" : "scalar";
    const std::string missing = MissingFeatures(name);
    if (!missing.empty())
      return absl::FailedPreconditionError(
          absl::StrCat("this CPU lacks ", missing, ", which the ", std::string(name),
                       " kernels need; --isa scalar-baseline gives the same bits, slowly"));
  }
  std::string names;
  for (const KernelTable* table : BuiltTables()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", table->name);
    if (name != table->name) continue;
    const std::string missing = MissingFeatures(name);
    if (missing.empty()) return table;
    return absl::FailedPreconditionError(
        absl::StrCat("this CPU lacks ", missing, ", which the ", table->name, " kernels need"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown kernels '", std::string(name), "'; this build has: ", names));
}

}  // namespace vericache
