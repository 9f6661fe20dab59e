#include "scheduler/step_plan.h"

namespace vericache {

const char* DraftModeName(DraftMode mode) {
  switch (mode) {
    case DraftMode::kPlain:
      return "plain";
    case DraftMode::kDraftKv:
      return "draft-kv";
    case DraftMode::kNgram:
      return "ngram";
    case DraftMode::kDraftModel:
      return "draft-model";
    case DraftMode::kNgramDraftKv:
      return "ngram+draft-kv";
    case DraftMode::kModelDraftKv:
      return "draft-model+draft-kv";
  }
  return "unknown";
}

}  // namespace vericache
