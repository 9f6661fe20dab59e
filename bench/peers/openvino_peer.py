#!/usr/bin/env python3
"""OpenVINO GenAI, whose pipeline keeps no KV between requests: a worker for short prompts alone.

Not named openvino.py: it would import itself. Every decode prefills its prompt again, which is
not counted. Its own counters give the times (they agree with the wall clock).
"""

import argparse
import importlib.metadata
import json
import sys

import numpy as np
import openvino
import openvino_genai


class OpenVino:
    def __init__(self, path, threads):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # on by default: a repeat would prefill nothing
        self.pipeline = openvino_genai.LLMPipeline(
            path,
            "CPU",
            scheduler_config=scheduler,
            INFERENCE_NUM_THREADS=threads,
            KV_CACHE_PRECISION=openvino.Type.f16,
            DYNAMIC_QUANTIZATION_GROUP_SIZE=32,
        )
        self.ids = []

    def generate(self, ids, count):
        """Seconds to the first token, seconds of each later one, and the tokens."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        config.apply_chat_template = False
        result = self.pipeline.generate(openvino.Tensor(np.array([ids], np.int64)), config)
        raw = result.perf_metrics.raw_metrics
        assert result.perf_metrics.get_num_input_tokens() == len(ids)
        first = list(raw.m_times_to_first_token)[0] / 1e3
        return first / 1e3, [us / 1e6 for us in raw.m_durations], list(result.tokens[0])

    def answer_to(self, request):
        op = request["op"]
        if op == "info":
            return {
                "name": "openvino-genai",
                "version": f"openvino-genai {importlib.metadata.version('openvino-genai')}",
                "system_info": openvino.Core().get_property("CPU", "FULL_DEVICE_NAME"),
                "context": 0,
            }
        if op == "open":
            self.generate([1] * 8, 2)  # the first request compiles
            return {}
        if op == "prefill":
            self.ids = request["ids"]
            seconds, _, tokens = self.generate(self.ids, 1)
            return {"seconds": seconds, "token": tokens[0], "depth": len(self.ids)}
        if op == "decode" and request["pos"] == len(self.ids):
            _, seconds, tokens = self.generate(self.ids, request["n"] + 1)
            depth = len(self.ids) + len(seconds)
            return {"seconds": sum(seconds), "tokens": tokens, "depth": depth}
        return {"error": f"openvino-genai cannot do {op}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["worker"])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    peer = OpenVino(args.model, args.threads)
    for line in sys.stdin:
        print(json.dumps(peer.answer_to(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
