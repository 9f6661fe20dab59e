// Real Redis servers for tests: each its own process, port and folder, gone at the end.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"
#include "gtest/gtest.h"
#include "remote/redis_connection.h"

namespace vericache {

// A port of this machine that nobody listens on now. It is below the range that clients' own ports
// come from: else a connection of another test may take it before it is used here.
inline int FreePort() {
  static std::minstd_rand random(static_cast<unsigned>(getpid()));
  for (;;) {
    const int port = std::uniform_int_distribution<int>(20000, 31999)(random);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool is_free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    if (is_free) return port;
  }
}

inline std::filesystem::path NewTestFolder() {
  std::string path = testing::TempDir() + "/vc_remote_XXXXXX";
  if (mkdtemp(path.data()) == nullptr) std::abort();
  return path;
}

inline Deadline In(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

class RedisServer {
 public:
  // `args`: beside port, folder and no persistence.
  explicit RedisServer(std::vector<std::string> args = {}, int port = FreePort())
      : args_(std::move(args)), port_(port), folder_(NewTestFolder()) {
    Start();
  }
  ~RedisServer() {
    Kill();
    std::filesystem::remove_all(folder_);
  }
  RedisServer(const RedisServer&) = delete;
  RedisServer& operator=(const RedisServer&) = delete;

  void Start() {
    std::vector<std::string> all = {"redis-server",   "--port",      std::to_string(port_),
                                    "--bind",         "127.0.0.1",   "--dir",
                                    folder_.string(), "--save",      "",
                                    "--appendonly",   "no",          "--unixsocket",
                                    socket(),         "--daemonize", "no"};
    all.insert(all.end(), args_.begin(), args_.end());
    std::vector<char*> argv;
    for (std::string& arg : all) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const std::string log = (folder_ / "log").string();
    pid_ = fork();
    if (pid_ == 0) {
      const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(out, 1);
      dup2(out, 2);
      execvp(argv[0], argv.data());
      _exit(127);
    }
    for (int i = 0; i < 1000; ++i) {
      if (std::filesystem::exists(socket()) && Ping()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ADD_FAILURE() << "redis-server did not start: install it (scripts/packages.txt), see " << log;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
    std::filesystem::remove(socket());
  }
  void Stop() const { kill(pid_, SIGSTOP); }
  void Continue() const { kill(pid_, SIGCONT); }

  int port() const { return port_; }
  std::string socket() const { return (folder_ / "s").string(); }
  const std::filesystem::path& folder() const { return folder_; }
  std::string Url(const std::string& params = "") const {
    return StrCat("redis://127.0.0.1:", port_, params);
  }
  // Through the Unix socket, past TLS.
  RespReply Call(const std::vector<std::string_view>& args) const {
    auto connection = RedisConnection::Open({socket(), 0}, {}, In(std::chrono::seconds(10)));
    if (!connection.ok()) return {};
    auto reply = (*connection)->Call(args);
    return reply.ok() ? *reply : RespReply{};
  }

 private:
  bool Ping() const {
    const RespReply reply = Call({"PING"});
    return reply.text == "PONG" || reply.is_error("NOAUTH");
  }

  const std::vector<std::string> args_;
  const int port_;
  const std::filesystem::path folder_;
  pid_t pid_ = -1;
};

// Three masters with all slots between them.
class RedisCluster {
 public:
  RedisCluster() {
    for (int i = 0; i < 3; ++i)
      nodes_.push_back(std::make_unique<RedisServer>(
          std::vector<std::string>{"--cluster-enabled", "yes", "--cluster-require-full-coverage",
                                   "no", "--cluster-port", std::to_string(FreePort())}));
    const int bounds[] = {0, 5461, 10923, 16384};
    for (int i = 0; i < 3; ++i)
      node(i).Call({"CLUSTER", "ADDSLOTSRANGE", std::to_string(bounds[i]),
                    std::to_string(bounds[i + 1] - 1)});
    for (int i = 1; i < 3; ++i) {
      const std::string bus = BusPort(i);
      node(0).Call({"CLUSTER", "MEET", "127.0.0.1", std::to_string(node(i).port()), bus});
    }
    for (int i = 0; i < 1000 && !Agreed(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_TRUE(Agreed()) << "the cluster did not form";
  }
  RedisServer& node(int i) { return *nodes_[i]; }
  std::string Id(int i) { return node(i).Call({"CLUSTER", "MYID"}).text; }
  std::string Url(const std::string& params = "") { return node(0).Url(params); }

 private:
  std::string BusPort(int i) {
    // CLUSTER NODES says "id 127.0.0.1:port@bus myself,...".
    const std::string text = node(i).Call({"CLUSTER", "NODES"}).text;
    const size_t at = text.find('@');
    return text.substr(at + 1, text.find_first_of(" ,", at) - at - 1);
  }
  bool Agreed() {
    for (int i = 0; i < 3; ++i) {
      const RespReply slots = node(i).Call({"CLUSTER", "SLOTS"});
      if (slots.elements.size() != 3) return false;
      if (node(i).Call({"CLUSTER", "INFO"}).text.find("cluster_state:ok") == std::string::npos)
        return false;
    }
    return true;
  }
  std::vector<std::unique_ptr<RedisServer>> nodes_;
};

// A CA, a certificate for "localhost", one for another name and one that has expired, made by
// openssl in `folder`: ca.pem, good.pem/.key, other.pem/.key, old.pem/.key. False: no openssl.
inline bool MakeCertificates(const std::filesystem::path& folder) {
  const std::string script = StrCat(
      "cd '", folder.string(), "' && exec >openssl.log 2>&1 && set -e\n",
      "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=test-ca -keyout ca.key "
      "-out ca.pem\n",
      "make() { openssl req -newkey rsa:2048 -nodes -subj \"/CN=$2\" -keyout $1.key -out $1.csr; "
      "printf 'subjectAltName=DNS:%s\\n' \"$2\" >$1.ext; ",
      "openssl x509 -req -in $1.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile $1.ext "
      "-out $1.pem -days $3; }\n",
      "make good localhost 30\nmake other elsewhere.test 30\nmake old localhost -1 || "
      "faketime_missing=1\n");
  return std::system(script.c_str()) == 0;
}

}  // namespace vericache
