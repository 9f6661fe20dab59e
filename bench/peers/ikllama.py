#!/usr/bin/env python3
"""ik_llama.cpp through ik-llama-cpp-python's ctypes layer (speed only)."""

import ctypes
import importlib.metadata
import sys

import numpy as np
from ik_llama_cpp import _ctypes_api as C

import peer

N_BATCH, N_UBATCH = 2048, 512

C._lib.llama_kv_cache_seq_rm.argtypes = [ctypes.c_void_p, C.llama_seq_id, C.llama_pos, C.llama_pos]
C._lib.llama_kv_cache_seq_rm.restype = ctypes.c_bool
C._lib.llama_kv_cache_seq_pos_max.argtypes = [ctypes.c_void_p, C.llama_seq_id]
C._lib.llama_kv_cache_seq_pos_max.restype = C.llama_pos
C._lib.llama_get_kv_cache_used_cells.argtypes = [ctypes.c_void_p]
C._lib.llama_get_kv_cache_used_cells.restype = ctypes.c_int32
SEQ, FLAGS = C.llama_seq_id, ctypes.c_uint32
C._lib.llama_state_seq_get_size.argtypes = [ctypes.c_void_p, SEQ, FLAGS]
C._lib.llama_state_seq_get_size.restype = ctypes.c_size_t
for state_copy in (C._lib.llama_state_seq_get_data, C._lib.llama_state_seq_set_data):
    state_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, SEQ, FLAGS]
    state_copy.restype = ctypes.c_size_t
C._lib.llama_print_system_info.restype = ctypes.c_char_p


class IkLlamaCpp:
    name, version = (
        "ik_llama.cpp",
        f"ik-llama-cpp-python {importlib.metadata.version('ik-llama-cpp-python')}",
    )

    def __init__(self, path):
        C.llama_backend_init()
        self.model = C.llama_model_load_from_file(path.encode(), C.llama_model_default_params())
        if not self.model:
            sys.exit(f"ik_llama.cpp cannot load {path}")
        self.vocab = C.llama_model_get_vocab(self.model)
        self.vocab_size = C.llama_vocab_n_tokens(self.vocab)
        self.context_length = C._lib.llama_n_ctx_train(ctypes.c_void_p(self.model))
        self.context = None
        self.system_info = C._lib.llama_print_system_info().decode().strip()

    def tokenize(self, text):
        ids = (C.llama_token * (len(text) + 8))()
        n = C.llama_tokenize(self.model, text, len(text), ids, len(ids), False, False)
        assert n >= 0, n
        return list(ids[:n])

    def detokenize(self, ids):
        out, piece = b"", ctypes.create_string_buffer(512)
        for i in ids:
            n = C.llama_token_to_piece(self.model, i, piece, len(piece), 0, True)
            assert n >= 0, n
            out += piece.raw[:n]
        return out

    def open(self, n_ctx, threads, flash, kv="f16"):
        if self.context:
            C.llama_free(self.context)
        p = C.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = n_ctx, N_BATCH, N_UBATCH, 1
        p.n_threads = p.n_threads_batch = threads
        p.flash_attn = flash
        p.type_k = p.type_v = peer.GGML_TYPES[kv]
        self.context = C.llama_init_from_model(self.model, p)
        assert self.context, "no context"

    def truncate(self, n):
        if n == 0:
            C.llama_kv_cache_clear(self.context)
        else:
            assert C._lib.llama_kv_cache_seq_rm(self.context, 0, n, -1)

    def depth(self):
        used = C._lib.llama_get_kv_cache_used_cells(self.context)
        assert used == C._lib.llama_kv_cache_seq_pos_max(self.context, 0) + 1, used
        return used

    def get_state(self):
        data = (ctypes.c_uint8 * C._lib.llama_state_seq_get_size(self.context, 0, 0))()
        size = C._lib.llama_state_seq_get_data(self.context, data, len(data), 0, 0)
        return memoryview(data).cast("B")[:size]

    def set_state(self, data):
        raw = (ctypes.c_uint8 * len(data)).from_buffer(bytearray(data))
        read = C._lib.llama_state_seq_set_data(self.context, raw, len(data), 0, 0)
        assert read == len(data), (read, len(data))

    def eval(self, ids, pos, all_logits):
        step = N_UBATCH if all_logits else N_BATCH
        rows = []
        for start in range(0, len(ids), step):
            part = ids[start : start + step]
            n = len(part)
            batch = C.llama_batch_init(n, 0, 1)
            batch.n_tokens = n
            for i in range(n):
                batch.token[i] = int(part[i])
                batch.pos[i] = pos + start + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = all_logits or (start + i == len(ids) - 1)
            rc = C.llama_decode(self.context, batch)
            C.llama_batch_free(batch)
            assert rc == 0, rc
            if all_logits:
                rows += [
                    np.ctypeslib.as_array(
                        C.llama_get_logits_ith(self.context, i), (self.vocab_size,)
                    ).copy()
                    for i in range(n)
                ]
        if all_logits:
            return np.stack(rows)
        return np.ctypeslib.as_array(
            C.llama_get_logits_ith(self.context, len(part) - 1), (self.vocab_size,)
        )[None]


if __name__ == "__main__":
    peer.main(IkLlamaCpp, __doc__)
