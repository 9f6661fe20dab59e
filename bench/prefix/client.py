#!/usr/bin/env python3
"""Asks servers and writes what came and when: runs inside a node's namespace.

stdin: {"requests": [{"host", "port", "key", "body"}], "clients": N}; stdout: a line of JSON, one
answer a request in their order. A client sends its next request when its last one has ended. Times
are seconds from the start of the phase. Parsing comes after the last reply, as in serving/load.py.
"""

import asyncio
import json
import sys

import bench_path  # noqa: F401  (finds bench/serving)
import load

PATIENCE_S = 3600


def encoded(request):
    data = json.dumps(request["body"]).encode()
    key = f"Authorization: Bearer {request['key']}\r\n" if request["key"] else ""
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: {request['host']}:{request['port']}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n{key}"
            "Accept: text/event-stream\r\nConnection: close\r\n\r\n")
    return head.encode() + data


async def ask_all(requests, clients):
    found, waiting = [None] * len(requests), iter(range(len(requests)))
    ready = [encoded(request) for request in requests]

    async def client():
        for index in waiting:  # shared by all clients
            request = requests[index]
            found[index] = await load.ask(
                request["port"], ready[index], PATIENCE_S, request["host"])
    start = load.clock()
    await asyncio.gather(*(client() for _ in range(clients)))
    return start, found


def result_of(start, raw):
    answer = load.answer_of(*raw)
    if answer.error:
        return {"error": answer.error}
    usage = answer.usage or {}
    ours = usage.get("vericache") or {}
    receipt = ours.get("receipt") or {}
    return {
        "start_s": answer.start - start, "first_s": answer.ttft, "total_s": answer.end_to_end,
        "token_ids": receipt.get("token_ids"), "logits_hash": receipt.get("logits_hash"),
        "stats": {k: v for k, v in ours.items() if k != "receipt"},
        "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
    }


def main():
    asked = json.load(sys.stdin)
    start, found = asyncio.run(ask_all(asked["requests"], asked["clients"]))
    wall_s = load.clock() - start
    print(json.dumps({"wall_s": wall_s, "answers": [result_of(start, raw) for raw in found]}))


if __name__ == "__main__":
    main()
