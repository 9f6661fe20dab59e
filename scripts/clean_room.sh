#!/bin/sh
# Proves the two commands on a machine that has nothing: clones this repository's HEAD into an
# unmodified Debian 12 root filesystem (debootstrap, minbase) and runs ./demo and ./check there.
#
#   scripts/clean_room.sh [--keep] [--setup-only] [FOLDER]
#
# Needs root, about 6 GB in FOLDER (default: a new one in /tmp) and a Debian mirror; as long as
# everything together, about 30 minutes. --setup-only stops after the root filesystem, the
# packages and one model in it. --keep leaves the folder. The result goes to docs/clean_room.md.
#
# The inside differs from a new Debian only by what it takes to reach the outside from here:
# package mirror, proxy, pip settings and certificates of this machine.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"

# Everything runs in mount and process namespaces of its own: when the script ends, however it
# ends, the kernel unmounts and ends what is left, and nothing outside was ever mounted on.
if [ "${CLEAN_ROOM_INSIDE:-}" != 1 ]; then
  [ "$(id -u)" = 0 ] || die "needs root (debootstrap and chroot)"
  "$root/scripts/install_deps.sh" clean_room
  CLEAN_ROOM_INSIDE=1 exec unshare --mount --pid --fork --kill-child --propagation private \
    "$root/scripts/clean_room.sh" "$@"
fi

keep=0
setup_only=0
folder=
for option in "$@"; do
  case $option in
    --keep) keep=1 ;;
    --setup-only) setup_only=1 ;;
    -*) die "unknown option '$option'; see the head of scripts/clean_room.sh" ;;
    *) folder=$option ;;
  esac
done
if [ -z "$folder" ]; then
  folder=$(mktemp -d /tmp/vericache_clean_room.XXXXXX)
else
  mkdir -p "$folder"
fi
inside=$folder/root
[ ! -e "$inside" ] || die "$inside exists; choose another folder"

clean_up() {
  # --one-file-system: should a mount still be there, its files are not ours to delete.
  for mounted in dev/shm dev/pts dev proc sys; do
    umount -l "$inside/$mounted" 2>/dev/null || true
  done
  if [ "$keep" = 1 ]; then
    say "kept: $inside"
  else
    rm -rf --one-file-system "$folder"
  fi
}
trap clean_up EXIT

say "== Debian 12 in $inside"
# shellcheck disable=SC2016
targets=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' \
  'Created-By: Packages' 2>/dev/null | grep -E '^[^ ]+ bookworm(-updates|-security)? main$' |
  sort -u || true)
mirror=$(printf '%s\n' "$targets" | awk '$2 == "bookworm" {print $1; exit}')
# shellcheck disable=SC2086
step clean_room_debootstrap.log "debootstrap" \
  debootstrap --variant=minbase bookworm "$inside" $mirror ||
  die "debootstrap failed; see build/logs/clean_room_debootstrap.log"

if [ -n "$targets" ]; then
  printf '%s\n' "$targets" | sed 's/^/deb /' >"$inside/etc/apt/sources.list"
fi
apt-config dump | grep -E '^Acquire::(http|https|Check)[^ ]* "' \
  >"$inside/etc/apt/apt.conf.d/99clean-room" || true
cp /etc/resolv.conf /etc/hosts "$inside/etc/"
for file in "$HOME/.config/pip/pip.conf" /etc/pip.conf; do
  [ ! -f "$file" ] || cp "$file" "$inside/etc/pip.conf"
done
certificates=/etc/ssl/certs/ca-certificates.crt
ca=
if [ -f "$certificates" ]; then
  ca=/etc/clean_room/ca.crt
  # Under a name of its own: the package ca-certificates writes the usual one.
  mkdir -p "$inside/etc/clean_room"
  cp "$certificates" "$inside/etc/clean_room/ca.crt"
  [ ! -f "$inside/etc/pip.conf" ] ||
    sed -i "s|$certificates|/etc/clean_room/ca.crt|" "$inside/etc/pip.conf"
fi

mount -t proc proc "$inside/proc"
mount --rbind /sys "$inside/sys"
mount -t tmpfs -o mode=755,size=1m dev "$inside/dev"
mkdir -p "$inside/dev/pts" "$inside/dev/shm"
for device in null zero full random urandom tty; do
  touch "$inside/dev/$device"
  mount --bind "/dev/$device" "$inside/dev/$device"
done
ln -s /proc/self/fd "$inside/dev/fd"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$inside/dev/pts"
ln -s pts/ptmx "$inside/dev/ptmx"
mount -t tmpfs shm "$inside/dev/shm"

