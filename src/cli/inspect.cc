// `vericache inspect`: what a model file holds, and how many requests' KV fit in memory.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "cli/command.h"
#include "cli/errors.h"
#include "cli/models.h"
#include "cli/progress.h"

namespace vericache::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSpecs[] = {"int8", "int4", "verify:0.25", "verify:0.25+int4",
                                  "verify:0.1+int4"};
constexpr int64_t kContexts[] = {4096, 8192, 32768};

struct InspectOptions {
  std::string model;
  int64_t ctx = 0;
  uint64_t memory = 0;  // 0: half of the physical memory
  bool tensors = false, json = false;
};

// The KV of one request under one spec ("off": full KV), and how many of them fit.
struct Fit {
  std::string spec;
  double kept_fraction = 1;
  uint64_t kv_bytes = 0;
  uint64_t num_requests = 0;
};

struct FitRow {
  int64_t context = 0;
  std::vector<Fit> fits;  // full KV first
};

struct TypeCount {
  int64_t num_tensors = 0;
  uint64_t num_bytes = 0;
};

uint64_t HalfOfMemory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE)) / 2;
}

absl::StatusOr<FitRow> FitsAt(int64_t context, const ModelInfo& info, uint64_t memory) {
  FitRow row{context, {}};
  std::vector<std::string> specs = {"off"};
  specs.insert(specs.end(), std::begin(kSpecs), std::end(kSpecs));
  for (const std::string& spec : specs) {
    Fit fit;
    fit.spec = spec;
    if (spec != "off") {
      VC_ASSIGN_OR_RETURN(fit.kept_fraction, PredictKeptFraction(spec, info, context));
    }
    fit.kv_bytes = static_cast<uint64_t>(static_cast<double>(info.kv_bytes_per_token) *
                                         static_cast<double>(context) * fit.kept_fraction);
    fit.num_requests = fit.kv_bytes > 0 ? memory / fit.kv_bytes : 0;
    row.fits.push_back(fit);
  }
  return row;
}

absl::StatusOr<std::vector<FitRow>> FitTable(const InspectOptions& o, const ModelInfo& info,
                                             uint64_t memory) {
  std::vector<int64_t> contexts;
  if (o.ctx > 0) {
    contexts = {o.ctx};
  } else {
    for (int64_t context : kContexts)
      if (context < info.model_context) contexts.push_back(context);
    contexts.push_back(info.model_context);
  }
  std::vector<FitRow> rows;
  for (int64_t context : contexts) {
    VC_ASSIGN_OR_RETURN(FitRow row, FitsAt(context, info, memory));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::map<std::string, TypeCount> CountTypes(const ModelInfo& info) {
  std::map<std::string, TypeCount> counts;
  for (const TensorInfo& tensor : info.tensors) {
    ++counts[tensor.type].num_tensors;
    counts[tensor.type].num_bytes += tensor.num_bytes;
  }
  return counts;
}

std::string Dimensions(const TensorInfo& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.dims, ", "));
}

Json InspectJson(const InspectOptions& o, const ModelInfo& info, uint64_t memory,
                 const std::vector<FitRow>& rows) {
  Json json = {{"path", info.path},
               {"name", info.name},
               {"architecture", info.architecture},
               {"num_layers", info.num_layers},
               {"num_heads", info.num_heads},
               {"num_kv_heads", info.num_kv_heads},
               {"head_dim", info.head_dim},
               {"hidden_size", info.hidden_size},
               {"intermediate_size", info.intermediate_size},
               {"vocab_size", info.vocab_size},
               {"model_context", info.model_context},
               {"has_chat_template", info.has_chat_template},
               {"file_bytes", info.file_bytes},
               {"kv_bytes_per_token", info.kv_bytes_per_token},
               {"memory_bytes", memory},
               {"fits", Json::array()},
               {"tensor_types", Json::object()},
               {"metadata", Json::object()}};
  for (const FitRow& row : rows) {
    Json fits = Json::array();
    for (const Fit& fit : row.fits)
      fits.push_back({{"draft", fit.spec},
                      {"kept_fraction", fit.kept_fraction},
                      {"kv_bytes", fit.kv_bytes},
                      {"num_requests", fit.num_requests}});
    json["fits"].push_back({{"context", row.context}, {"kv", std::move(fits)}});
  }
  for (const auto& [type, count] : CountTypes(info))
    json["tensor_types"][type] = {{"num_tensors", count.num_tensors},
                                  {"num_bytes", count.num_bytes}};
  for (const auto& [key, value] : info.metadata) json["metadata"][key] = value;
  if (!o.tensors) return json;
  json["tensors"] = Json::array();
  for (const TensorInfo& tensor : info.tensors)
    json["tensors"].push_back({{"name", tensor.name},
                               {"type", tensor.type},
                               {"dims", tensor.dims},
                               {"num_bytes", tensor.num_bytes}});
  return json;
}

