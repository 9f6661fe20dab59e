#!/bin/sh
# Everything behind docs/benchmarks.md, one after the other (`make bench`), then its tables.
#
#   bench/all.sh [OPTIONS OF bench/run.py, for every run]
#
# On a quiet machine of 2 cores about 70 minutes, after the builds; half an hour of it is llama.cpp
# and ik_llama.cpp prefilling 8K and 16K tokens, which later runs find in the cache folder
# (vericache/bench_states; `--fresh` prefills again, and without it no prefill speed is shown).
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
states=${XDG_CACHE_HOME:-$HOME/.cache}/vericache/bench_states
mark=$(mktemp)
trap 'rm -f "$mark"' EXIT
flash=off,on,ik,ik-on

# Short prompts: 2 and 10 minutes.
"$root/bench/run.sh" -m qwen2.5-coder-0.5b --depths '' --repeats 7 --peers $flash "$@"
"$root/bench/run.sh" -m qwen2.5-coder-1.5b --depths '' --repeats 7 --drafts off \
  --peers $flash,openvino "$@"
# Long prompts, really prefilled: 35 minutes the first time, 10 later.
"$root/bench/run.sh" -m qwen2.5-coder-0.5b --depths 8192,16384 --append 512 --repeats 3 \
  --deep-repeats 3 --drafts off --states "$states" --peers $flash "$@"
# Depths up to 32K on KV that only has the right size: 25 minutes.
"$root/bench/run.sh" -m qwen2.5-coder-0.5b --synthetic 2048 --depths 1024,8192,16384,32768 \
  --append 512 --repeats 3 --deep-repeats 5 --drafts off --peers $flash,q8_0,q4_0 "$@"

find "$root/bench/results" -name '*.jsonl' -newer "$mark" | sort |
  xargs python3 "$root/bench/table.py"
