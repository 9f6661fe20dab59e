#!/usr/bin/env python3
"""llama.cpp through llama-cpp-python's low-level binding.

Not named llama_cpp.py: it would import itself.
"""

import ctypes
import sys

import llama_cpp as L
import numpy as np

import peer

N_BATCH, N_UBATCH = 2048, 512  # llama.cpp's defaults


@L.llama_log_callback
def errors_only(level, text, _):
    if level == 4:  # GGML_LOG_LEVEL_ERROR
        sys.stderr.write(text.decode("utf-8", "replace"))


class LlamaCpp:
    name, version = "llama.cpp", f"llama-cpp-python {L.__version__}"

    def __init__(self, path):
        L.llama_log_set(errors_only, ctypes.c_void_p(0))
        L.llama_backend_init()
        self.model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        self.vocab = L.llama_model_get_vocab(self.model)
        self.vocab_size = L.llama_vocab_n_tokens(self.vocab)
        self.context_length = L.llama_model_n_ctx_train(self.model)
        self.context = None
        self.system_info = L.llama_print_system_info().decode().strip()

    def tokenize(self, text):
        ids = (L.llama_token * (len(text) + 8))()
        n = L.llama_tokenize(self.vocab, text, len(text), ids, len(ids), False, False)
        assert n >= 0, n
        return list(ids[:n])

    def detokenize(self, ids):
        out = ctypes.create_string_buffer(len(ids) * 256 + 16)
        n = L.llama_detokenize(
            self.vocab, (L.llama_token * len(ids))(*ids), len(ids), out, len(out), False, True
        )
        assert n >= 0, n
        return out.raw[:n]

    def open(self, n_ctx, threads, flash, kv="f16"):
        if self.context:
            L.llama_free(self.context)
        p = L.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = n_ctx, N_BATCH, N_UBATCH, 1
        p.n_threads = p.n_threads_batch = threads
        p.flash_attn_type = (
            L.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else L.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        p.type_k = p.type_v = peer.GGML_TYPES[kv]
        p.offload_kqv = False
        p.no_perf = True
        self.context = L.llama_init_from_model(self.model, p)
        assert self.context, "no context"
        self.memory = L.llama_get_memory(self.context)

    def truncate(self, n):
        assert L.llama_memory_seq_rm(self.memory, 0, n, -1)

    def depth(self):
        low, high = (
            f(self.memory, 0) for f in (L.llama_memory_seq_pos_min, L.llama_memory_seq_pos_max)
        )
        assert low <= 0, low  # -1: nothing is held
        return high + 1

    def get_state(self):
        data = (ctypes.c_uint8 * L.llama_state_seq_get_size(self.context, 0))()
        assert L.llama_state_seq_get_data(self.context, data, len(data), 0) == len(data)
        return memoryview(data).cast("B")

    def set_state(self, data):
        raw = (ctypes.c_uint8 * len(data)).from_buffer(bytearray(data))
        assert L.llama_state_seq_set_data(self.context, raw, len(data), 0) == len(data)

    def eval(self, ids, pos, all_logits):
        rows = []
        for start in range(0, len(ids), N_BATCH):
            part = ids[start : start + N_BATCH]
            n = len(part)
            last = start + n == len(ids)
            batch = L.llama_batch_init(n, 0, 1)
            batch.n_tokens = n
            for i in range(n):
                batch.token[i] = int(part[i])
                batch.pos[i] = pos + start + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = all_logits or (last and i == n - 1)
            rc = L.llama_decode(self.context, batch)
            L.llama_batch_free(batch)
            assert rc == 0, rc
            if all_logits:
                L.llama_synchronize(self.context)
                rows.append(
                    np.ctypeslib.as_array(L.llama_get_logits(self.context), (n * self.vocab_size,))
                    .reshape(n, self.vocab_size)
                    .copy()
                )
        if all_logits:
            return np.concatenate(rows)
        return np.ctypeslib.as_array(L.llama_get_logits_ith(self.context, -1), (self.vocab_size,))[
            None
        ]


if __name__ == "__main__":
    peer.main(LlamaCpp, __doc__)
