# Shared by the commands in qemu-configs and tests: messages, waiting with a deadline, packages of the host.
# shellcheck shell=bash

# The repository, however the command was called and whatever the current folder is.
REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
COMMAND=$(basename "$0")

say() { printf '%s: %s\n' "$COMMAND" "$*"; }

die() {
    printf '%s: %s\n' "$COMMAND" "$*" >&2
    exit 1
}

# A mistake on the command line: one line and its own exit status.
usage_error() {
    printf '%s: %s (see --help)\n' "$COMMAND" "$*" >&2
    exit 2
}

# Microseconds, for durations and deadlines; EPOCHREALTIME has six decimals and the locale's point or comma.
now_us() { printf '%s' "${EPOCHREALTIME//[.,]/}"; }

# Seconds since a now_us value, with one decimal.
since() {
    local tenths=$(((${EPOCHREALTIME//[.,]/} - $1) / 100000))
    printf '%d.%d s' $((tenths / 10)) $((tenths % 10))
}

# How many times as long everything in a guest may take: more than 1 with a kernel that watches itself.
GUEST_SLOWNESS=1

# wait_until SECONDS COMMAND...: looks again until the command succeeds; fails when the time is over.
wait_until() {
    local end=$(($(now_us) + $1 * 1000000 * GUEST_SLOWNESS))
    shift
    until "$@"; do
        (($(now_us) < end)) || return 1
        sleep 0.02
    done
}

# step LOG TEXT COMMAND...: runs a long command with its output in a log, and says what it does and how long it took.
step() {
    local log=$1 text=$2 start
    start=$(now_us)
    shift 2
    printf '%s: %s ... ' "$COMMAND" "$text"
    if "$@" </dev/null >"$log" 2>&1; then
        printf '%s\n' "$(since "$start")"
    else
        printf 'failed after %s\n' "$(since "$start")"
        tail -n 25 "$log" | sed 's/^/    /' >&2
        die "$text failed; everything it printed is in $log"
    fi
}

# Runs a command as root: as it is, or through sudo.
as_root() {
    if ((EUID == 0)); then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo -- "$@"
    else
        die "needs root or sudo for: $*"
    fi
}

# An administrator's tools are outside an ordinary user's PATH on Debian.
has_tool() { PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null; }

# need_tools TOOL[=PACKAGE]...: installs the host packages of the tools that are missing.
need_tools() {
    local item missing=()
    for item in "$@"; do
        has_tool "${item%%=*}" || missing+=("${item##*=}")
    done
    ((${#missing[@]})) || return 0
    command -v apt-get >/dev/null || die "please install: ${missing[*]}"
    mkdir -p "$REPO/target"
    step "$REPO/target/apt.log" "installing ${missing[*]} on this machine with apt-get" apt_install "${missing[@]}"
}

# Package lists may be missing or old on a fresh machine, but fetching them is not worth it when all is there.
apt_install() {
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@")
    as_root "${install[@]}" || { as_root apt-get update && as_root "${install[@]}"; }
}

# version_at_least HAVE WANT: compares dotted versions.
version_at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }
