#include "remote/redis_store.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "base/text.h"

namespace vericache {
namespace {

using From = RedisNodes::From;
using Lease = RedisNodes::Lease;

constexpr size_t kBlobsAtOnce = 8;  // asked for before the first is read
constexpr size_t kPiecesAtOnce = 8;
constexpr size_t kKeysAtOnce = 256;  // of EXISTS
constexpr int kMaxRedirections = 5;

bool IsRedirection(const RespReply& reply) {
  return reply.is_error("MOVED ") || reply.is_error("ASK ");
}

bool ParseOr(const StoreUrl& url, const std::string& name, int64_t min, int64_t max,
             int64_t* value) {
  const std::string text = url.Param(name);
  return text.empty() || (ParseInt(text, value) && *value >= min && *value <= max);
}

}  // namespace

absl::StatusOr<RedisOptions> RedisOptionsOf(const StoreUrl& url) {
  VC_RETURN_IF_ERROR(
      CheckParams(url, {"prefix", "db", "timeout_ms", "wait_ms", "ca_file", "tls_verify",
                        "tls_name", "protocol", "piece_bytes", "squeeze"}));
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(StrCat(url.Redacted(), ": ", what));
  };
  RedisOptions options;
  int64_t db = 0, timeout_ms = options.timeout.count(), piece_bytes = options.piece_bytes;
  int64_t protocol = 2;
  const bool is_unix = url.scheme == "redis+unix";
  if (!is_unix && url.path.size() > 1 &&
      (!ParseInt(std::string_view(url.path).substr(1), &db) || db < 0 || db > 1 << 20))
    return bad("what stands behind the host is not a database number");
  if (!ParseOr(url, "db", 0, 1 << 20, &db)) return bad("db is not a database number");
  if (!ParseOr(url, "timeout_ms", 1, 3600000, &timeout_ms))
    return bad("timeout_ms is not a whole number from 1 to 3600000");
  int64_t wait_ms = 0;
  if (!ParseOr(url, "wait_ms", 0, 3600000, &wait_ms))
    return bad("wait_ms is not a whole number from 0 to 3600000");
  options.least_wait = std::chrono::milliseconds(wait_ms);
  if (!ParseOr(url, "piece_bytes", kMinPieceBytes, kMaxPieceBytes, &piece_bytes))
    return bad("piece_bytes is not a whole number from 4096 to 67108864");
  if (!ParseOr(url, "protocol", 2, 3, &protocol)) return bad("protocol is neither 2 nor 3");
  options.prefix = url.Param("prefix", options.prefix);
  if (options.prefix.find_first_of("{}") != std::string::npos)
    return bad("the prefix must not hold braces");
  const std::string verify = url.Param("tls_verify", "1");
  if (verify != "0" && verify != "1") return bad("tls_verify is neither 0 nor 1");
  options.address =
      is_unix ? NetAddress{url.path, 0} : NetAddress{url.host, url.port > 0 ? url.port : 6379};
  options.login.tls = {url.scheme == "rediss", verify == "1", url.Param("ca_file"),
                       url.Param("tls_name")};
  options.login.user = url.user;
  options.login.password = url.password;
  options.login.db = static_cast<int>(db);
  options.login.protocol = static_cast<int>(protocol);
  options.timeout = std::chrono::milliseconds(timeout_ms);
  options.piece_bytes = static_cast<uint32_t>(piece_bytes);
  return options;
}

// One blob on its way in.
struct RedisStore::Reading {
  enum class State {
    kOpen,     // nothing came yet
    kMissing,  // or damaged
    kPieces,   // the head is here, its pieces are not
    kDone,     // all bytes are here, not yet checked
    kAgain,    // redirected, or a pooled connection had gone
    kFailed,
  };
  State state = State::kOpen;
  RedisHead head;
  BlobBytes payload;
  RespReply redirection;
  absl::Status error;
  bool damaged = false;
  uint32_t pieces_read = 0;
  bool whole = true;  // no piece was missing so far

  // `size` bytes of a value at P{HEX} follow.
  absl::Status TakeMain(const BlobKey& key, uint64_t size, RespReader* in);
  // The answer to GET P{HEX}.
  absl::Status ReadMain(const BlobKey& key, const NetAddress& from, RespReader* in);
  // Asks for the pieces and reads them.
  absl::Status ReadPieces(const std::string& main, RedisConnection* connection) {
    const std::pair<Reading*, std::string> one(this, main);
    return ReadPiecesOf({&one, 1}, connection);
  }
  // The same for several blobs in a row, without a pause between them. After an error: those that
  // are kDone or kMissing hold.
  static absl::Status ReadPiecesOf(absl::Span<const std::pair<Reading*, std::string>> blobs,
                                   RedisConnection* connection);
  // The answer to GET of the next piece.
  absl::Status ReadPiece(RespReader* in);
  // The connection is of no more use.
  void Broken(absl::Status status, bool pooled) {
    if (state == State::kMissing || state == State::kDone || state == State::kAgain) return;
    state = pooled && absl::IsUnavailable(status) ? State::kAgain : State::kFailed;
    error = std::move(status);
  }
};

absl::Status RedisStore::Reading::TakeMain(const BlobKey& key, uint64_t size, RespReader* in) {
  uint8_t bytes[kRedisHeadBytes];
  if (size >= kRedisHeadBytes) {
    VC_RETURN_IF_ERROR(in->Take(bytes, sizeof(bytes)));
    head.ReadFrom(bytes);
  }
  if (size < kRedisHeadBytes || !head.Fits(key, size) ||
      !MakeRoomFor(head.payload_bytes(), &payload)) {
    damaged = true;
    state = State::kMissing;
    VC_RETURN_IF_ERROR(in->Skip(size < kRedisHeadBytes ? size : size - kRedisHeadBytes));
    return in->EndBulk();
  }
  if (head.num_pieces == 0) VC_RETURN_IF_ERROR(in->Take(payload.data(), payload.size()));
  state = head.num_pieces == 0 ? State::kDone : State::kPieces;
  return in->EndBulk();
}

absl::Status RedisStore::Reading::ReadMain(const BlobKey& key, const NetAddress& from,
                                           RespReader* in) {
  RespReply other;
  VC_ASSIGN_OR_RETURN(const int64_t size, in->BeginBulk(&other));
  if (size >= 0) return TakeMain(key, static_cast<uint64_t>(size), in);
  if (other.kind == RespReply::Kind::kNull) {
    state = State::kMissing;
  } else if (IsRedirection(other)) {
    state = State::kAgain;
    redirection = std::move(other);
  } else {
    state = State::kFailed;
    error = StatusOfReply(from, other, ReplyText::kShown);
  }
  return absl::OkStatus();
}

absl::Status RedisStore::Reading::ReadPiece(RespReader* in) {
  RespReply other;
  VC_ASSIGN_OR_RETURN(const int64_t size, in->BeginBulk(&other));
  const uint64_t wanted = head.BytesOfPiece(pieces_read);
  if (size >= 0 && static_cast<uint64_t>(size) == wanted) {
    VC_RETURN_IF_ERROR(in->Take(payload.data() + uint64_t{pieces_read} * head.piece_bytes, wanted));
    VC_RETURN_IF_ERROR(in->EndBulk());
  } else {
    whole = false;
    damaged |= size >= 0;
    if (size >= 0) {
      VC_RETURN_IF_ERROR(in->Skip(static_cast<uint64_t>(size)));
      VC_RETURN_IF_ERROR(in->EndBulk());
    }
  }
  ++pieces_read;
  return absl::OkStatus();
}

absl::Status RedisStore::Reading::ReadPiecesOf(
    absl::Span<const std::pair<Reading*, std::string>> blobs, RedisConnection* connection) {
  std::deque<Reading*> asked;  // one entry a piece
  size_t next = 0;             // blob to ask for a piece of,
  uint32_t sent = 0;           // and how many it was asked for
  for (;;) {
    std::string commands;
    while (asked.size() < kPiecesAtOnce && next < blobs.size()) {
      const auto& [reading, main] = blobs[next];
      if (!reading->whole || sent == reading->head.num_pieces) {
        ++next;
        sent = 0;
        continue;
      }
      commands += RespCommand({"GET", RedisPieceKey(main, reading->head.generation, sent++)});
      asked.push_back(reading);
    }
    if (!commands.empty()) VC_RETURN_IF_ERROR(connection->Send({commands}));
    if (asked.empty()) return absl::OkStatus();
    Reading* reading = asked.front();
    asked.pop_front();
    VC_RETURN_IF_ERROR(reading->ReadPiece(&connection->replies()));
    // One that lacks a piece is over when what was asked for has been read.
    if (!reading->whole) reading->state = State::kMissing;
    if (reading->whole && reading->pieces_read == reading->head.num_pieces)
      reading->state = State::kDone;
  }
}

RedisStore::RedisStore(const RedisOptions& options)
    : options_(options),
      name_(StrCat(options.login.tls.enabled   ? "rediss://"
                   : options.address.port == 0 ? "redis+unix://"
                                               : "redis://",
                   options.address.Text())),
      nodes_(options.address, options.login),
      random_(std::random_device{}() ^ (uint64_t{std::random_device{}()} << 32)) {}

Deadline RedisStore::Limit(Deadline deadline) const {
  const Deadline now = std::chrono::steady_clock::now();
  return std::min(std::max(deadline, now + options_.least_wait), now + options_.timeout);
}

std::string RedisStore::MainKey(const BlobKey& key) const {
  return StrCat(options_.prefix, "{", HexOf(key), "}");
}

absl::StatusOr<Lease> RedisStore::ConnectFor(const std::string& main, Deadline deadline,
                                             From from) {
  VC_ASSIGN_OR_RETURN(const NetAddress node, nodes_.NodeOf(RedisSlot(main), deadline));
  return nodes_.Connect(node, deadline, from);
}

void RedisStore::ReadWindow(absl::Span<const BlobKey> keys, Deadline deadline,
                            std::vector<Reading>* readings) {
  std::map<NetAddress, Lease> leases;
  std::vector<Lease*> of_key(keys.size(), nullptr);
  // One connection a node: its answers come in the order of the keys.
  for (size_t i = 0; i < keys.size(); ++i) {
    Reading& reading = (*readings)[i];
    const std::string main = MainKey(keys[i]);
    const absl::StatusOr<NetAddress> node = nodes_.NodeOf(RedisSlot(main), deadline);
    if (!node.ok()) {
      reading.Broken(node.status(), false);
      continue;
    }
    if (!leases.contains(*node)) {
      absl::StatusOr<Lease> lease = nodes_.Connect(*node, deadline, From::kPool);
      if (!lease.ok()) {
        reading.Broken(lease.status(), false);
        // The others would wait for it as long, one after the other.
        for (size_t k = i + 1; k < keys.size(); ++k) (*readings)[k].Broken(lease.status(), false);
        break;
      }
      leases.emplace(*node, *std::move(lease));
    }
    of_key[i] = &leases.at(*node);
    const absl::Status sent = (*of_key[i])->Send({RespCommand({"GET", main})});
    if (!sent.ok()) reading.Broken(sent, of_key[i]->pooled());
  }
  const auto run = [&](size_t i, const std::function<absl::Status(RedisConnection*)>& step) {
    Lease& lease = *of_key[i];
    const absl::Status status =
        lease->broken() ? absl::UnavailableError(StrCat(lease->address().Text(), ": broken off"))
                        : step(lease.get());
    if (status.ok()) return;
    lease->Break();
    (*readings)[i].Broken(status, lease.pooled());
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    if (of_key[i] == nullptr) continue;
    run(i, [&](RedisConnection* c) {
      return (*readings)[i].ReadMain(keys[i], c->address(), &c->replies());
    });
  }
  for (auto& [node, lease] : leases) {
    std::vector<std::pair<Reading*, std::string>> blobs;
    for (size_t i = 0; i < keys.size(); ++i)
      if (of_key[i] == &lease && (*readings)[i].state == Reading::State::kPieces)
        blobs.emplace_back(&(*readings)[i], MainKey(keys[i]));
    if (blobs.empty()) continue;
    const absl::Status status = lease->broken()
                                    ? absl::UnavailableError(StrCat(node.Text(), ": broken off"))
                                    : Reading::ReadPiecesOf(blobs, lease.get());
    if (status.ok()) continue;
    lease->Break();
    for (const auto& [reading, main] : blobs) reading->Broken(status, lease.pooled());
  }
}

absl::StatusOr<BlobBytes> RedisStore::ReadOne(const BlobKey& key, Deadline deadline) {
  const std::string main = MainKey(key);
  absl::StatusOr<Lease> lease = ConnectFor(main, deadline, From::kFresh);
  for (int hop = 0; hop <= kMaxRedirections; ++hop) {
    VC_RETURN_IF_ERROR(lease.status());
    Reading reading;
    absl::Status status = (*lease)->Send({RespCommand({"GET", main})});
    RespReader* in = &(*lease)->replies();
    if (status.ok()) status = reading.ReadMain(key, (*lease)->address(), in);
    // ASKING holds for one command.
    bool asked = false;
    for (int ask = 0; status.ok() && reading.redirection.is_error("ASK ") && ask < 2; ++ask) {
      VC_ASSIGN_OR_RETURN(const NetAddress to,
                          nodes_.Redirected(reading.redirection, (*lease)->address()));
      lease = nodes_.Connect(to, deadline, From::kFresh);
      VC_RETURN_IF_ERROR(lease.status());
      in = &(*lease)->replies();
      reading = Reading();
      status = (*lease)->Send({RespCommand({"ASKING"}), RespCommand({"GET", main})});
      RespReply fine;
      if (status.ok()) status = in->Read().status();
      if (status.ok()) status = reading.ReadMain(key, (*lease)->address(), in);
      asked = true;
    }
    if (status.ok() && reading.state == Reading::State::kPieces && !asked)
      status = reading.ReadPieces(main, lease->get());
    if (status.ok() && reading.state == Reading::State::kPieces)
      return absl::NotFoundError("a blob on its way from one server to another");
    if (!status.ok()) {
      (*lease)->Break();
      return status;
    }
    if (reading.state != Reading::State::kAgain) return Finished(key, std::move(reading));
    VC_ASSIGN_OR_RETURN(const NetAddress to,
                        nodes_.Redirected(reading.redirection, (*lease)->address()));
    lease = nodes_.Connect(to, deadline, From::kPool);
  }
  return absl::UnavailableError(StrCat(name_, ": redirected in a circle"));
}

absl::StatusOr<BlobBytes> RedisStore::Finished(const BlobKey& key, Reading reading) {
  if (reading.state == Reading::State::kFailed) return reading.error;
  bool whole = reading.state == Reading::State::kDone;
  if (whole &&
      !CheckBlobPayload(reading.head.header, {reading.payload.data(), reading.payload.size()}).ok())
    whole = false, reading.damaged = true;
  if (reading.damaged) ++counts_.damaged;
  if (!whole) return absl::NotFoundError("no such blob");
  counts_.read_bytes += reading.payload.size();
  return std::move(reading.payload);
}

absl::StatusOr<BlobBytes> RedisStore::Get(const BlobKey& key, Deadline deadline) {
  absl::StatusOr<BlobBytes> result = absl::NotFoundError("no such blob");
  GetMany({&key, 1}, deadline, [&](size_t, absl::StatusOr<BlobBytes> blob) {
    result = std::move(blob);
    return false;
  });
  return result;
}

void RedisStore::GetMany(absl::Span<const BlobKey> keys, Deadline deadline, const Sink& sink) {
  for (size_t begin = 0; begin < keys.size(); begin += kBlobsAtOnce) {
    const Deadline limit = Limit(deadline);
    const auto window = keys.subspan(begin, std::min(kBlobsAtOnce, keys.size() - begin));
    std::vector<Reading> readings(window.size());
    ReadWindow(window, limit, &readings);
    for (size_t i = 0; i < window.size(); ++i) {
      // A manifest whose pieces have gone may have been replaced while they were read.
      const bool again = readings[i].state == Reading::State::kAgain ||
                         (readings[i].state == Reading::State::kMissing &&
                          readings[i].head.num_pieces > 0 && !readings[i].damaged);
      absl::StatusOr<BlobBytes> blob =
          again ? ReadOne(window[i], limit) : Finished(window[i], std::move(readings[i]));
      if (!sink(begin + i, std::move(blob))) return;
    }
  }
}

