# A session: what the demo and the tests with guests have around their checks. One at a time in this repository, since
# they share builds; everything built; nodes started; and at the end nothing left but logs.
# shellcheck shell=bash

# shellcheck source=qemu-configs/lib/lab.sh
source "$REPO/qemu-configs/lib/lab.sh"
# shellcheck source=qemu-configs/lib/build.sh
source "$REPO/qemu-configs/lib/build.sh"
# shellcheck source=qemu-configs/lib/guest.sh
source "$REPO/qemu-configs/lib/guest.sh"
# shellcheck source=qemu-configs/lib/nodes.sh
source "$REPO/qemu-configs/lib/nodes.sh"
# shellcheck source=qemu-configs/lib/tally.sh
source "$REPO/qemu-configs/lib/tally.sh"
# shellcheck source=qemu-configs/lib/steps.sh
source "$REPO/qemu-configs/lib/steps.sh"

GUEST_MEMORY=512M
# Sockets and the ports of the guests. Short, since the path of a UNIX socket holds 107 characters; and seen by the lab
# under the same name.
WORK=

# session_begin LOGS: from here on, however this script ends, session_finish runs.
session_begin() {
    LOGS=$1
    session_started=$(now_us)
    mkdir -p "$BUILD" "$DEMO"
    exec {session_lock}>"$DEMO/lock"
    flock -n "$session_lock" || die "another demo, or test with guests, is running in this repository"
    rm -rf "$LOGS"
    mkdir -p "$LOGS"
    trap session_finish EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    WORK=$(mktemp -d /tmp/assured-rdma.XXXXXX)
}

session_finish() {
    local status=$?
    trap - EXIT
    # A second signal, as when a terminal goes, must not leave half of it.
    trap '' INT TERM HUP
    # bash leaves the timer of an interrupted `read -t` running, and aborts when it fires; the next one stops it.
    read -r -t 1 </dev/null || true
    guest_terminal_back
    progress_end
    nodes_stop || true
    [[ -z $WORK ]] || rm -rf "$WORK"
    ((status == 0)) || say "logs of adaptors, consoles and commands are in $LOGS"
    exit "$status"
}

# session_prepare [VERSION]: everything that guests of this kernel need. A version is also the name of a file in tests/kernel.
session_prepare() {
    local version=${1:-} release
    lab_make
    if [[ -n $version && -f $REPO/tests/kernel/$version.config ]]; then
        lab_debug "$version"
        watch_kernel
        version=
    fi
    release=$(lab_kernel "$version")
    KERNEL=$LAB_ROOT/boot/vmlinuz-$release
    build_adaptor
    build_ardma
    build_module "$release"
    build_initramfs "$release"
    choose_accelerator "$KERNEL"
    say "kernel $release, QEMU of the $LAB_QEMU with $ACCEL"
}

# Guests of a kernel that watches itself are slower and larger, and their module is checked as it is built.
watch_kernel() {
    GUEST_SLOWNESS=4
    GUEST_MEMORY=1G
    # shellcheck disable=SC2034 # for build_module
    module_checks=(W=1 C=2)
}

# session_nodes COUNT: starts all nodes; the guests boot at the same time.
session_nodes() {
    local node count=$1
    nodes_plan "$count"
    for ((node = 1; node <= count; node++)); do adaptor_start "$node"; done
    for ((node = 1; node <= count; node++)); do ! has_guest "$node" || node_boot "$node"; done
    for ((node = 1; node <= count; node++)); do
        has_guest "$node" || continue
        check "node $node: the guest is up" guest_up "$node"
        check "node $node: the driver takes the adaptor" driver_loads "$node"
    done
}

# Says what came of the checks, in the form that tests/run counts; its status is the script's.
session_result() {
    say "took $(since "$session_started")"
    ((skipped == 0)) || say "$skipped skipped"
    printf '%s: %d passed, %d failed\n' "$COMMAND" "$passed" "$failed"
    ((failed == 0))
}
