"""What is measured beside each other: each variant decodes the same tokens of the same requests.

decode_s of one request is the time from its first token to its last. One after another: their sum;
at once: from the moment that the last prompt is done (together.py); with_prompts_tok_s counts from
the first token of any, with what of prompts is computed in between.
"""

import command
import bench_path  # noqa: F401  (finds the modules of bench)
import engines
import together
from names import (
    LOCK_STEP, PEERS, RAM_AT_ONCE, RAM_DRAFT, RAM_SERIAL, STAGGERED, STREAMED, UNVERIFIED,
    under_budget)

BASE_TOKENS = 2048  # of a peer's prompt that are prefilled; its longer KV repeats them


class Wrong(Exception):
    """A variant's answer is not the full KV's."""


class Setup:
    """What the variants of one round share."""

    def __init__(self, vericache, requests, num_tokens, draft):
        self.vericache, self.requests = vericache, requests
        self.num_tokens, self.draft = num_tokens, draft

    def budget(self, parts):
        """A `parts`-th of the full KV of all requests, in bytes."""
        return sum(r.full_bytes for r in self.requests) // parts


def check(request, result):
    """The tokens and the hash of the logits must be those of the full KV."""
    ours, full = result["token_ids"], request.token_ids
    if ours != full:
        same = (i for i, (a, b) in enumerate(zip(ours, full)) if a != b)
        at = next(same, min(len(ours), len(full)))
        raise Wrong(f"{request.custom_id}: token {at} is not the full KV's")
    if result["logits_hash"] != request.logits_hash:
        raise Wrong(f"{request.custom_id}: the tokens are the full KV's, the logits are not")


def seconds_of(result):
    """From a request's first token to its last."""
    stats = result["stats"]
    if times := stats.get("times"):
        return times["end_s"] - times["first_token_s"]
    return stats["draft_s"] + stats["verify_s"]


def window_of(results):
    """From the first token of any request of a batch to the last of all."""
    times = [r["stats"]["times"] for r in results]
    return max(t["end_s"] for t in times) - min(t["first_token_s"] for t in times)


def total(results, key):
    return sum(r["stats"][key] for r in results)


def longest_gap(results):
    """Longest time between two steps that gave a request tokens, over all requests."""
    gaps = [r["stats"]["times"]["max_burst_s"] for r in results if r["stats"].get("times")]
    return {"longest_gap_s": max(gaps)} if gaps else {}


def measured(setup, results, seconds, ended):
    """`ended`: of all processes that took part."""
    for request, result in zip(setup.requests, results, strict=True):
        check(request, result)
    tokens = sum(len(r["token_ids"]) - 1 for r in results)
    record = {key: total(results, key) for key in ("rounds", "drafted", "accepted")}
    record |= {key: total(results, key) for key in ("draft_s", "verify_s")}
    record |= {"tokens": tokens, "decode_s": seconds, "tok_s": tokens / seconds}
    record["kept_fraction"] = total(results, "kept_fraction") / len(results)
    record["peak_rss_bytes"] = max(e.peak_rss_bytes for e in ended)
    record["draft_spec"] = ended[0].fitted_spec(setup.draft)
    return record | longest_gap(results)


def memory_of(results):
    """What `run` tells of reading back; {} where all is in RAM."""
    known = [r["stats"]["kv_memory"] for r in results if r["stats"]["kv_memory"]]
    if not known:
        return {}
    return {
        "fetch_s": sum(m["stream_s"] for m in known),
        "stall_s": sum(m["stream_wait_s"] for m in known),
        "fetched_bytes": sum(m["streamed_bytes"] for m in known),
        "peak_kv_bytes": max(m["peak_bytes"] for m in known),
    }


def serial(setup, draft, draft_len, budget):
    """One after another, a process each."""
    runs = [
        setup.vericache.run_one(r, setup.num_tokens, draft, draft_len, budget)
        for r in setup.requests
    ]
    results = [result for result, _ in runs]
    record = measured(
        setup, results, sum(map(seconds_of, results)), [ended for _, ended in runs]
    ) | memory_of(results)
    choice = results[0]["stats"].get("choice")
    if choice and len(results) == 1:
        record["predicted_tok_s"] = choice["tokens_per_s"]
        record["choice"] = choice
    return record


STATS = ("stall_s", "fetch_s", "fetched_bytes", "peak_kv_bytes", "prediction_error", "pass_s")
STATS += ("passes", "preempted", "most_running")


