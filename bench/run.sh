#!/bin/sh
# Measures vericache beside llama.cpp (`make bench`).
#
#   bench/run.sh [OPTIONS OF bench/run.py]
#
# Builds the release preset and llama.cpp first (llama-cpp-python in build/peers, natively, 6
# minutes or more once). VERICACHE_PEER_PYTHON names a Python that has llama_cpp already;
# VERICACHE_IK_PYTHON one that has ik_llama_cpp, VERICACHE_OPENVINO_PYTHON one that has
# openvino_genai: these are then measured too.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"

"$root/scripts/build.sh"
model=smollm2-135m
previous=
for argument in "$@"; do
  case $previous in -m | --model) model=$argument ;; esac
  previous=$argument
done
case $model in
  */* | *.gguf) ;;
  *) [ -f "$(models_dir)/$model.gguf" ] || "$root/scripts/fetch_model.sh" "$model" ;;
esac

python=${VERICACHE_PEER_PYTHON:-}
if [ -z "$python" ]; then
  python=$root/build/peers/venv/bin/python
  if ! [ -f "$root/build/peers/installed" ]; then
    python3 -m venv "$root/build/peers/venv" || die "python3 -m venv failed; install python3-venv"
    step peers_pip.log "build llama.cpp (llama-cpp-python)" \
      "$python" -m pip install llama-cpp-python==0.3.36 || die "llama-cpp-python was not built"
    : >"$root/build/peers/installed"
  fi
fi
limits=$root/build/release/limits
"${CXX:-c++}" -std=gnu++20 -O3 -march=native -pthread -o "$limits" "$root/bench/limits.cc"
set -- --peer-python "$python" --limits "$limits" "$@"
[ -z "${VERICACHE_IK_PYTHON:-}" ] || set -- --ik-python "$VERICACHE_IK_PYTHON" "$@"
[ -z "${VERICACHE_OPENVINO_PYTHON:-}" ] ||
  set -- --openvino-python "$VERICACHE_OPENVINO_PYTHON" "$@"
exec python3 "$root/bench/run.py" "$@"
