// Positions from an .npz file, so that a researcher can try a selection without C++:
//
//   numpy.savez("mine.npz", L0=[0, 1, 2, 77], L1H0=[5, 9], all=range(0, 4096, 4))
//
// An .npz is a zip of .npy arrays; libzip reads the container, and this is the one file that knows
// it. The array format is three fields of a header: numpy/lib/format.py describes it.
#include <zip.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "base/status_macros.h"
#include "base/text.h"
#include "kv/selectors/selector.h"

namespace vericache {
namespace {

constexpr zip_uint64_t kMaxArrayBytes = 64 << 20;  // 8M positions
constexpr zip_int64_t kMaxArrays = 1 << 16;
constexpr int64_t kMaxPosition = int64_t{1} << 30;

using Positions = std::vector<int32_t>;

struct CloseZip {
  void operator()(zip_t* zip) const { zip_discard(zip); }
};
struct CloseEntry {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

absl::StatusOr<std::string> ReadEntry(zip_t* zip, zip_uint64_t idx, const zip_stat_t& stat) {
  if ((stat.valid & ZIP_STAT_SIZE) == 0 || stat.size > kMaxArrayBytes)
    return absl::InvalidArgumentError(StrCat("is larger than ", kMaxArrayBytes >> 20, " MiB"));
  const std::unique_ptr<zip_file_t, CloseEntry> file(zip_fopen_index(zip, idx, 0));
  if (file == nullptr) return absl::DataLossError("cannot be opened in the zip file");
  std::string bytes(stat.size, '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const zip_int64_t n = zip_fread(file.get(), bytes.data() + done, bytes.size() - done);
    if (n <= 0) return absl::DataLossError("is damaged in the zip file");
    done += static_cast<size_t>(n);
  }
  char more;
  if (zip_fread(file.get(), &more, 1) != 0)  // this read also checks the sum
    return absl::DataLossError("is damaged in the zip file");
  return bytes;
}

// The text behind 'key': in the header's dictionary, up to a comma outside parentheses.
std::string_view Field(std::string_view header, std::string_view key) {
  const size_t at = header.find(StrCat("'", key, "':"));
  if (at == header.npos) return {};
  std::string_view value = header.substr(at + key.size() + 3);
  while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
  return value;
}

struct ArrayForm {
  int width = 0;  // bytes of a number
  bool is_signed = false;
  uint64_t count = 0;
};

absl::Status ParseHeader(std::string_view header, ArrayForm* form) {
  const std::string_view descr = Field(header, "descr");
  const auto is = [&](std::string_view type) { return descr.substr(0, type.size()) == type; };
  for (int width : {1, 2, 4, 8})
    for (const char kind : {'i', 'u'})
      for (const char order : {'<', '|'})
        if (is(StrCat("'", std::string(1, order), std::string(1, kind), width, "'")))
          *form = {width, kind == 'i', 0};
  if (form->width == 0)
    return absl::InvalidArgumentError("is not an array of little-endian integers");
  const std::string_view shape = Field(header, "shape");
  const size_t close = shape.find(')');
  if (shape.empty() || shape.front() != '(' || close == shape.npos)
    return absl::DataLossError("has a damaged header");
  std::string_view dims = shape.substr(1, close - 1);
  if (!dims.empty() && dims.back() == ',') dims.remove_suffix(1);
  if (!ParseInt(dims, &form->count))
    return absl::InvalidArgumentError(StrCat("has shape (", dims, "), expected one dimension"));
  return absl::OkStatus();
}

int64_t NumberAt(const char* p, const ArrayForm& form) {
  uint64_t bits = 0;
  std::memcpy(&bits, p, form.width);
  const int shift = 64 - 8 * form.width;
  if (form.is_signed) return static_cast<int64_t>(bits << shift) >> shift;
  return bits > static_cast<uint64_t>(kMaxPosition) ? kMaxPosition + 1 : static_cast<int64_t>(bits);
}

absl::StatusOr<Positions> ParseArray(std::string_view bytes) {
  const absl::Status damaged = absl::DataLossError("is no .npy array, or a damaged one");
  if (bytes.size() < 12 || bytes.substr(0, 6) != "\x93NUMPY") return damaged;
  const int major = bytes[6];
  if (major < 1 || major > 3) return damaged;
  const size_t prefix = major == 1 ? 10 : 12;
  uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 8, prefix - 8);
  if (header_bytes > bytes.size() - prefix) return damaged;
  ArrayForm form;
  VC_RETURN_IF_ERROR(ParseHeader(bytes.substr(prefix, header_bytes), &form));
  bytes.remove_prefix(prefix + header_bytes);
  if (bytes.size() % form.width != 0 || bytes.size() / form.width != form.count) return damaged;
  Positions positions;
  for (uint64_t i = 0; i < form.count; ++i) {
    const int64_t pos = NumberAt(bytes.data() + i * form.width, form);
    if (pos < 0 || pos > kMaxPosition)
      return absl::InvalidArgumentError("holds a number that is no position");
    positions.push_back(static_cast<int32_t>(pos));
  }
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  return positions;
}

// "all", "L3" or "L3H1" to keys {-1, -1}, {3, -1}, {3, 1}.
bool ParseName(std::string_view name, std::pair<int, int>* key) {
  *key = {-1, -1};
  if (name == "all") return true;
  if (name.empty() || name.front() != 'L') return false;
  const std::vector<std::string_view> parts = SplitOnce(name.substr(1), 'H');
  if (!ParseInt(parts[0], &key->first) || key->first < 0) return false;
  return parts.size() == 1 || (ParseInt(parts[1], &key->second) && key->second >= 0);
}

// A name from the file as part of one line.
std::string Shown(std::string_view name) {
  std::string text(name.substr(0, 40));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  return name.size() > 40 ? text + "..." : text;
}

absl::Status Wrap(const std::string& path, std::string_view name, const absl::Status& status) {
  return absl::Status(
      status.code(),
      StrCat(path, ": array \"", Shown(name), "\" ",
             AsAbsl(std::string_view(status.message().data(), status.message().size()))));
}

using Arrays = std::map<std::pair<int, int>, Positions>;

absl::StatusOr<Arrays> ReadArrays(const std::string& path, int num_layers, int num_kv_heads) {
  int error = 0;
  const std::unique_ptr<zip_t, CloseZip> zip(zip_open(path.c_str(), ZIP_RDONLY, &error));
  if (zip == nullptr) {
    if (error == ZIP_ER_NOENT) return absl::NotFoundError(StrCat(path, ": no such file"));
    return absl::InvalidArgumentError(StrCat(path, " is not an .npz file, or cannot be read"));
  }
  const zip_int64_t num_entries = zip_get_num_entries(zip.get(), 0);
  if (num_entries < 1 || num_entries > kMaxArrays)
    return absl::InvalidArgumentError(StrCat(path, " holds ", num_entries, " arrays"));
  Arrays arrays;
  for (zip_int64_t i = 0; i < num_entries; ++i) {
    zip_stat_t stat;
    if (zip_stat_index(zip.get(), i, 0, &stat) != 0 || (stat.valid & ZIP_STAT_NAME) == 0)
      return absl::DataLossError(StrCat(path, " is damaged"));
    std::string_view name = stat.name;
    if (name.size() > 4 && name.substr(name.size() - 4) == ".npy") name.remove_suffix(4);
    std::pair<int, int> key;
    if (!ParseName(name, &key) || key.first >= num_layers || key.second >= num_kv_heads)
      return absl::InvalidArgumentError(
          StrCat(path, ": array \"", Shown(name), "\": names are all, L0 to L", num_layers - 1,
                 " and L0H0 to L", num_layers - 1, "H", num_kv_heads - 1));
    absl::StatusOr<std::string> bytes = ReadEntry(zip.get(), i, stat);
    if (!bytes.ok()) return Wrap(path, name, bytes.status());
    absl::StatusOr<Positions> positions = ParseArray(*bytes);
    if (!positions.ok()) return Wrap(path, name, positions.status());
    arrays[key] = *std::move(positions);
  }
  return arrays;
}

}  // namespace

absl::StatusOr<KeptSet> ReadKeptFile(const std::string& path, int num_layers, int num_kv_heads) {
  VC_ASSIGN_OR_RETURN(const Arrays arrays, ReadArrays(path, num_layers, num_kv_heads));
  KeptSet kept;
  for (int layer = 0; layer < num_layers; ++layer) {
    for (int head = 0; head < num_kv_heads; ++head) {
      auto it = arrays.find({layer, head});
      if (it == arrays.end()) it = arrays.find({layer, -1});
      if (it == arrays.end()) it = arrays.find({-1, -1});
      if (it == arrays.end())
        return absl::InvalidArgumentError(StrCat(path, " has no positions for layer ", layer,
                                                 ", KV head ", head, ": add an array \"L", layer,
                                                 "\" or \"all\""));
      kept.positions.push_back(it->second);
    }
  }
  return kept;
}

// The file's positions and the newest one. Tokens behind the prompt never come here: they are kept
// whole as they are committed.
KeptSet SelectKept(const SelectInput& input) {
  const int32_t newest = static_cast<int32_t>(input.num_tokens()) - 1;
  KeptSet kept;
  for (Positions positions : input.file->positions) {
    std::erase_if(positions, [&](int32_t pos) { return pos >= newest; });
    positions.push_back(newest);
    kept.positions.push_back(std::move(positions));
  }
  return kept;
}

}  // namespace vericache
