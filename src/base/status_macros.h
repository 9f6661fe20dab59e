// Early return on a failed absl::Status. Errors cross folders as Status; exceptions never do.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define VC_RETURN_IF_ERROR(expr)                                            \
  do {                                                                      \
    if (absl::Status vc_status = (expr); !vc_status.ok()) return vc_status; \
  } while (false)

#define VC_CONCAT_INNER(a, b) a##b
#define VC_CONCAT(a, b) VC_CONCAT_INNER(a, b)
#define VC_ASSIGN_OR_RETURN_IMPL(var, lhs, expr) \
  auto var = (expr);                             \
  if (!var.ok()) return var.status();            \
  lhs = std::move(var).value()
#define VC_ASSIGN_OR_RETURN(lhs, expr) \
  VC_ASSIGN_OR_RETURN_IMPL(VC_CONCAT(vc_statusor_, __LINE__), lhs, expr)
