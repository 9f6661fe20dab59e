#!/bin/sh
# Builds the fuzz targets (clang, libFuzzer, address and undefined-behaviour sanitizers) and runs
# each for a while over its corpus in fuzz/corpus.
#
#   scripts/fuzz.sh [SECONDS [TARGET...]]     default: 60 s each, all targets
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
cd "$root"
seconds=${1:-60}
[ $# -eq 0 ] || shift

# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(find fuzz -name 'fuzz_*.cc' -exec basename {} .cc \; | sort)
[ $# -gt 0 ] || die "no fuzz targets in fuzz/"
scripts/build.sh --preset fuzz --targets "$*"
for target in "$@"; do
  binary=$(find build/fuzz -type f -name "$target" -perm -u+x | head -n 1)
  [ -n "$binary" ] || die "no fuzz target '$target'"
  # New inputs stay out of the committed corpus; a crash is left in the same folder.
  found=build/fuzz/found/$target
  mkdir -p "$found"
  set -- "$found"
  [ ! -d "fuzz/corpus/${target#fuzz_}" ] || set -- "$found" "fuzz/corpus/${target#fuzz_}"
  say "== $target for $seconds s"
  "$binary" -max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="$found/" "$@" ||
    die "$target failed; the input is in $found"
done
