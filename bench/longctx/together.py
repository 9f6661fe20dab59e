"""What many requests did while all of them decoded, from what `vericache batch --timeline` wrote.

One after another, a request's time is that from its first token to its last: its prompt is not in
it. At once, the prompts of some are computed while others answer. To compare like with like, time
begins when the last prompt is done; what was decoded until then does not count.
"""

PASSES, REQUESTS, FETCHES = 1, 2, 3  # process ids of a timeline


def lane(events, pid):
    return sorted((e for e in events if e["ph"] == "X" and e["pid"] == pid), key=lambda e: e["ts"])


def end_of(event):
    return event["ts"] + event["dur"]


def of_timeline(events):
    """Tokens, rounds, drafted tokens and seconds of that time, bytes that came from disk in it, and
    how long passes waited for them; None where a prompt was computed again (a preemption)."""
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
    return {
        "tokens": len(rounds) + accepted,
        "rounds": len(rounds),
        "drafted": sum(e["args"]["rows"] - 1 for e in rounds),
        "accepted": accepted,
        "decode_s": (max(map(end_of, passes)) - begin) * 1e-6,
        "stall_s": sum(e["args"].get("stall_ms", 0) for e in passes) * 1e-3,
        "fetch_s": sum(s * e["dur"] for s, e in zip(shares, fetches)) * 1e-6,
        "fetched_bytes": int(sum(s * e["args"]["bytes"] for s, e in zip(shares, fetches))),
    }
