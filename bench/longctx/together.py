"""What many requests did while all of them decoded, from what `vericache batch --timeline` wrote.

One after another, a request's time is that from its first token to its last: its prompt is not in
it. At once, the prompts of some are computed while others answer. To compare like with like, time
begins when the last prompt is done; what was decoded until then does not count.
"""

import math

PASSES, REQUESTS, FETCHES = 1, 2, 3  # process ids of a timeline


def lane(events, pid):
    return sorted((e for e in events if e["ph"] == "X" and e["pid"] == pid), key=lambda e: e["ts"])


def end_of(event):
    return event["ts"] + event["dur"]


def gaps_of(rounds):
    """Seconds between rounds of a request that gave it tokens, over all requests, sorted."""
    ends = {}
    for event in rounds:
        ends.setdefault(event["tid"], []).append(end_of(event))
    return sorted((b - a) * 1e-6 for e in ends.values() for a, b in zip(e, e[1:]))


def quantile(values, q):
    """The smallest of the sorted values that at least a share q of them does not exceed."""
    return values[max(0, math.ceil(q * len(values)) - 1)] if values else 0.0


def of_timeline(events):
    """Tokens, rounds, drafted tokens and seconds of that time, bytes that came from disk in it, how
    long passes waited for them, and gaps between tokens; None where a prompt was computed again (a
    preemption)."""
    first = {}
    if not lane(events, REQUESTS):
        return None
    for event in lane(events, REQUESTS):
        if event["name"] != "prefill":
            first.setdefault(event["tid"], event["ts"])
        elif event["tid"] in first:
            return None
    begin = max(first.values())
    rounds = [e for e in lane(events, REQUESTS)
              if e["name"] in ("verify", "plain") and e["ts"] >= begin]
    passes = [e for e in lane(events, PASSES) if e["ts"] >= begin]
    fetches = [e for e in lane(events, FETCHES) if end_of(e) > begin]
    # A transfer that had begun before counts by its share.
    shares = [(min(1, (end_of(e) - begin) / e["dur"]) if e["dur"] else 1) for e in fetches]
    accepted = sum(e["args"].get("accepted", 0) for e in rounds)
    gaps = gaps_of(rounds)
    return {
        "tokens": len(rounds) + accepted,
        "rounds": len(rounds),
        "drafted": sum(e["args"]["rows"] - 1 for e in rounds),
        "accepted": accepted,
        "gap_p50_s": quantile(gaps, 0.5),
        "gap_p99_s": quantile(gaps, 0.99),
        "decode_s": (max(map(end_of, passes)) - begin) * 1e-6,
        "stall_s": sum(e["args"].get("stall_ms", 0) for e in passes) * 1e-3,
        "fetch_s": sum(s * e["dur"] for s, e in zip(shares, fetches)) * 1e-6,
        "fetched_bytes": int(sum(s * e["args"]["bytes"] for s, e in zip(shares, fetches))),
    }
