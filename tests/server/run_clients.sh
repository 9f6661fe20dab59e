#!/bin/sh
# Runs clients_test.py with real clients from PyPI, in a virtual environment that the first run
# makes: run_clients.sh SERVER. Exit status 77: PyPI is not reached. CLIENT_SCRIPT: another test.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${VERICACHE_CLIENT_VENV:-$here/../../build/clients-venv}
sh "$here/../support/make_venv.sh" "$venv" "$here/requirements.txt" CLIENTS
exec "$venv/bin/python" -B "${CLIENT_SCRIPT:-$here/clients_test.py}" "$@"