void PrintModel(const InspectOptions& o, const ModelInfo& info) {
  fmt::print("model      {}\n", OneLine(info.name.empty() ? "(no name)" : info.name));
  fmt::print("file       {}, {}\n", OneLine(info.path), FormatBytes(info.file_bytes));
  fmt::print(
      "family     {}: {} layers, {} heads on {} KV heads of {}, hidden size {}, "
      "feed-forward {}, vocabulary {}\n",
      info.architecture, info.num_layers, info.num_heads, info.num_kv_heads, info.head_dim,
      info.hidden_size, info.intermediate_size, info.vocab_size);
  fmt::print("context    {} tokens; {}\n", info.model_context,
             info.has_chat_template ? "has a chat template" : "no chat template: raw prompts only");
  fmt::print("full KV    {} a token (f16), {} at full context\n",
             FormatBytes(info.kv_bytes_per_token),
             FormatBytes(info.kv_bytes_per_token * static_cast<uint64_t>(info.model_context)));
  fmt::print("tensors    {}:", info.tensors.size());
  const char* separator = " ";
  for (const auto& [type, count] : CountTypes(info)) {
    fmt::print("{}{} {} ({})", separator, count.num_tensors, type, FormatBytes(count.num_bytes));
    separator = ", ";
  }
  fmt::print("\n");
  if (o.tensors) {
    for (const TensorInfo& tensor : info.tensors)
      fmt::print("  {:32} {:6} {:20} {}\n", OneLine(tensor.name), tensor.type, Dimensions(tensor),
                 FormatBytes(tensor.num_bytes));
  }
  fmt::print("\nmetadata\n");
  for (const auto& [key, value] : info.metadata)
    fmt::print("  {} = {}\n", OneLine(key), OneLine(value));
}

void PrintFits(uint64_t memory, const std::vector<FitRow>& rows) {
  fmt::print(
      "\nRequests whose KV fits in {} (--memory; weights not counted): with the full KV, or with\n"
      "the draft KV alone, for when the full KV lies elsewhere; in brackets one request's KV.\n\n",
      FormatBytes(memory));
  constexpr int kColumn = 20;
  fmt::print("{:>9}", "context");
  for (const Fit& fit : rows.front().fits)
    fmt::print("{:>{}}", fit.spec == "off" ? "full KV" : fit.spec, kColumn);
  fmt::print("\n");
  for (const FitRow& row : rows) {
    fmt::print("{:>9}", row.context);
    for (const Fit& fit : row.fits)
      fmt::print("{:>{}}", fmt::format("{} ({})", fit.num_requests, FormatBytes(fit.kv_bytes)),
                 kColumn);
    fmt::print("\n");
  }
}

absl::Status Inspect(const InspectOptions& o) {
  VC_ASSIGN_OR_RETURN(const std::string path, FindModel(o.model));
  VC_ASSIGN_OR_RETURN(const ModelInfo info, InspectModel(path));
  const uint64_t memory = o.memory > 0 ? o.memory : HalfOfMemory();
  VC_ASSIGN_OR_RETURN(const std::vector<FitRow> rows, FitTable(o, info, memory));
  if (o.json) {
    fmt::print(
        "{}\n",
        InspectJson(o, info, memory, rows).dump(-1, ' ', false, Json::error_handler_t::replace));
    return absl::OkStatus();
  }
  PrintModel(o, info);
  PrintFits(memory, rows);
  return absl::OkStatus();
}

}  // namespace

CommandBody DeclareInspect(Flags* flags) {
  auto o = std::make_shared<InspectOptions>();
  flags->Positional("MODEL", "GGUF file, or the name of one in the models folder", &o->model);
  flags->Integer("--ctx", "N", "Context to count requests for (default: 4K, 8K, 32K, the model's)",
                 &o->ctx, 1, int64_t{1} << 40);
  flags->Custom(
      "--memory", "SIZE", "Memory for KV, such as 8GiB (default: half of this machine's)",
      [raw = o.get()](const std::string& text) { return ParseBytes(text, &raw->memory); });
  flags->Switch("--tensors", "List every tensor", &o->tensors);
  flags->Switch("--json", "One JSON object on stdout", &o->json);
  flags->Examples(
      "  vericache inspect smollm2-135m\n"
      "  vericache inspect model.gguf --memory 24GiB --ctx 16384\n"
      "  vericache inspect model.gguf --tensors --json");
  return [o] { return Inspect(*o); };
}

}  // namespace vericache::cli