# in_room COMMAND...: runs it inside, in the clone, with a new user's environment.
# shellcheck disable=SC2016
in_room() {
  env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 TERM="${TERM:-dumb}" \
    ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
    ${HTTP_PROXY:+HTTP_PROXY="$HTTP_PROXY"} ${HTTPS_PROXY:+HTTPS_PROXY="$HTTPS_PROXY"} \
    ${no_proxy:+no_proxy="$no_proxy"} ${NO_PROXY:+NO_PROXY="$NO_PROXY"} \
    ${PIP_INDEX_URL:+PIP_INDEX_URL="$PIP_INDEX_URL"} \
    ${PIP_EXTRA_INDEX_URL:+PIP_EXTRA_INDEX_URL="$PIP_EXTRA_INDEX_URL"} \
    ${PIP_TRUSTED_HOST:+PIP_TRUSTED_HOST="$PIP_TRUSTED_HOST"} \
    ${ca:+PIP_CERT="$ca"} ${ca:+SSL_CERT_FILE="$ca"} \
    chroot "$inside" /bin/sh -c 'cd "$1" 2>/dev/null || cd /; shift; exec "$@"' sh \
    /root/vericache "$@"
}

step clean_room_apt.log "apt-get update inside" in_room apt-get -q update ||
  die "the inside cannot reach the packages; see build/logs/clean_room_apt.log"
# timed LOG COMMAND...: runs it inside; every line is shown and logged with the seconds gone.
# Returns COMMAND's exit status.
timed() {
  timed_log=$root/build/logs/$1
  shift
  mkdir -p "$root/build/logs"
  timed_start=$(now)
  { in_room "$@" </dev/null 2>&1 && echo 0 >"$timed_log.status" ||
    echo $? >"$timed_log.status"; } |
    while IFS= read -r line; do
      printf '%5d s  %s\n' $(($(now) - timed_start)) "$line"
    done | tee "$timed_log"
  return "$(cat "$timed_log.status")"
}
# The seconds at the first line that matches $2 (an extended regular expression) in log $1.
seconds_at() { grep -m 1 -E "$2" "$root/build/logs/$1" | awk '{print $1}'; }
last_second() { tail -n 1 "$root/build/logs/$1" | awk '{print $1}'; }

git clone -q --no-hardlinks "$root" "$inside/root/vericache"
commit=$(git -C "$inside/root/vericache" rev-parse --short HEAD)
packages_before=$(in_room dpkg-query -W | wc -l)
if [ "$setup_only" = 1 ]; then
  in_room scripts/install_deps.sh build fetch || die "packages cannot be installed inside"
  in_room scripts/fetch_model.sh smollm2-135m || die "models cannot be fetched inside"
  say "== the clean room works"
  exit 0
fi

# What the demo prints as soon as the first question has its answers.
first_answer_pattern='^ *[0-9]+ s +All [0-9]+ questions'

say "== ./demo at $commit"
timed clean_room_demo.log ./demo || die "./demo failed inside; see build/logs/clean_room_demo.log"
first_answer=$(seconds_at clean_room_demo.log "$first_answer_pattern")
demo_seconds=$(last_second clean_room_demo.log)

say "== build without a network, then ./check"
in_room scripts/install_deps.sh build test
timed clean_room_offline.log unshare --net scripts/build.sh --tests ||
  die "the build needs the network; see build/logs/clean_room_offline.log"
offline_seconds=$(last_second clean_room_offline.log)
timed clean_room_check.log ./check ||
  die "./check failed inside; see build/logs/clean_room_check.log"
check_seconds=$(last_second clean_room_check.log)

{
  echo '# The last run from nothing'
  echo
  echo 'Written by scripts/clean_room.sh; not edited by hand. A Debian 12 root filesystem fresh'
  echo "from debootstrap (minbase, $packages_before packages), commit $commit,"
  echo "$(date -u '+%Y-%m-%d %H:%M UTC'), $(nproc) x$(sed -n 's/^model name[[:space:]]*://p' \
    /proc/cpuinfo | head -n 1)."
  echo
  echo '| step | seconds |'
  echo '| --- | --- |'
  echo "| clone to the first answer of ./demo | ${first_answer:-not found} |"
  echo "| clone to its last line | $demo_seconds |"
  echo "| build of the tests, without a network | $offline_seconds |"
  echo "| ./check after that | $check_seconds |"
  echo
  echo "ctest's last word: $(grep 'tests passed' "$root/build/logs/clean_room_check.log" |
    tail -n 1 | sed 's/^ *[0-9]* s *//')"
} >"$root/docs/clean_room.md"
cat "$root/docs/clean_room.md"
