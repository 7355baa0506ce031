# What the tests with guests share. Each script here is a session of its own, with `--kernel VERSION` as its only option,
# and ends with `NAME: N passed, M failed`.
# shellcheck shell=bash

# shellcheck source=qemu-configs/lib/common.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../../qemu-configs/lib/common.sh"
# shellcheck source=qemu-configs/lib/session.sh
source "$REPO/qemu-configs/lib/session.sh"

# shellcheck source=tests/qemu/storm.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/storm.sh"

# A part of the kernel image for short copies, made in every guest, and its length in bytes.
PART=/tmp/part
PART_BYTES=16384
# A node's incarnation, as `incarnation` found it.
found=

# suite_begin COUNT ARGUMENT...: so many nodes are up, or this is the end. The arguments are the script's own.
suite_begin() {
    local count=$1
    shift
    suite_prepare "$@"
    session_nodes "$count"
    if ((failed)); then
        session_result
        exit 1
    fi
}

# suite_prepare ARGUMENT...: everything but the nodes.
suite_prepare() {
    local version=
    case $#:${1:-} in
        0:) ;;
        2:--kernel) version=$2 ;;
        1:--help | 1:-h) suite_usage && exit 0 ;;
        *) usage_error "the only option is --kernel VERSION, not '$*'" ;;
    esac
    session_begin "$REPO/target/tests/qemu-$COMMAND"
    session_prepare "$version"
}

# A script's first lines say what it is about.
suite_usage() {
    printf 'Usage: tests/qemu/%s [--kernel VERSION]\n' "$COMMAND"
    sed -n '/^# shellcheck/d; /^[^#]/q; 2,$s/^# //p' "$0"
}

# The last checks of every script.
suite_end() {
    local node
    for node in "${!guest_pid[@]}"; do check "node $node: the kernel has nothing to complain about" is_well "$node"; done
    session_result
}

# Kernel log and console: a boot that went wrong is in the console only.
is_well() {
    in_guest "$1" 20 kernel_is_well || return
    reason=$(grep -E 'BUG:|WARNING:|Oops|Call Trace|lockup|blocked for more|Kernel panic' "$LOGS/guest$1.console.log") ||
        return 0
    return 1
}

# smoke NODE PEER: each exports memory that the other one writes, checks and reads.
smoke() { one_way "$1" "$2" && one_way "$2" "$1"; }

one_way() {
    in_guest "$1" 40 "ardma wait $2 --timeout 30 && ardma info && head -c $PART_BYTES $PAYLOAD >$PART" &&
        exports "$2" smoke "$PART_BYTES" &&
        in_guest "$1" 40 "ardma write $place 0x1122334455667788 && ardma check $place && ardma read $place 8" || return
    if [[ $guest_output != *'88 77 66 55 44 33 22 11'* ]]; then
        reason="not what was written: $guest_output"
        return 1
    fi
    in_guest "$1" 60 "ardma copy $PART $place && ardma copy $place --compare $PART" &&
        holds_part "$2" smoke &&
        in_guest "$2" 20 "drop smoke" &&
        refuses "$1" 'no such window' "ardma write $place 1"
}

# holds_part NODE NAME: the export's own guest finds the part there.
holds_part() { sha256_is "$1" "$2" "$PART_BYTES" "$(head -c "$PART_BYTES" "$KERNEL" | sha256sum)"; }

# on_numa NODE: what a guest's shell does first, so that it and all that it starts have memory of that NUMA node only.
on_numa() {
    # shellcheck disable=SC2016 # the guest's shell
    printf '([ -e /sys/fs/cgroup/cgroup.procs ] || mount -t cgroup2 none /sys/fs/cgroup) && cd /sys/fs/cgroup &&
        echo +cpuset >cgroup.subtree_control && mkdir -p numa%s && echo %s >numa%s/cpuset.mems && echo $$ >numa%s/cgroup.procs && cd /' \
        "$1" "$1" "$1" "$1" | tr '\n' ' '
}

# exports_from NODE NUMANODE NAME BYTES: as `exports`, with memory of that NUMA node.
exports_from() {
    local word
    in_guest "$1" 40 "$(on_numa "$2") && hold $3 ardma export $4 && hear $3 30" || return
    read -r word place _ <<<"$guest_output"
    [[ $word == exported && $place == "$1":* ]] && return
    reason="expected 'exported $1:OFFSET BYTES', not: $guest_output"
    return 1
}

