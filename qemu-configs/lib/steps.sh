# Steps that the demo and the tests are made of. Each says in `reason` why it failed, and uses the guests only over their
# command ports.
# shellcheck shell=bash

# What guests copy: the kernel that they run.
# shellcheck disable=SC2034 # not every session copies it
PAYLOAD=/boot/vmlinuz
# Where the last export lies, as NODE:OFFSET.
place=none

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
    guest_ready "$1" 90 && return
    reason="no word from the guest; see $LOGS/guest$1.console.log"$'\n'$(tail -n 3 "$LOGS/guest$1.qemu.log")
    return 1
}

# The device file shows that probing came to a good end.
driver_loads() { in_guest "$1" 20 'modprobe assured_rdma && ls /dev/ardma0 && kernel_is_well'; }

# exports NODE NAME ARGUMENT...: holds an export in a guest under a name; the place is in `place`, as NODE:OFFSET.
exports() {
    local node=$1 name=$2 word
    shift 2
    place=none
    in_guest "$node" 40 "hold $name ardma export $* && hear $name 30" || return
    read -r word place _ <<<"$guest_output"
    [[ $word == exported && $place == "$node":* ]] && return
    reason="expected 'exported $node:OFFSET BYTES', not: $guest_output"
    return 1
}

# asks NODE NAME SECONDS QUESTION: one line for a held program, and its answer in guest_output.
asks() { in_guest "$1" "$3" "tell $2 '$4' && hear $2 $3"; }

# has_row PATTERN: the answer of `ardma list` has a row whose columns, with one space between two, match this.
has_row() {
    local row
    while read -ra row; do
        # shellcheck disable=SC2053 # a pattern
        [[ ${row[*]} != $1 ]] || return 0
    done <<<"$guest_output"
    reason="no row '$1' in: $guest_output"
    return 1
}

# refuses NODE TEXT COMMAND: the command must fail and say this.
refuses() {
    local status=0
    guest_run "$1" 20 "$3" || status=$?
    ((status == 1)) && [[ $guest_output == *"$2"* ]] && return
    reason="expected '$2' and status 1, got status $status: $guest_output"
    return 1
}

# copy_begins NODE PEER NAME COMMAND: holds a copy under the name `copy`, and sees it arrive in the export that the peer
# holds under this name.
copy_begins() {
    in_guest "$1" 10 "hold copy $4" && wait_until 20 is_hit "$2" "$3" && return
    reason+="nothing arrives in node $2's memory"
    return 1
}

# Memory that was zero, and is not any more where a copy begins.
is_hit() { asks "$1" "$2" 5 'peek 0 8' && [[ $guest_output == 'peek '*[1-9a-f]* ]]; }
