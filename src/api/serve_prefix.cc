// The service's requests whose prefix a store is asked for: beside the passes of others.
#include <algorithm>
#include <utility>

#include "api/serve_loop.h"

namespace vericache {
void ServeLoop::FindPrefix(ServeChoice* choice) {
  Sequence* s = choice->sequence.get();
  std::unique_ptr<PrefixLookup> lookup;
  // A prompt whose logits are wanted has to be computed.
  if (!s->on_prompt_row) lookup = impl_->PlanPrefix(choice->job->request, *s, PrefixUse::kShared);
  if (impl_->options.prefix_plan == "recompute") return TakePrefix(std::move(lookup), choice);
  choice->load = loader_->StartOrLoad(&lookup, on_event_);
  if (choice->load == nullptr) return TakePrefix(std::move(lookup), choice);
  choice->load_s = NowSeconds();
}

// lookup: null if there was none.
void ServeLoop::TakePrefix(std::unique_ptr<PrefixLookup> lookup, ServeChoice* choice) {
  Sequence* s = choice->sequence.get();
  if (lookup != nullptr) impl_->TakePrefix(std::move(lookup), PrefixUse::kShared, s);
  if (s->num_emitted() > 0) s->draft.reset();
  choice->known_tokens = choice->prompt_done = s->full.num_tokens();
  if (choice->index == 0) choice->job->cached_tokens = s->full.num_tokens();
  AddHere(choice);
}

bool ServeLoop::HasLoaded() const {
  return std::any_of(active_.begin(), active_.end(), [](const auto& choice) {
    return choice->load != nullptr && choice->load->done();
  });
}

void ServeLoop::TakeLoaded() {
  std::vector<ServeChoice*> loaded;
  for (const auto& choice : active_)
    if (choice->load != nullptr && choice->load->done()) loaded.push_back(choice.get());
  for (ServeChoice* choice : loaded) {
    choice->load_s = NowSeconds() - choice->load_s;
    TakePrefix(std::exchange(choice->load, nullptr)->Take(), choice);
  }
}

void ServeLoop::CancelLoads(ServeId id) {
  std::vector<ServeChoice*> loading;
  for (const auto& choice : active_)
    if (choice->load != nullptr && choice->job->id == id) loading.push_back(choice.get());
  for (ServeChoice* choice : loading) {
    std::exchange(choice->load, nullptr)->Cancel();
    RequestTimes times;
    times.end_s = NowSeconds() - choice->load_s;
    const std::unique_ptr<Sequence> s = std::move(choice->sequence);
    OnEnd(choice, *s, times);
  }
}

}  // namespace vericache
