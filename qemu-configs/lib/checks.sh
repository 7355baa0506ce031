# What the demo checks, in order. Each function is one check, says in `reason` why it failed, and uses the guests only
# over their command ports.
# shellcheck shell=bash

# Where the exports of node 2 and up lie, as NODE:OFFSET.
place=none read_only=none
PAYLOAD=/boot/vmlinuz

all_checks() {
    local node
    for ((node = 1; node <= $1; node++)); do
        check "node $node: lspci -vv shows the adaptor as documented" lspci_is_golden "$node"
    done
    for ((node = 2; node <= $1; node++)); do copy_job "$node"; done
    for ((node = 1; node <= $1; node++)); do suite "$node"; done
    refusals
    peer_dies
    peer_returns
    for ((node = 1; node <= $1; node++)); do
        check "node $node: the kernel has nothing to complain about" in_guest "$node" 10 kernel_is_well
    done
}

# in_guest NODE SECONDS COMMAND: runs it; failing is a failed check and its output the reason.
in_guest() {
    local status=0
    guest_run "$@" || status=$?
    case $status in
        0) return 0 ;;
        124) reason="no answer from guest $1 in $2 s to: $3" ;;
        125) reason="guest $1 is gone; see $LOGS/guest$1.console.log and $LOGS/guest$1.qemu.log" ;;
        *) reason="status $status from guest $1 for: $3"$'\n'"$guest_output" ;;
    esac
    return 1
}

guest_up() {
    guest_ready "$1" 60 && return
    reason="no word from the guest; see $LOGS/guest$1.console.log"$'\n'$(tail -n 3 "$LOGS/guest$1.qemu.log")
    return 1
}

# The device file shows that probing came to a good end.
driver_loads() { in_guest "$1" 20 'modprobe assured_rdma && ls /dev/ardma0 && kernel_is_well'; }

# What depends on the machine is masked: where the function and its memory lie, and interrupt numbers.
lspci_masked() {
    sed -E -e 's/^[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]/SLOT/' -e 's/(Memory at) [0-9a-f]+/\1 ADDRESS/' \
        -e 's/IRQ [0-9]+/IRQ N/' -e '/^$/d'
}

lspci_is_golden() {
    local golden=$REPO/qemu-configs/guest/lspci.golden
    in_guest "$1" 20 "lspci -vv -n -d $PCI_ID" || return
    lspci_masked <<<"$guest_output" >"$LOGS/lspci.node$1"
    reason=$(diff -u "$golden" "$LOGS/lspci.node$1") && return
    reason+=$'\n'"if the new text is right: cp $LOGS/lspci.node$1 $golden"
    return 1
}

# The job itself: node 1 copies the kernel into memory which the node exported.
copy_job() {
    local node=$1 bytes=$((($(stat -c %s "$KERNEL") + 4095) / 4096 * 4096))
    check "node $node: exports $bytes bytes of its memory" exports "$node" "$bytes"
    check "node 1: copies its kernel there, every block checked" in_guest 1 120 "ardma copy $PAYLOAD $place"
    check "node $node: its own CPU finds the kernel's SHA-256 in that memory" sha256_matches "$node"
    check "node 1: reads it back through the access space, the same" in_guest 1 120 \
        "ardma read $place $(stat -c %s "$KERNEL") --output /tmp/back && cmp $PAYLOAD /tmp/back && rm /tmp/back"
}

# exports NODE BYTES: the place is in `place`, as NODE:OFFSET.
exports() {
    place=none
    in_guest "$1" 10 "hold memory ardma export $2 && hear memory 5" || return
    place=${guest_output%%$'\n'*}
    [[ $place == "$1":* ]] && return
    reason="expected a line $1:OFFSET, not '$place'"
    return 1
}

sha256_matches() {
    local want
    want=$(sha256sum <"$KERNEL")
    in_guest "$1" 60 "tell memory 'sha256 $(stat -c %s "$KERNEL")' && hear memory 50" || return
    [[ $guest_output == *"${want%% *}"* ]] && return
    reason="expected ${want%% *}, not: $guest_output"
    return 1
}

# The guest's own test suite; each of its tests counts.
suite() {
    local status=0
    guest_run "$1" 120 "ardma test" || status=$?
    progress_end
    tally_tap "node $1: ardma test" "$guest_output"
    ((status == 0)) || result 'not ok' "node $1: ardma test ended with status $status"
}

# refuses NODE CODE COMMAND: the command must fail and name the code.
refuses() {
    local status=0
    guest_run "$1" 20 "$3" || status=$?
    ((status != 0 && status != 124 && status != 125)) && [[ ${guest_output,,} == *"$2"* ]] && return
    reason="expected '$2' and a failure, got status $status: $guest_output"
    return 1
}

refusals() {
    check "node 1: an offset that is not exported: no such window" \
        refuses 1 'no such window' "ardma write 2:0x8000000 1"
    check "node 2: exports memory for reading only" read_only_export
    check "node 1: a write to it: access denied" refuses 1 'access denied' "ardma write $read_only 1"
    check "node 1: a node that is not configured: no route" refuses 1 'no route' "ardma write 15:0 1"
}

read_only_export() {
    in_guest 2 10 "hold readonly ardma export 4K --rights r && hear readonly 5" || return
    read_only=${guest_output%%$'\n'*}
}

# The adaptor is stopped first, so that the write is under way for certain when it is killed.
peer_dies() {
    check "node 1: a write under way when node 2's adaptor is killed: outcome unknown" write_meets_death
    check "node 1: the next one: link down" refuses 1 'link down' "ardma write $place 1"
}

write_meets_death() {
    kill -STOP "${adaptor_pid[2]}"
    guest_send 1 20 "ardma write $place 1"
    adaptor_kill 2 KILL || true
    local status=0
    guest_collect 1 25 || status=$?
    ((status != 0)) && [[ ${guest_output,,} =~ (link lost|timeout|peer restarted) ]] && return
    reason="expected an unknown outcome and a failure, got status $status: $guest_output"
    return 1
}

# A guest whose adaptor died has lost its device until it is started again.
peer_returns() {
    guest_stop 2
    adaptor_start 2
    node_boot 2
    check "node 2: adaptor and guest are started again" guest_up 2
    check "node 2: the driver takes the adaptor" driver_loads 2
    check "node 1: sees the link to node 2 come up" wait_until 10 link_is_up
    check "node 2: exports memory" exports 2 1M
    check "node 1: copies into it, every block checked" in_guest 1 60 "head -c 1048576 $PAYLOAD >/tmp/part && ardma copy /tmp/part $place"
}

link_is_up() { in_guest 1 10 "ardma info | grep -E '^ *node 2\\b.*\\bup\\b'"; }
