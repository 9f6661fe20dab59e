#!/usr/bin/env python3
"""Delays what passes between a port of its own and another: delay_relay.py HOST PORT DELAY_MS

Prints its port on 127.0.0.1. Each direction of each connection keeps its order; every byte arrives
DELAY_MS later than it came, whatever the rate, and a connection is first of use after a round
trip, as a handshake takes one. An end of one direction is passed on behind the last byte. What is
on its way is bounded (IN_FLIGHT chunks): beyond that the sender is held up.
"""

import asyncio
import socket
import sys

CHUNK_BYTES = 256 << 10
IN_FLIGHT = 256  # chunks: 1 Gbit/s for 20 ms is 2.5 MB, in chunks of 10 KB or more


async def read_all(source, queue, delay_s):
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(source, CHUNK_BYTES):
            await queue.put((loop.time() + delay_s, data))
    except OSError:
        pass
    await queue.put((loop.time() + delay_s, None))


async def write_all(queue, sink):
    loop = asyncio.get_running_loop()
    broken = False
    while True:
        due, data = await queue.get()
        if (wait := due - loop.time()) > 0:
            await asyncio.sleep(wait)
        if data is None:
            break
        try:
            if not broken:
                await loop.sock_sendall(sink, data)
        except OSError:
            broken = True  # the reader is told by its own side; what still comes is dropped
    try:
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass


async def pass_on(source, sink, delay_s):
    queue = asyncio.Queue(IN_FLIGHT)
    await asyncio.gather(read_all(source, queue, delay_s), write_all(queue, sink))


async def serve(near, address, delay_s):
    loop = asyncio.get_running_loop()
    with near, socket.socket() as far:
        near.setblocking(False)
        far.setblocking(False)
        for s in (near, far):
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await loop.sock_connect(far, address)
        except OSError:
            await asyncio.sleep(2 * delay_s)
            return
        await asyncio.sleep(2 * delay_s)
        await asyncio.gather(pass_on(near, far, delay_s), pass_on(far, near, delay_s))


async def main():
    host, port, delay_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    loop = asyncio.get_running_loop()
    tasks = set()
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        server.setblocking(False)
        print(server.getsockname()[1], flush=True)
        while True:
            near, _ = await loop.sock_accept(server)
            task = asyncio.create_task(serve(near, (host, port), delay_ms / 1e3))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    asyncio.run(main())
