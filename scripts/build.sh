#!/bin/sh
# Configures and builds one preset; installs the packages that are missing first.
#
#   scripts/build.sh [--preset NAME] [--tests] [--targets "NAME ..."] [-D...]
#
# The default is the release preset, everything it is configured for; the command is then
# build/release/vericache. --tests switches the tests on (and installs what they need);
# --targets builds only those: `--targets vericache` is the shortest way to the command.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"

preset=release
tests=0
targets=all
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name} && shift 2 ;;
    --tests) tests=1 && shift ;;
    --targets) targets=${2:?--targets needs names} && shift 2 ;;
    -D*) break ;;
    *) die "unknown option '$1'; see the head of scripts/build.sh" ;;
  esac
done

cd "$root"
dir=build/$preset
cached() { sed -n "s/^$1:[A-Z]*=//p" "$dir/CMakeCache.txt" 2>/dev/null || true; }

sections=build
if [ "$tests" = 1 ]; then
  sections="build test"
  set -- -DVERICACHE_BUILD_TESTS=ON "$@"
elif [ "$(cached VERICACHE_BUILD_TESTS)" != ON ]; then
  # Tests once switched on stay on: a demo in between must not throw their build away.
  set -- -DVERICACHE_BUILD_TESTS=OFF "$@"
fi
[ "$preset" != fuzz ] || sections="$sections extra"
# shellcheck disable=SC2086
"$root/scripts/install_deps.sh" $sections

# A cache made elsewhere (the folder was moved or copied) cannot be used any more.
made_for=$(cached CMAKE_HOME_DIRECTORY)
[ -z "$made_for" ] || [ "$made_for" = "$root" ] || set -- --fresh "$@"

step "configure_$preset.log" "configure $preset" cmake --preset "$preset" "$@" ||
  die "configuring failed; the whole output is in build/logs/configure_$preset.log"

# shellcheck disable=SC2086
step "build_$preset.log" "build $preset" \
  setsid cmake --build "$dir" --parallel "$(nproc)" --target $targets ||
  die "the build failed; the whole output is in build/logs/build_$preset.log"