def at_once(setup, draft, draft_len, budget, lock_step=False):
    """All in one process, in shared passes."""
    results, stats, timeline, ended = setup.vericache.run_batch(
        setup.requests, setup.num_tokens, draft, draft_len, budget, lock_step
    )
    if wrong := [r["error"] for r in results if r.get("error")]:
        raise command.Failed(wrong[0])
    record = measured(setup, results, window_of(results), [ended])
    record |= {key: stats[key] for key in STATS} | {"with_prompts_tok_s": record["tok_s"]}
    # Where one had to wait for another's end, there is no time in which all decode.
    all_ran = stats["most_running"] == len(setup.requests)
    if all_ran and (times := together.of_timeline(timeline)):
        record |= times | {"tok_s": times["tokens"] / times["decode_s"]}
    return record


def unverified(setup):
    """The draft KV alone; its answer may be another."""
    found, ended = setup.vericache.compare(setup.requests[0], setup.num_tokens, setup.draft)
    row = found["rows"][0]
    if not row["vericache"]["identical"]:
        raise Wrong(f"{setup.requests[0].custom_id}: `vericache compare` found a difference")
    answer = row["unverified"]
    tokens = len(answer["token_ids"]) - 1
    return {
        "tokens": tokens,
        "decode_s": answer["decode_s"],
        "tok_s": tokens / answer["decode_s"],
        "identical": answer["identical"],
        "peak_rss_bytes": ended.peak_rss_bytes,
        "draft_spec": setup.draft,
    }


class TiledPrompt:
    """As bench/prompts.py's Synthetic: the beginning of a prompt, repeated to its length."""

    synthetic, is_long, tail_ids = True, True, []

    def __init__(self, ids):
        self.ids, self.depth = ids[:BASE_TOKENS], len(ids)


class Llama:
    """llama.cpp with its KV in RAM; its time does not depend on the values in the KV."""

    def __init__(self, label, python, model, model_sha256, threads, states):
        flash = label == PEERS["on"]
        self.label = label
        self.peer = engines.Peer(label, python, "llamacpp.py", model, threads, flash)
        self.peer.model_sha256, self.peer.states = model_sha256, states
        self.at = None  # custom_id of the request whose KV it holds

    @property
    def pid(self):
        return self.peer.process.pid

    def measure(self, setup):
        """One request; one after another means the same rate for more of them."""
        request = setup.requests[0]
        if self.at != request.custom_id:
            self.prompt = TiledPrompt(request.prompt_ids)
            self.peer.open(self.prompt.depth + setup.num_tokens + 2)
            self.at = request.custom_id
        result = self.peer.measure(self.prompt, setup.num_tokens - 1, False, 0)
        return {
            "tokens": setup.num_tokens - 1,
            "decode_s": (setup.num_tokens - 1) / result["decode_tok_s"],
            "tok_s": result["decode_tok_s"],
            "kv_source": result["kv_source"],
            "engine_version": self.peer.info["version"],
            "peak_rss_bytes": peak_rss_of(self.pid),
        }


def peak_rss_of(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))


def of_round(setup, shares, draft_lens, peers):
    """{name: function that measures it}, RAM first; names of budgets end with @1/PARTS.

    shares: parts of the full KV of all requests that the budgets are: [8, 4].
    """
    many = len(setup.requests) > 1
    found = {RAM_SERIAL: lambda: serial(setup, "off", "auto", 0)}
    if many:
        found[RAM_AT_ONCE] = lambda: at_once(setup, "off", "auto", 0)
        found[RAM_DRAFT] = lambda: at_once(setup, setup.draft, "auto", 0)
    else:
        found[RAM_DRAFT] = lambda: serial(setup, setup.draft, "auto", 0)
        found[UNVERIFIED] = lambda: unverified(setup)
    for peer in peers:
        found[peer.label] = lambda peer=peer: peer.measure(setup)
    for parts in shares:
        found |= of_budget(setup, parts, draft_lens, many)
    return found


def of_budget(setup, parts, draft_lens, many):
    budget = setup.budget(parts)
    run = at_once if many else serial
    found = {STREAMED: lambda: run(setup, "off", "auto", budget)}
    for length in draft_lens:
        said = "" if length == "auto" else f", {length} drafted"
        found[LOCK_STEP + said] = lambda length=length: at_once(
            setup, setup.draft, length, budget, lock_step=True
        )
        found[STAGGERED + said] = lambda length=length: run(setup, setup.draft, length, budget)
    return {under_budget(name, parts): measure for name, measure in found.items()}
