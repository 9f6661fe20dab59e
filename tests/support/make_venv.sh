#!/bin/sh
# Makes a virtual environment with packages from PyPI, unless it is there:
#   make_venv.sh FOLDER REQUIREMENTS.txt WHAT
# Exit status 77: PyPI is not reached, and there is no WHAT.
set -eu
venv=$1
mark=$venv/installed-$(cksum <"$2" | tr ' ' -)
[ -f "$mark" ] && exit 0
rm -rf "$venv"
mkdir -p "${venv%/*}"
if ! /usr/bin/python3 -m venv "$venv" >&2; then
  echo "python3 -m venv failed: install python3-venv" >&2
  exit 1
fi
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$2" >&2; then
  echo "NO $3: pip could not install what $2 lists" >&2
  rm -rf "$venv"
  exit 77
fi
touch "$mark"
