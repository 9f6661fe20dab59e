"""The least time that a variant could have taken, made of parts measured alone in the same round.

Parts come from `vericache bench` at the depth of the round: a pass of n rows without context, a
verification of n positions, a draft step. What is bounded is how well they are put together, so
the drafts, rounds and bytes are those of the variant itself.

  draft(N)   a step of N requests: the pass of N rows, and for each of them the draft KV's share
  staggered  max(draft + verify, transfer); a verification rides in a pass that others draft in, so
             it pays for weights only where a request is alone
  lock-step  draft + max(verify, transfer); verifications of N requests share the weights
"""


def interpolate(points, x):
    """Through [(x, y)], straight lines; the last one goes on."""
    points = sorted(points)
    if len(points) == 1:
        return points[0][1]
    low, high = points[0], points[1]
    for point in points[2:]:
        if x > high[0]:
            low, high = high, point
    return low[1] + (high[1] - low[1]) * (x - low[0]) / (high[0] - low[0])


class Parts:
    """Seconds, from the names of `vericache bench --json`."""

    def __init__(self, record):
        self.record, self.depth = record, record["depth"]

    def widths(self, depth):
        head = f"verify_ms_{depth}_"
        return [
            (int(key[len(head) :]), value / 1e3)
            for key, value in self.record.items()
            if key.startswith(head)
        ]

    def rows(self, count):
        return interpolate(self.widths(0), count)

    def verify(self, positions):
        return interpolate(self.widths(self.depth), positions)

    def draft(self, sink, count):
        one = self.record[f"draft_step_ms_{self.depth}_{sink}"] / 1e3
        return max(one, self.rows(count) + count * (one - self.rows(1)))


def seconds(parts, variant, num_requests, sink, bytes_per_s, lock_step=False):
    """REQUIRES: sink names a draft KV of parts, unless nothing was drafted."""
    drafted, rounds = variant["drafted"], variant["rounds"]
    draft = parts.draft(sink, num_requests) * drafted / num_requests if drafted else 0.0
    verify = rounds * parts.verify(drafted / rounds + 1)
    if num_requests > 1:
        own_passes = rounds / num_requests if lock_step or not drafted else 0
        verify += (own_passes - rounds) * parts.rows(1)
    transfer = variant.get("fetched_bytes", 0) / bytes_per_s if bytes_per_s else 0.0
    return draft + max(verify, transfer) if lock_step else max(draft + verify, transfer)
