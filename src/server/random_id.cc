#include "server/random_id.h"

#include <random>

namespace vericache::server {

std::string RandomId(std::string_view prefix) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  constexpr int kNumLetters = 24;
  thread_local std::random_device device;
  std::uniform_int_distribution<size_t> pick(0, kLetters.size() - 1);
  std::string id(prefix);
  for (int i = 0; i < kNumLetters; ++i) id += kLetters[pick(device)];
  return id;
}

}  // namespace vericache::server
