#!/bin/sh
# Installs the Debian/Ubuntu packages that are missing, from the list in scripts/packages.txt.
#
#   scripts/install_deps.sh SECTION...     build fetch test extra clean_room (default: build)
#   scripts/install_deps.sh --print SECTION...   only prints what is missing
#
# Where nothing is missing it returns at once and needs neither root nor network.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
. "$root/scripts/lib.sh"

print_only=0
if [ "${1:-}" = --print ]; then
  print_only=1
  shift
fi
[ $# -gt 0 ] || set -- build
for section in "$@"; do
  case $section in
    build | fetch | test | extra | clean_room) ;;
    *) die "unknown section '$section'; say build, fetch, test, extra or clean_room" ;;
  esac
done

wanted=$(sed 's/#.*//' "$root/scripts/packages.txt" | while read -r section package; do
  for s in "$@"; do
    if [ "$s" = "$section" ]; then printf '%s\n' "$package"; fi
  done
done | sort -u)

if ! command -v dpkg-query >/dev/null 2>&1; then
  say "install_deps.sh: no dpkg here; install by hand what scripts/packages.txt lists. Going on."
  exit 0
fi

# dpkg-query fails if any package is unknown; only what it lists as installed counts.
# shellcheck disable=SC2086
installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $wanted 2>/dev/null |
  sed -n 's/ installed$//p' || true)
missing=
for package in $wanted; do
  case "
$installed
" in
    *"
$package
"*) ;;
    *) missing="$missing $package" ;;
  esac
done
missing=${missing# }
if [ "$print_only" = 1 ]; then
  [ -z "$missing" ] || printf '%s\n' "$missing"
  exit 0
fi
[ -n "$missing" ] || exit 0

say "Installing packages ($*): $missing"
as_root=
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null 2>&1 ||
    die "neither root nor sudo; as root run: apt-get install --no-install-recommends $missing"
  as_root=sudo
  sudo -v || die "sudo refused; as root run: apt-get install --no-install-recommends $missing"
fi

apt() {
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300 \
    -o APT::Install-Recommends=false -o Dpkg::Use-Pty=0 "$@"
}
# An old or empty package list is the commonest reason for "unable to locate"; a failed update
# alone is not fatal, since one broken source must not stop an install that does not need it.
step apt_update.log "apt-get update" apt -q update ||
  say "  apt-get update failed; trying to install all the same"
# shellcheck disable=SC2086
step apt_install.log "apt-get install" apt -q install $missing ||
  die "could not install: $missing (see build/logs/apt_install.log)"
