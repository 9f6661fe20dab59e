#!/bin/sh
# Makes the golden files again (`make golden`). A changed golden needs a sentence in the commit.
#
#   tests/golden/regenerate.sh
#
# Needs about 6 GB for PyTorch and friends, which go to build/golden, and never into the system.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/scripts/lib.sh"

source_package=llama_cpp_python-0.3.36
here=$root/build/golden
python=$here/venv/bin/python
mkdir -p "$here"

if ! [ -f "$here/installed" ]; then
  python3 -m venv "$here/venv" || die "python3 -m venv failed; install python3-venv"
  step golden_pip.log "install PyTorch and transformers into build/golden" \
    "$python" -m pip install torch==2.15.0 transformers==5.24.0 tokenizers==0.23.3 numpy==2.4.6 \
    gguf==0.19.0 sentencepiece ||
    die "the packages could not be installed"
  : >"$here/installed"
fi
if ! "$python" -m pip show --quiet kvpress 2>/dev/null; then
  step golden_kvpress.log "install kvpress into build/golden" \
    "$python" -m pip install --no-deps kvpress==0.5.5 || die "kvpress could not be installed"
fi
if ! [ -d "$here/$source_package" ]; then
  step golden_source.log "fetch llama.cpp's converter" \
    "$python" -m pip download --no-deps --no-binary :all: --dest "$here" llama-cpp-python==0.3.36 ||
    die "the source package could not be fetched"
  tar -xzf "$here/$source_package.tar.gz" -C "$here"
fi
llama_cpp=$here/$source_package/vendor/llama.cpp
"$python" "$root/tests/golden/model/make_golden.py" --llama-cpp "$llama_cpp"
"$python" "$root/tests/golden/compressors/make_golden.py"
"$python" "$root/tests/golden/rope/make_golden.py"
cd "$root" && git --no-pager diff --stat -- tests/golden
