// .npz files as numpy writes them, and as nobody should.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kv/selectors/selector.h"

namespace vericache {
namespace {

constexpr int kLayers = 2, kHeads = 2;
using Lists = std::vector<std::vector<int32_t>>;

// --- Writers ------------------------------------------------------------------------------------

std::string Little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}

uint32_t Crc32(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int i = 0; i < 8; ++i) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0u);
  }
  return ~crc;
}

struct Entry {
  std::string name;
  std::string data;  // as it lies in the zip file
  int method = 0;    // 0: stored, 8: deflated
  uint64_t size = 0;
  uint32_t crc = 0;
};

Entry Stored(const std::string& name, const std::string& data) {
  return {name, data, 0, data.size(), Crc32(data)};
}

std::string ZipOf(const std::vector<Entry>& entries) {
  std::string zip, directory;
  for (const Entry& e : entries) {
    const std::string common = Little(20, 2) + Little(0, 2) + Little(e.method, 2) + Little(0, 4) +
                               Little(e.crc, 4) + Little(e.data.size(), 4) + Little(e.size, 4) +
                               Little(e.name.size(), 2) + Little(0, 2);
    directory += "PK\1\2" + Little(20, 2) + common + Little(0, 2) + Little(0, 2) + Little(0, 2) +
                 Little(0, 4) + Little(zip.size(), 4) + e.name;
    zip += "PK\3\4" + common + e.name + e.data;
  }
  return zip + directory + "PK\5\6" + Little(0, 4) + Little(entries.size(), 2) +
         Little(entries.size(), 2) + Little(directory.size(), 4) + Little(zip.size(), 4) +
         Little(0, 2);
}

// `bytes`, then zeros, in one deflate block of fixed codes: 13 bits for 258 zeros.
std::string Deflated(const std::string& bytes, uint64_t num_zeros) {
  std::string out;
  uint64_t bits = 0;
  int num_bits = 0;
  const auto put = [&](uint32_t value, int n) {  // lowest bit first
    bits |= static_cast<uint64_t>(value) << num_bits;
    for (num_bits += n; num_bits >= 8; num_bits -= 8, bits >>= 8)
      out.push_back(static_cast<char>(bits));
  };
  const auto code = [&](uint32_t value, int n) {  // Huffman codes: highest bit first
    for (int i = n; i-- > 0;) put(value >> i & 1, 1);
  };
  put(1 | 1 << 1, 3);
  const auto literal = [&](uint8_t c) {
    if (c < 144) return code(0x30 + c, 8);
    code(0x190 + c - 144, 9);
  };
  for (const char c : bytes) literal(static_cast<uint8_t>(c));
  if (num_zeros > 0) literal(0);
  for (uint64_t left = num_zeros > 0 ? num_zeros - 1 : 0; left >= 258; left -= 258) {
    code(0xC5, 8);  // length 258
    code(0, 5);     // distance 1
  }
  for (uint64_t left = (num_zeros > 0 ? num_zeros - 1 : 0) % 258; left > 0; --left) literal(0);
  code(0, 7);  // end
  put(0, 7);
  return out;
}

std::string Npy(const std::string& descr, const std::string& shape, const std::string& data,
                int major = 1) {
  std::string header = "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }";
  const size_t prefix = major == 1 ? 10 : 12;
  while ((prefix + header.size() + 1) % 64 != 0) header.push_back(' ');
  header.push_back('\n');
  return "\x93NUMPY" + Little(major, 1) + Little(0, 1) + Little(header.size(), major == 1 ? 2 : 4) +
         header + data;
}

std::string Ints(const std::vector<int64_t>& values, int bytes) {
  std::string data;
  for (const int64_t value : values) data += Little(static_cast<uint64_t>(value), bytes);
  return data;
}

