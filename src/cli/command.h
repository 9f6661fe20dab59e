// The commands of `vericache`, one file each: main.cc lists them, this names them.
//
// To add one: a DeclareX here, a file x.cc, a line in main.cc's table and in CMakeLists.txt.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "cli/args.h"

namespace vericache::cli {

// What a command does once its flags are read. An error becomes one line on stderr and the exit
// status: see ReportError() in errors.h.
using CommandBody = std::function<absl::Status()>;

// Each declares the command's flags and gives what runs when it was chosen. The flags' values live
// in the body.
CommandBody DeclareRun(Flags* flags);
CommandBody DeclareBatch(Flags* flags);
CommandBody DeclareChat(Flags* flags);
CommandBody DeclareServe(Flags* flags);
CommandBody DeclareAudit(Flags* flags);
CommandBody DeclareCompare(Flags* flags);
CommandBody DeclareCompressors(Flags* flags);
CommandBody DeclareInspect(Flags* flags);
CommandBody DeclarePerplexity(Flags* flags);
CommandBody DeclarePrefix(Flags* flags);
CommandBody DeclarePull(Flags* flags);
CommandBody DeclareBench(Flags* flags);
CommandBody DeclareVerifier(Flags* flags);
CommandBody DeclareVersion(Flags* flags);

}  // namespace vericache::cli
