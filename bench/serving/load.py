"""Our load generator: POSTs with streamed replies, closed loop (so many clients) or open loop (so
many arrivals a second). asyncio on plain sockets; standard library only.

While requests run it keeps what arrives and when, and nothing else: one append for each read. All
parsing comes after (sse.py), so that the generator takes as little as it can of the cores that the
server computes on. What it took all the same is in the Cost of each phase: its CPU time, and how
late its own timer fired, by which much a time of arrival may be late as well.
"""

import asyncio
import dataclasses
import json
import random
import resource
import time

import sse

clock = time.perf_counter
BEAT_S = 0.02  # of the timer that shows how late the generator is


@dataclasses.dataclass
class Cost:
    """What the generator itself took during a phase."""

    wall_s: float
    cpu_s: float
    late_p99_s: float
    late_max_s: float


class Stream(asyncio.Protocol):
    """One request on one connection, which the server closes after its reply."""

    def __init__(self, request, ended):
        self.request, self.ended, self.pieces = request, ended, []

    def connection_made(self, transport):
        transport.write(self.request)

    def data_received(self, data):
        self.pieces.append((clock(), data))

    def connection_lost(self, error):
        if not self.ended.done():
            self.ended.set_result(error)


def encoded(port, path, body):
    """The whole request as bytes, made before the measurement."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\nAccept: text/event-stream\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data


async def ask(port, request, patience_s, host="127.0.0.1"):
    """(start, pieces, error) of one request."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    stream = Stream(request, ended)
    start = clock()
    try:
        transport, _ = await loop.create_connection(lambda: stream, host, port)
    except OSError as error:
        return start, [], str(error)
    try:
        error = await asyncio.wait_for(ended, patience_s)
    except TimeoutError:
        error = f"no end within {patience_s} s"
    finally:
        transport.abort()
    return start, stream.pieces, str(error or "")


class Heartbeat:
    """A timer whose lateness is the generator's own."""

    def __init__(self):
        self.late = []

    async def beat(self):
        while True:
            due = clock() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.late.append(max(0.0, clock() - due))


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def answer_of(start, pieces, error):
    answer = sse.answer_of(start, pieces) if pieces else sse.Answer(start)
    answer.error = answer.error or error
    if not pieces and not error:
        answer.error = "the connection was closed without a reply"
    return answer


async def measured(work):
    """Runs `work`, a coroutine that gives [(start, pieces, error)]: (answers, Cost)."""
    heart = Heartbeat()
    beating = asyncio.create_task(heart.beat())
    start, cpu = clock(), cpu_seconds()
    try:
        raw = await work
    finally:
        beating.cancel()
    wall, cpu = clock() - start, cpu_seconds() - cpu
    late = heart.late or [0.0]
    cost = Cost(wall, cpu, sse.percentile(late, 0.99), max(late))
    return [answer_of(*one) for one in raw], cost


async def closed(port, requests, clients, patience_s):
    """Each client sends its next request when its last one has ended."""
    found, waiting = [None] * len(requests), iter(range(len(requests)))

    async def client():
        for index in waiting:  # shared by all clients
            found[index] = await ask(port, requests[index], patience_s)

    await asyncio.gather(*(client() for _ in range(clients)))
    return found


async def opened(port, requests, rate, seed, patience_s):
    """Requests arrive at random, `rate` a second on average, however long the others take."""
    random_gaps, tasks = random.Random(seed), []
    due = clock()
    for request in requests:
        await asyncio.sleep(max(0.0, due - clock()))
        tasks.append(asyncio.create_task(ask(port, request, patience_s)))
        due += random_gaps.expovariate(rate)
    return await asyncio.gather(*tasks)


def closed_loop(port, requests, clients, patience_s=900):
    """(answers in the order of the requests, Cost). requests: what encoded() makes."""
    return asyncio.run(measured(closed(port, requests, clients, patience_s)))


def open_loop(port, requests, rate, seed=0, patience_s=900):
    return asyncio.run(measured(opened(port, requests, rate, seed, patience_s)))