// The file lies in memory: thousands of them are read.
class KeptFile : public testing::Test {
 protected:
  ~KeptFile() override { close(fd_); }
  absl::StatusOr<KeptSet> Read(const std::string& bytes) {
    EXPECT_EQ(ftruncate(fd_, 0), 0);
    EXPECT_EQ(pwrite(fd_, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    return ReadKeptFile(path_, kLayers, kHeads);
  }
  absl::StatusOr<KeptSet> ReadAll(const std::string& npy) {
    return Read(ZipOf({Stored("all.npy", npy)}));
  }
  // One line, which names the file.
  void ExpectRefused(const absl::StatusOr<KeptSet>& kept, const std::string& part) {
    ASSERT_FALSE(kept.ok()) << part;
    const std::string message(kept.status().message());
    EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
    ExpectOneLine(message);
  }
  void ExpectOneLine(const std::string& message) {
    EXPECT_NE(message.find(path_), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 1000u) << message;
  }

  const int fd_ = memfd_create("kept.npz", 0);
  const std::string path_ = "/proc/self/fd/" + std::to_string(fd_);
};

std::string Bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path << ": run from the repository's root";
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Peak resident memory of this process, in KiB.
int64_t PeakMemory() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6));
  return 0;
}

// --- What numpy writes --------------------------------------------------------------------------

TEST_F(KeptFile, ReadsWhatNumpyWrites) {
  for (const char* name : {"kept_stored", "kept_deflated"}) {
    const std::string path = std::string("tests/golden/compressors/") + name + ".npz";
    const auto kept = ReadKeptFile(path, kLayers, kHeads);
    ASSERT_TRUE(kept.ok()) << kept.status();
    // L0 (int32) for layer 0, but L0H1 (uint16, out of order, with a repeat) for its second head;
    // all (int64) for the rest.
    EXPECT_EQ(kept->positions,
              (Lists{{0, 1, 2, 77}, {5, 9, 300}, {0, 100, 200, 300}, {0, 100, 200, 300}}))
        << name;
  }
}

TEST_F(KeptFile, ReadsEveryTypeOfInteger) {
  for (const char* type : {"i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"}) {
    const int bytes = type[1] - '0';
    for (const char* order : {"<", "|"}) {
      const auto kept =
          ReadAll(Npy("'" + std::string(order) + type + "'", "(3,)", Ints({100, 0, 100}, bytes)));
      ASSERT_TRUE(kept.ok()) << kept.status();
      EXPECT_EQ(kept->positions, Lists(kLayers * kHeads, {0, 100})) << type;
    }
  }
  for (const int major : {2, 3})
    EXPECT_TRUE(ReadAll(Npy("'<i4'", "(1,)", Ints({7}, 4), major)).ok());
  EXPECT_TRUE(ReadAll(Npy("'<i4'", "(0,)", "")).ok()) << "keeps only the newest";
}

TEST_F(KeptFile, TheMostSpecialNameWins) {
  const auto npy = [](int64_t pos) { return Npy("'<i8'", "(1,)", Ints({pos}, 8)); };
  auto kept = Read(
      ZipOf({Stored("L1H0.npy", npy(3)), Stored("L1.npy", npy(2)), Stored("all.npy", npy(1))}));
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->positions, (Lists{{1}, {1}, {3}, {2}}));
  kept = Read(ZipOf({Stored("all", npy(1)), Stored("L0H1", npy(2))}));  // without .npy
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->positions, (Lists{{1}, {2}, {1}, {1}}));
}

TEST_F(KeptFile, NamesTheLayerThatIsMissing) {
  const std::string npy = Npy("'<i8'", "(1,)", Ints({1}, 8));
  ExpectRefused(Read(ZipOf({Stored("L0.npy", npy)})), "layer 1, KV head 0");
  ExpectRefused(Read(ZipOf({Stored("L0.npy", npy), Stored("L1H0.npy", npy)})),
                "layer 1, KV head 1");
}

TEST_F(KeptFile, NamesTheArrayThatHasNoMeaning) {
  const std::string npy = Npy("'<i8'", "(1,)", Ints({1}, 8));
  for (const std::string name :
       {"arr_0.npy", "L2.npy", "L0H2.npy", "l0.npy", "L.npy", "LH.npy", "L0H.npy", "L-1.npy",
        "L0H-1.npy", "L0H0H0.npy", "all0.npy", "folder/all.npy", "L99999999999.npy", ".npy", ""})
    ExpectRefused(Read(ZipOf({Stored("all.npy", npy), Stored(name, npy)})), "names are all, L0");
  ExpectRefused(Read(ZipOf({Stored("evil\nname", npy)})), "names are all, L0");
  ExpectRefused(Read(ZipOf({Stored(std::string(60000, 'x'), npy)})), "names are all, L0");
  ExpectRefused(Read(ZipOf({})), "");
}

