# Helpers of ./demo, ./check and the scripts beside this file: POSIX sh, to be sourced.
#
# shellcheck shell=sh disable=SC2154
# The sourcing script sets `root` to the repository's root. Everything here talks on standard
# error, so that a script's standard output stays its own.

if [ -t 2 ]; then lib_tty=1; else lib_tty=0; fi
lib_step_pid=

say() { printf '%s\n' "$*" >&2; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}
now() { date +%s; }

# A job started with `&` ignores Ctrl-C, so the running step has to be ended by hand: its whole
# process group where it was started by setsid, else the process alone.
lib_stop() {
  trap - INT TERM
  [ -z "$lib_step_pid" ] || kill -- "-$lib_step_pid" 2>/dev/null || kill "$lib_step_pid" 2>/dev/null
  say ""
  say "${0##*/}: interrupted"
  exit 130
}
trap lib_stop INT TERM

# step LOG TITLE COMMAND...: runs COMMAND with its output in build/logs/LOG. Meanwhile shows the
# seconds gone and the command's latest line (on a terminal), or a line every 15 s (elsewhere).
# On failure shows the end of the log. Returns COMMAND's exit status.
step() {
  lib_log=$root/build/logs/$1
  lib_title=$2
  shift 2
  mkdir -p "$root/build/logs"
  lib_start=$(now)
  lib_beat=15
  "$@" >"$lib_log" 2>&1 </dev/null &
  lib_step_pid=$!
  while kill -0 "$lib_step_pid" 2>/dev/null; do
    lib_gone=$(($(now) - lib_start))
    if [ "$lib_tty" = 1 ]; then
      printf '\r\033[K  ... %s (%d s) %s' "$lib_title" "$lib_gone" \
        "$(tail -c 300 "$lib_log" | tr '\r' '\n' | tail -n 1 | cut -c 1-50)" >&2
    elif [ "$lib_gone" -ge "$lib_beat" ]; then
      say "  ... $lib_title ($lib_gone s) $(tail -n 1 "$lib_log" | cut -c 1-70)"
      lib_beat=$((lib_gone + 15))
    fi
    sleep 0.2
  done
  lib_status=0
  wait "$lib_step_pid" || lib_status=$?
  lib_step_pid=
  [ "$lib_tty" = 0 ] || printf '\r\033[K' >&2
  lib_took="$lib_title ($(($(now) - lib_start)) s)"
  if [ "$lib_status" = 0 ]; then
    say "  ok  $lib_took"
  else
    say "  FAILED  $lib_took, exit $lib_status; the end of build/logs/${lib_log##*/}:"
    tail -n 40 "$lib_log" | sed 's/^/      /' >&2
  fi
  return "$lib_status"
}

models_dir() {
  printf '%s\n' "${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/vericache/models"
}
