// A CompletionService that says what a script tells it to: for tests of the server.
//
// The script is JSON; see stub_service.cc for its members. Tokens are words, or whatever the script
// lists; a thread of its own plays the engine: it admits, prefills and emits step by step.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>

#include "vericache/serving.h"

namespace vericache {

std::shared_ptr<CompletionService> MakeStubService(const nlohmann::json& script);

}  // namespace vericache