absl::StatusOr<RespReply> RedisStore::CallKey(const std::vector<std::string_view>& args,
                                              Deadline deadline) {
  const int slot = RedisSlot(args[1]);
  std::optional<NetAddress> to;
  bool asking = false;
  for (int hop = 0; hop <= kMaxRedirections; ++hop) {
    if (!to.has_value()) {
      VC_ASSIGN_OR_RETURN(to, nodes_.NodeOf(slot, deadline));
    }
    VC_ASSIGN_OR_RETURN(Lease lease,
                        nodes_.Connect(*to, deadline, hop == 0 ? From::kPool : From::kFresh));
    if (asking) VC_RETURN_IF_ERROR(lease->Call({"ASKING"}).status());
    absl::StatusOr<RespReply> reply = lease->Call(args);
    asking = false;
    if (!reply.ok() && absl::IsUnavailable(reply.status()) && lease.pooled()) {
      to.reset();
      continue;
    }
    if (!reply.ok() || !IsRedirection(*reply)) return reply;
    asking = reply->is_error("ASK ");
    VC_ASSIGN_OR_RETURN(to, nodes_.Redirected(*reply, *to));
  }
  return absl::UnavailableError(StrCat(name_, ": redirected in a circle"));
}

absl::StatusOr<size_t> RedisStore::CountWindow(absl::Span<const BlobKey> keys, Until until,
                                               Deadline limit) {
  std::map<NetAddress, Lease> leases;
  std::map<NetAddress, std::string> commands;
  std::vector<NetAddress> node_of(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string main = MainKey(keys[i]);
    VC_ASSIGN_OR_RETURN(node_of[i], nodes_.NodeOf(RedisSlot(main), limit));
    commands[node_of[i]] += RespCommand({"EXISTS", main});
  }
  absl::Status status;
  for (const auto& [node, text] : commands) {
    absl::StatusOr<Lease> lease = nodes_.Connect(node, limit, From::kPool);
    if (!lease.ok()) status = lease.status();
    if (!lease.ok()) break;
    (void)(*lease)->Send({text});  // a failure is seen when the answers are read
    leases.emplace(node, *std::move(lease));
  }
  size_t count = 0;
  bool goes_on = true;
  // All answers are read, wanted or not, so that the connections can be used again.
  for (size_t i = 0; i < keys.size() && status.ok(); ++i) {
    Lease& lease = leases.at(node_of[i]);
    absl::StatusOr<RespReply> reply = absl::UnavailableError("broken off");
    if (!lease->broken()) reply = lease->replies().Read();
    if (!reply.ok()) lease->Break();
    const bool stale = !reply.ok() && absl::IsUnavailable(reply.status()) && lease.pooled();
    if (!goes_on) continue;
    if (stale || (reply.ok() && IsRedirection(*reply)))
      reply = CallKey({"EXISTS", MainKey(keys[i])}, limit);
    status = reply.status();
    if (status.ok() && reply->kind != RespReply::Kind::kInteger)
      status = StatusOfReply(node_of[i], *reply, ReplyText::kShown);
    goes_on = status.ok() && (reply->integer > 0) == (until == Until::kMissing);
    count += goes_on;
  }
  for (auto& [node, lease] : leases)
    if (!status.ok()) lease->Break();
  VC_RETURN_IF_ERROR(status);
  return count;
}

absl::StatusOr<size_t> RedisStore::CountUntil(absl::Span<const BlobKey> keys, Until until,
                                              Deadline deadline) {
  const Deadline limit = Limit(deadline);
  size_t count = 0;
  for (size_t begin = 0; begin < keys.size(); begin += kKeysAtOnce) {
    const auto window = keys.subspan(begin, std::min(kKeysAtOnce, keys.size() - begin));
    VC_ASSIGN_OR_RETURN(const size_t more, CountWindow(window, until, limit));
    count += more;
    if (more < window.size()) break;
  }
  return count;
}

absl::StatusOr<int64_t> RedisStore::CountPresent(absl::Span<const BlobKey> keys,
                                                 Deadline deadline) {
  VC_ASSIGN_OR_RETURN(const size_t count, CountUntil(keys, Until::kMissing, deadline));
  return static_cast<int64_t>(count);
}

absl::StatusOr<size_t> RedisStore::FindFirst(absl::Span<const BlobKey> keys, Deadline deadline) {
  return CountUntil(keys, Until::kPresent, deadline);
}

}  // namespace vericache
