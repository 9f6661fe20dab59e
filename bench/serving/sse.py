"""What a recorded HTTP reply says, and when: pieces of bytes with their times of arrival become
events, texts and gaps. Done after the measurement, so that it costs the measured servers nothing.
"""

import bisect
import dataclasses
import hashlib
import json
import math


class Malformed(Exception):
    """A reply that is no HTTP/1.1 reply, or was cut."""


class Reply:
    """The bytes of one reply. pieces: [(time in seconds, bytes)] in the order of arrival."""

    def __init__(self, pieces):
        self.raw = b"".join(data for _, data in pieces)
        self.times, self.ends, total = [], [], 0
        for time, data in pieces:
            total += len(data)
            self.times.append(time)
            self.ends.append(total)
        head, separator, _ = self.raw.partition(b"\r\n\r\n")
        if not separator:
            raise Malformed(f"no header in {self.raw[:200]!r}")
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise Malformed(f"no status line: {lines[0]!r}")
        self.status = int(words[1])
        fields = [line.partition(":") for line in lines[1:]]
        self.headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        self._read_body(len(head) + 4)

    def _read_body(self, start):
        """Finds the body, and for each of its parts where it stands in the raw bytes."""
        self.part_starts, self.raw_starts = [], []
        parts, size = [], 0
        for begin, end in self._parts(start):
            self.part_starts.append(size)
            self.raw_starts.append(begin)
            parts.append(self.raw[begin:end])
            size += end - begin
        self.body = b"".join(parts)

    def _parts(self, at):
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            length = self.headers.get("content-length")
            if length is not None and len(self.raw) - at < int(length):
                raise Malformed(f"{len(self.raw) - at} bytes of {length}")
            yield at, len(self.raw) if length is None else at + int(length)
            return
        while True:
            line_end = self.raw.find(b"\r\n", at)
            if line_end < 0:
                raise Malformed("cut within its chunks")
            try:
                size = int(self.raw[at:line_end].split(b";")[0], 16)
            except ValueError as error:
                raise Malformed(f"no size of a chunk: {self.raw[at:line_end]!r}") from error
            if size == 0:
                return
            begin, at = line_end + 2, line_end + 2 + size + 2
            if at > len(self.raw):
                raise Malformed("cut within a chunk")
            yield begin, begin + size

    def time_of(self, offset):
        """When the byte at `offset` of the body was there."""
        part = bisect.bisect_right(self.part_starts, offset) - 1
        raw = self.raw_starts[part] + offset - self.part_starts[part]
        return self.times[bisect.bisect_right(self.ends, raw)]

    def events(self):
        """[(time, name or None, data)] of server-sent events; comments are passed over. The time
        is when the last line of its data was there."""
        found, name, data, time, at = [], None, [], 0.0, 0
        while (end := self.body.find(b"\n", at)) >= 0:
            line = self.body[at:end].rstrip(b"\r").decode("utf-8")
            if line.startswith("event:"):
                name = line[6:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
                time = self.time_of(end)
            elif not line:
                if data:
                    found.append((time, name, "\n".join(data)))
                name, data = None, []
            at = end + 1
        return found


@dataclasses.dataclass
class Answer:
    """One request's answer. Times in seconds on one clock."""

    start: float  # before the connection was made
    status: int = 0
    texts: list = dataclasses.field(default_factory=list)  # [(time, text)], empty texts left out
    finish_reason: str = ""
    finished: float | None = None  # when the reason came
    usage: dict | None = None
    error: str = ""

    @property
    def text(self):
        return "".join(text for _, text in self.texts)

    @property
    def text_sha256(self):
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def first(self):
        """When the first text was there; of an answer without text, its end."""
        return self.texts[0][0] if self.texts else self.finished

    @property
    def last(self):
        return self.texts[-1][0] if self.texts else self.finished

    @property
    def ttft(self):
        """Seconds from the start to the first text."""
        return None if self.first is None else self.first - self.start

    @property
    def end_to_end(self):
        """Seconds from the start to the last text."""
        return None if self.last is None else self.last - self.start

    @property
    def gaps(self):
        """Seconds between an event with text and the one before it."""
        times = [time for time, _ in self.texts]
        return [after - before for before, after in zip(times, times[1:])]


def text_of(choice):
    """All that a chunk's choice adds to what the model has written."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    written = [delta.get("reasoning_content"), delta.get("content")]
    for call in delta.get("tool_calls") or []:
        function = call.get("function") or {}
        written += [function.get("name"), function.get("arguments")]
    return "".join(text for text in written if text)


def answer_of(start, pieces):
    """The answer that a streamed reply of /v1/chat/completions or /v1/completions holds."""
    answer = Answer(start)
    try:
        reply = Reply(pieces)
        answer.status = reply.status
        if reply.status != 200:
            answer.error = f"{reply.status}: {reply.body.decode('utf-8', 'replace')[:300]}"
            return answer
        read_events(reply.events(), answer)
    except (Malformed, ValueError) as error:
        answer.error = str(error)
    return answer


def read_events(events, answer):
    is_done = False
    for time, name, data in events:
        if name is not None:  # drafts, which are not verified yet
            continue
        if data == "[DONE]":
            is_done = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            answer.error = str(chunk["error"])[:300]
        answer.usage = chunk.get("usage") or answer.usage
        for choice in chunk.get("choices") or []:
            if text := text_of(choice):
                answer.texts.append((time, text))
            if reason := choice.get("finish_reason"):
                answer.finish_reason, answer.finished = reason, time
    if not answer.finish_reason and not answer.error:
        answer.error = "the answer has no end"
    if not is_done and not answer.error:
        answer.error = "the stream ended without [DONE]"


def percentile(values, share):
    """The smallest value that at least `share` of all values do not exceed (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    rank = math.ceil(share * len(ordered) - 1e-9)  # 0.07 * 100 is a little over 7
    return ordered[max(rank, 1) - 1]
