# A node that writes a mark into another's window, without end and whatever comes of it; and the guest's memory, looked at
# from outside for the mark. QEMU has it in a file.
# shellcheck shell=bash

# Where the window is; an export that chooses its place lies below.
STORM_OFFSET=0x4000000
STORM_BYTES=65536
# The window's last block, where the storm does not go: the error of a write is answered to who checks its block first, and
# that must not be the storm.
STORM_PROBE=$((STORM_OFFSET + STORM_BYTES))
# 16 bytes in hex, none of them 0 or a newline.
mark=

# storm_begins NODE PEER
storm_begins() {
    storm_from=$1
    new_mark && in_guest "$1" 10 \
        "hold storm sh -c 'while :; do ardma copy --pio /tmp/storm $2:$STORM_OFFSET --retries 0; done >/dev/null 2>&1'"
}

# Lets the storm have another mark.
new_mark() {
    local i
    mark=
    for ((i = 0; i < 16; i++)); do mark+=$(printf '%02x' $((RANDOM % 200 + 33))); done
    # shellcheck disable=SC2016 # the guest's
    in_guest "$storm_from" 20 'printf "'"${mark//??/\\x&}"'" >/tmp/mark && while [ $(wc -c </tmp/mark) -lt '"$STORM_BYTES"' ]; do cat /tmp/mark /tmp/mark >/tmp/marks && mv /tmp/marks /tmp/mark; done && mv /tmp/mark /tmp/storm'
}

# marked_export NODE: exports where the storm goes, under the name `target`, and it arrives.
marked_export() {
    exports "$1" target "$((STORM_BYTES + 4096))" --at "$STORM_OFFSET" && wait_until 30 is_marked "$1" && return
    reason+="the storm does not arrive at node $1"
    return 1
}

is_marked() { asks "$1" target 5 "peek $((STORM_BYTES - 16)) 16" && [[ $guest_output == "peek $mark"* ]]; }

# Whether the mark is anywhere in the guest's memory.
memory_has_mark() {
    local link lines
    for link in "/proc/${guest_pid[$1]}/fd"/*; do
        [[ $(readlink "$link") == /memfd:*memory-backend* ]] || continue
        # Without zeros what is left has lines.
        lines=$(tr -d '\0' <"$link" | LC_ALL=C grep -caP "${mark//??/\\x&}" || true)
        ((lines))
        return
    done
    die "QEMU of node $1 has no file for its memory"
}

# is_untouched NODE: the storm knocks at this boot, which has exported nothing, and nothing of it was executed.
is_untouched() {
    refuses "$storm_from" 'no such window' "ardma wait $1 --timeout 30 >/dev/null && ardma write $1:$STORM_PROBE 1" &&
        wait_until 30 is_knocked "$1" || return
    if [[ $guest_output != *'served for others: 0 writes, 0 reads, '* ]]; then
        reason="something was executed: $guest_output"
        return 1
    fi
    ! memory_has_mark "$1" || reason="the mark $mark is in the memory"
    [[ -z $reason ]]
}

is_knocked() { in_guest "$1" 20 'ardma info' && [[ $guest_output =~ ' reads, '[1-9][0-9]*' refused' ]]; }

# mark_arrives NODE: so it can be found.
mark_arrives() {
    marked_export "$1" || return
    memory_has_mark "$1" || reason="the mark $mark is not found in the memory"
    [[ -z $reason ]] && in_guest "$1" 20 'drop target'
}