# lands NODE PEER NAME: what the node writes is found in the last export.
lands() {
    in_guest "$1" 60 "ardma wait $2 --timeout 30 && head -c $PART_BYTES $PAYLOAD >$PART" && asks "$2" "$3" 10 'fill 0' &&
        in_guest "$1" 60 "ardma copy $PART $place && ardma copy $place --compare $PART" && holds_part "$2" "$3"
}

# numa_export NODE PEER NUMANODE: an export of its memory works.
numa_export() { exports_from "$1" "$3" numa 64K && lands "$2" "$1" numa && in_guest "$1" 20 'drop numa'; }

# sha256_is NODE NAME BYTES SUM: of the first bytes of an export; the sum as sha256sum prints it.
sha256_is() {
    asks "$1" "$2" 60 "sha256 $3" || return
    [[ $guest_output == "sha256 ${4%% *}"* ]] && return
    reason="$3 bytes: expected ${4%% *}, not: $guest_output"
    return 1
}

# ends_with NODE NAME SECONDS STATUS TEXT: a held program ends like this.
ends_with() {
    local status=0
    guest_run "$1" "$3" "ended $2 $3" || status=$?
    ((status == $4)) && [[ $guest_output == *"$5"* ]] && return
    reason="$2: expected '$5' and status $4, got status $status: $guest_output"
    return 1
}

# fails NODE STATUS TEXT COMMAND: the command ends with this status and says this.
fails() {
    local status=0
    guest_run "$1" 30 "$4" || status=$?
    ((status == $2)) && [[ $guest_output == *"$3"* ]] && return
    reason="expected '$3' and status $2, got status $status: $guest_output"
    return 1
}

# says NODE TEXT COMMAND: the command succeeds and says this.
says() {
    in_guest "$1" 60 "$3" || return
    [[ $guest_output == *"$2"* ]] && return
    reason="expected '$2', not: $guest_output"
    return 1
}

# knows_its_place NODE [DEVICE]: the adaptor says that its spaces lie where the kernel has found them.
knows_its_place() { in_guest "$1" 30 "ardma --device ${2:-/dev/ardma0} test --group assurance"; }

# incarnation NODE: what the node itself says, in `found`.
incarnation() {
    in_guest "$1" 20 "ardma info" || return
    found=$(sed -n 's/^incarnation: //p' <<<"$guest_output")
    [[ -n $found ]] || reason="no incarnation: $guest_output"
    [[ -n $found ]]
}

# sees NODE PEER INCARNATION: so far as this node knows the peer is up, and this incarnation of it.
sees() {
    in_guest "$1" 40 "ardma wait $2 --timeout 30" || return
    [[ $guest_output == "peer $2: up, incarnation $3,"* ]] && return
    reason="expected incarnation $3 of node $2, not: $guest_output"
    return 1
}

# late_command NODE PEER [COMMAND]: a command of the node's driver is not answered in time: the end of a queue while its peer
# stands still. The other command runs in the guest while the answer is missing. The node's deadline has to be long.
late_command() {
    local status=0 timeout=/sys/module/assured_rdma/parameters/command_timeout_ms
    exports "$2" late 64K && in_guest "$1" 10 "hold late ardma perf write_bw $place -s 64K -n 1000000000 -q 4" &&
        wait_until 30 is_hit "$2" late && in_guest "$1" 10 "echo 10 >$timeout" || return
    kill -STOP "${adaptor_pid[$2]}"
    guest_run "$1" 30 "poke late KILL; ${3:-true} && { ended late 20; dmesg | grep 'timed out (10 ms'; }" || status=$?
    kill -CONT "${adaptor_pid[$2]}"
    if ((status)); then
        reason="status $status: $guest_output"
        return 1
    fi
    # What its writes left in the error log is nobody else's business.
    in_guest "$1" 60 "echo 10000 >$timeout; ardma wait $2 --timeout 30; ardma check $place 65536 >/dev/null; true" &&
        in_guest "$2" 20 'drop late'
}

# is_alive NODE...: their adaptors run, as the processes that they were.
is_alive() {
    local node
    for node in "$@"; do
        kill -0 "${adaptor_pid[$node]}" 2>/dev/null && ! adaptor_gone "${adaptor_pid[$node]}" && continue
        reason="the adaptor of node $node has ended: $(tail -n 3 "$LOGS/node$node.adaptor.log")"
        return 1
    done
}