// --- Hostile input ------------------------------------------------------------------------------

TEST_F(KeptFile, RefusesWhatIsNoFile) {
  const auto missing = ReadKeptFile(path_ + "0000", kLayers, kHeads);
  ExpectRefused(missing, "no such file");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  const auto folder = ReadKeptFile(testing::TempDir(), kLayers, kHeads);
  ASSERT_FALSE(folder.ok());
  EXPECT_NE(folder.status().message().find(testing::TempDir()), std::string::npos);
  EXPECT_FALSE(ReadKeptFile("", kLayers, kHeads).ok());
  EXPECT_FALSE(ReadKeptFile("/dev/null", kLayers, kHeads).ok());
  ExpectRefused(Read(""), "");
  ExpectRefused(Read("this is a text"), "not an .npz file");
  ExpectRefused(Read(Npy("'<i8'", "(1,)", Ints({1}, 8))), "not an .npz file");
}

TEST_F(KeptFile, RefusesEveryTruncation) {
  for (const char* name : {"kept_stored", "kept_deflated"}) {
    const std::string whole = Bytes(std::string("tests/golden/compressors/") + name + ".npz");
    ASSERT_GT(whole.size(), 100u);
    for (size_t size = 0; size < whole.size(); ++size)
      ExpectRefused(Read(whole.substr(0, size)), "");
  }
}

// A changed byte gives an error in one line or the file's meaning: sums guard the arrays.
TEST_F(KeptFile, SurvivesEveryChangedByte) {
  for (const char* name : {"kept_stored", "kept_deflated"}) {
    const std::string whole = Bytes(std::string("tests/golden/compressors/") + name + ".npz");
    const auto good = Read(whole);
    ASSERT_TRUE(good.ok());
    int num_refused = 0;
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const int change : {0x01, 0xff}) {
        std::string bytes = whole;
        bytes[at] = static_cast<char>(bytes[at] ^ change);
        const auto kept = Read(bytes);
        if (kept.ok()) {
          EXPECT_EQ(kept->positions.size(), good->positions.size());
          continue;
        }
        ++num_refused;
        ExpectOneLine(std::string(kept.status().message()));
      }
    }
    EXPECT_GT(num_refused, static_cast<int>(whole.size()));
  }
}

TEST_F(KeptFile, NoticesAWrongSum) {
  Entry entry = Stored("all.npy", Npy("'<i8'", "(1,)", Ints({1}, 8)));
  entry.crc ^= 1;
  ExpectRefused(Read(ZipOf({entry})), "\"all\" is damaged");
}

TEST_F(KeptFile, RefusesOtherTypesOfArrays) {
  const std::string data(16, '\1');
  for (const char* descr :
       {"'<f4'", "'<f8'", "'>i4'", "'>u2'", "'|b1'", "'|O'", "'<U4'", "'|S8'", "'<c8'", "'<M8[s]'",
        "'<i16'", "'<i3'", "'i4'", "i4", "''", "None", "[('a', '<i4')]", "'<i4"})
    ExpectRefused(ReadAll(Npy(descr, "(2,)", data)), "\"all\" is not an array of little-endian");
  for (const char* shape : {"(2, 1)", "(1, 2)", "()", "(-2,)", "(2.0,)", "(2L,)", "(x,)", "(,)",
                            "(99999999999999999999,)"})
    ExpectRefused(ReadAll(Npy("'<i8'", shape, data)), "\"all\" has shape");
  for (const char* shape : {"2", "(2", "", "[2]"})
    ExpectRefused(ReadAll(Npy("'<i8'", shape, data)), "\"all\"");
}

TEST_F(KeptFile, RefusesArraysOfAnotherLength) {
  for (const char* shape : {"(1,)", "(3,)", "(0,)", "(18446744073709551615,)",
                            "(2305843009213693954,)"})  // times 8: 16 modulo 2^64
    ExpectRefused(ReadAll(Npy("'<i8'", shape, std::string(16, '\1'))), "damaged");
  ExpectRefused(ReadAll(Npy("'<i8'", "(2,)", std::string(15, '\1'))), "damaged");
}

TEST_F(KeptFile, RefusesDamagedHeaders) {
  const std::string good = Npy("'<i8'", "(1,)", Ints({1}, 8));
  ASSERT_TRUE(ReadAll(good).ok());
  for (size_t size = 0; size < good.size(); ++size)
    ExpectRefused(ReadAll(good.substr(0, size)), "");
  for (const int major : {0, 4, 127, 255}) {
    std::string bytes = good;
    bytes[6] = static_cast<char>(major);
    ExpectRefused(ReadAll(bytes), "no .npy array");
  }
  for (size_t at = 0; at < 6; ++at) {
    std::string bytes = good;
    ++bytes[at];
    ExpectRefused(ReadAll(bytes), "no .npy array");
  }
  std::string bytes = good;
  bytes[8] = bytes[9] = '\xff';  // a header behind the end
  ExpectRefused(ReadAll(bytes), "damaged");
  bytes = Npy("'<i8'", "(1,)", Ints({1}, 8), 2);
  bytes[8] = bytes[9] = bytes[10] = bytes[11] = '\xff';
  ExpectRefused(ReadAll(bytes), "damaged");
}

TEST_F(KeptFile, RefusesWhatIsNoPosition) {
  const struct {
    const char* type;
    int bytes;
    int64_t value;
  } cases[] = {{"i1", 1, -1},
               {"i2", 2, -300},
               {"i4", 4, -1},
               {"i8", 8, -1},
               {"i8", 8, INT64_MIN},
               {"i8", 8, INT64_MAX},
               {"u8", 8, -1},
               {"u8", 8, INT64_MIN},
               {"u4", 4, 0xffffffff},
               {"i4", 4, 0x7fffffff},
               {"i8", 8, int64_t{1} << 32},
               {"i8", 8, (1 << 30) + 1}};
  for (const auto& c : cases)
    ExpectRefused(
        ReadAll(Npy(std::string("'<") + c.type + "'", "(2,)", Ints({3, c.value}, c.bytes))),
        "\"all\" holds a number that is no position");
}

// --- Zip bombs ----------------------------------------------------------------------------------

TEST_F(KeptFile, RefusesABombWithoutUnpackingIt) {
  constexpr uint64_t kZeros = uint64_t{1} << 30;
  const std::string head = Npy("'<i8'", "(134217728,)", "");
  Entry bomb{"all.npy", Deflated(head, kZeros), 8, head.size() + kZeros, 0};
  ASSERT_LT(bomb.data.size(), 8u << 20);
  const std::string honest = ZipOf({bomb});
  bomb.size = head.size() + 8;  // says that it is small
  const std::string liar = ZipOf({bomb});
  const int64_t before = PeakMemory();
  ExpectRefused(Read(honest), "larger than 64 MiB");
  ExpectRefused(Read(liar), "damaged");
  EXPECT_LT(PeakMemory() - before, 64 << 10) << "KiB";
}

TEST_F(KeptFile, RefusesASizeThatIsALie) {
  const std::string npy = Npy("'<i8'", "(1,)", Ints({1}, 8));
  Entry entry{"all.npy", Deflated(npy, 0), 8, npy.size(), Crc32(npy)};
  ASSERT_TRUE(Read(ZipOf({entry})).ok()) << "the writer of this test is right";
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, npy.size() - 1, npy.size() + 1,
                              uint64_t{60} << 20, uint64_t{0xfffffffe}}) {
    entry.size = size;
    ExpectRefused(Read(ZipOf({entry})), "");
    Entry stored = Stored("all.npy", npy);
    stored.size = size;
    ExpectRefused(Read(ZipOf({stored})), "");
  }
}

TEST_F(KeptFile, RefusesTooManyArrays) {
  const std::string npy = Npy("'<i8'", "(1,)", Ints({1}, 8));
  std::string bytes = ZipOf({Stored("all.npy", npy)});
  // The count in the end record says 65535, as a 64-bit zip's does.
  for (const size_t back : {14, 12}) bytes.replace(bytes.size() - back, 2, Little(0xffff, 2));
  ExpectRefused(Read(bytes), "");
}

}  // namespace
}  // namespace vericache
