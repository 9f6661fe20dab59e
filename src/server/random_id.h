// Ids of replies and tool calls: a prefix and letters that nobody can guess.
#pragma once

#include <string>
#include <string_view>

namespace vericache::server {

std::string RandomId(std::string_view prefix);

}  // namespace vericache::server
