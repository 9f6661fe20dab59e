// Whole files in and out: reads have a limit, a write leaves the old file or the new one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace vericache::cli {

// Far above any prompt that fits a context; what is longer is a mistake.
inline constexpr uint64_t kPromptBytesMax = uint64_t{64} << 20;
inline constexpr uint64_t kJsonBytesMax = uint64_t{64} << 20;

// ERRORS: kNotFound, kPermissionDenied, kInvalidArgument (a folder), kResourceExhausted (longer
//         than `bytes_max`). Pipes are read to their end. "-" is standard input.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, uint64_t bytes_max);

// False for what is there and is no regular file: a folder, a pipe, /dev/stdout.
bool IsFileOrNothing(const std::string& path);

// Writes a file next to the target, syncs it and renames it over the target; what is no regular
// file (/dev/stdout, a pipe) is written to directly.
absl::Status WriteFileAtomic(const std::string& path, std::string_view content);

// Fails where WriteFileAtomic() or Engine::SaveSession() would for a reason that can be seen
// beforehand: no such folder, no permission, a folder of that name. `flag` names it in the error.
absl::Status CheckWritable(const std::string& flag, const std::string& path);

// "WHAT PATH: why", of the kind that `error` (errno) stands for.
absl::Status FileError(const std::string& what, const std::string& path, int error);

bool FileExists(const std::string& path);

}  // namespace vericache::cli
