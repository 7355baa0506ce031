# What the demo checks, in order. Each function is one check, says in `reason` why it failed, and uses the guests only
# over their command ports.
# shellcheck shell=bash

# Vendor and device of the adaptor, as lspci takes it.
PCI_ID=1234:4152
# A load takes a hundred times as long as a posted store, so one block of so many is read back, unless all is asked for.
READ_BACK_EVERY=16
# Exports for the guests' own tests, as NODE:OFFSET.
declare -A scratch read_only denied ports

all_checks() {
    local node
    for ((node = 1; node <= $1; node++)); do
        check "node $node: lspci -vv shows the adaptor as documented" lspci_is_golden "$node"
    done
    for ((node = 2; node <= $1; node++)); do check "node 1: the link to node $node is up" in_guest 1 20 "ardma wait $node"; done
    for ((node = 2; node <= $1; node++)); do copy_job "$node"; done
    for ((node = 1; node <= $1; node++)); do check "node $node: exports memory for tests" suite_exports "$node"; done
    for ((node = 1; node <= $1; node++)); do suite "$node" $((node == 1 ? 2 : 1)); done
    io_space
    inventories
    messages
    refusals
    peer_dies
    peer_returns
    for ((node = 1; node <= $1; node++)); do
        check "node $node: the kernel has nothing to complain about" in_guest "$node" 10 kernel_is_well
    done
}

# What depends on the machine is masked: where the function and its memory lie, and interrupt numbers.
lspci_masked() {
    sed -E -e 's/^[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]/SLOT/' -e 's/(Memory at) [0-9a-f]+/\1 ADDRESS/' \
        -e 's/IRQ [0-9]+/IRQ N/' -e '/^$/d'
}

lspci_is_golden() {
    local golden
    golden=$REPO/qemu-configs/guest/lspci-$(node_place "$1").golden
    in_guest "$1" 20 "lspci -vv -n -d $PCI_ID" || return
    lspci_masked <<<"$guest_output" >"$LOGS/lspci.node$1"
    reason=$(diff -u "$golden" "$LOGS/lspci.node$1") && return
    reason+=$'\n'"if the new text is right: cp $LOGS/lspci.node$1 $golden"
    return 1
}

# The job itself: node 1 copies its kernel into memory which the node exported.
copy_job() {
    local node=$1 bytes text
    bytes=$(stat -c %s "$KERNEL")
    check "node $node: exports $bytes bytes of its memory" exports "$node" memory "$bytes"
    check "node 1: copies its kernel there by the DMA engine, every operation checked" in_guest 1 120 "ardma copy $PAYLOAD $place"
    check "node $node: its own CPU finds the kernel's SHA-256 in that memory" sha256_matches "$node"
    if ((READ_BACK_EVERY == 1)); then text="all of it"; else text="every ${READ_BACK_EVERY}th block"; fi
    check "node 1: reads $text back through the access space, the same" in_guest 1 600 \
        "ardma copy --pio $place --compare $PAYLOAD --every $READ_BACK_EVERY"
    check "node 1: reads all of it back by the DMA engine, the same" in_guest 1 120 "ardma copy $place --compare $PAYLOAD"
    check "node 1: copies the kernel there once more, store by store, every block checked" in_guest 1 120 \
        "ardma copy --pio $PAYLOAD $place"
    check "node $node: its own CPU finds the same there" sha256_matches "$node"
}

sha256_matches() {
    local want
    want=$(sha256sum <"$KERNEL")
    asks "$1" memory 60 sha256 || return
    [[ $guest_output == *"${want%% *}"* ]] && return
    reason="expected ${want%% *}, not: $guest_output"
    return 1
}

# What the peers' tests reach for: memory with every right, for reading only, and for a node that does not exist; and memory
# in the I/O space, up to its end.
suite_exports() {
    exports "$1" scratch 64K --atomic && scratch[$1]=$place || return
    exports "$1" readonly 8K --read-only && read_only[$1]=$place || return
    exports "$1" denied 8K --nodes 15 && denied[$1]=$place || return
    exports "$1" ports 8K --io --at 0xe000 && ports[$1]=$place
}

# suite NODE PEER: the guest's own tests against a peer; each of them counts.
suite() {
    local status=0
    guest_run "$1" 300 "ardma test --peer $2 --offset ${scratch[$2]#*:} --read-only ${read_only[$2]#*:} --denied ${denied[$2]#*:} --io ${ports[$2]##*:}" ||
        status=$?
    progress_end
    tally_tap "node $1: ardma test" "$guest_output"
    # Failed tests give status 1, and have been counted.
    ((status <= 1)) || result 'not ok' "node $1: ardma test ended with status $status"
}

io_space() {
    check "node 1: four stores into node 2's I/O space are four writes there, of the same sizes" io_is_exact
    check "node 1: a check of them that clears nothing" in_guest 1 20 "ardma check --peek ${ports[2]} 8"
    check "node 1: a load from there" in_guest 1 20 "ardma read --size 4 ${ports[2]} | grep '22 11 44 33'"
    check "node 1: the I/O space where nothing is exported: no such window" refuses 1 'no such window' \
        "ardma write --size 4 2:io:0x8000 1"
}

# Where they were joined there would be one.
io_is_exact() {
    local before
    served_writes 2 && before=$served && in_guest 1 20 "ardma write --size 2 ${ports[2]} 0x1122 0x3344 0x5566 0x7788" &&
        served_writes 2 && asks 2 ports 5 'peek 0 8' || return
    ((served - before == 4)) && [[ $guest_output == 'peek 2211443366558877'* ]] && return
    reason="$((served - before)) writes; $guest_output"
    return 1
}

# served_writes NODE: how many writes of others it has executed, in `served`.
served_writes() {
    in_guest "$1" 20 'ardma info' || return
    served=$(sed -n 's/^served for others: \([0-9]*\) writes.*/\1/p' <<<"$guest_output")
    [[ -n $served ]] || reason="no count: $guest_output"
    [[ -n $served ]]
}

# What node 1 is told of node 2's exports. Without an event who waits would do so for ten minutes.
inventories() {
    check "node 1: waits for node 2 to export something called demo" \
        in_guest 1 10 "hold news ardma list 2 --name demo --wait 600"
    check "node 2: exports memory under that name" exports 2 named 64K --name demo --nodes 1
    check "node 1: is woken up, and told of place, size, rights and name" news_are "$place memory 64K rw - demo"
    check "node 1: finds it among all that there is" lists_all "$place memory 64K rw - demo"
    check "node 1: uses what it found" in_guest 1 20 "ardma write \$(ardma list 2 --name demo | sed -n 's/ .*//; 2p') 7"
    check "node 1: waits for it to go" in_guest 1 10 "hold news ardma list 2 --name demo --gone --wait 600"
    check "node 2: ends that export" in_guest 2 10 'drop named'
    check "node 1: is woken up" in_guest 1 30 'ended news 20'
    check "node 2: exports less under that name, and for reading only" exports 2 named 8K --name demo --read-only
    check "node 1: is told so" in_guest_row 1 "$place memory 8K ro - demo" 'ardma list 2 --name demo --wait 20'
}

# The header, and what is below.
news_are() { in_guest_row 1 "$1" 'hear news 20 && hear news 5 && ended news 5'; }

# in_guest_row NODE PATTERN COMMAND: it succeeds, and its answer has such a row.
in_guest_row() { in_guest "$1" 30 "$3" && has_row "$2"; }

lists_all() { in_guest_row 1 '1 node * self 0x* -' 'ardma list' && has_row '2 node * up 0x* -' && has_row "$1"; }

messages() {
    check "node 2: listens to its doorbells" in_guest 2 30 "inbox inbox --nodes 1"
    check "node 1: sends 100 messages, checked" in_guest 1 30 "ardma ring 2:7 1 --count 100"
    check "node 2: has them all, in order" in_guest 2 30 "has_lines inbox message 100 20 && in_order inbox 1 100 && drop inbox"
    check "node 1: a doorbell to which nobody listens: access denied" refuses 1 'access denied' "ardma ring 2:7 1"
}

refusals() {
    check "node 1: an offset that is not exported: no such window" refuses 1 'no such window' "ardma write 2:0xff00000 1"
    check "node 1: a write to memory for reading only: access denied" refuses 1 'access denied' "ardma write ${read_only[2]} 1"
    check "node 1: a read of memory for others: access denied" refuses 1 'access denied' "ardma read ${denied[2]} 8"
    check "node 1: a node that is not configured: no route" refuses 1 'no route' "ardma write 15:0 1"
}

peer_dies() {
    check "node 2: exports memory" exports 2 victim 16M
    check "node 1: is copying into it" copy_begins 1 2 victim "ardma copy --pio $PAYLOAD $place"
    check "node 1: node 2's adaptor is killed: the outcome of what was under way is unknown" copy_meets_death
    check "node 1: sees the link go down" in_guest 1 20 "ardma wait 2 --down"
    check "node 1: a write now: link down" refuses 1 'link down' "ardma write $place 1"
}

# The adaptor is stopped first, until it has packets that it has not taken: then something is under way for certain.
copy_meets_death() {
    kill -STOP "${adaptor_pid[2]}"
    wait_until 5 packets_wait 2 || reason="no packets are under way to node 2; "
    adaptor_kill 2 KILL || true
    local status=0
    guest_run 1 20 "ended copy 15" || status=$?
    [[ -z $reason ]] && ((status == 1)) && [[ $guest_output == *'outcome unknown'* ]] && return
    reason+="expected 'outcome unknown' and status 1, got status $status: $guest_output"
    return 1
}

# A guest whose adaptor died has lost its device until it is started again.
peer_returns() {
    guest_stop 2
    adaptor_start 2
    node_boot 2
    check "node 2: adaptor and guest are started again" guest_up 2
    check "node 2: the driver takes the adaptor" driver_loads 2
    check "node 1: sees the link to node 2 come up" in_guest 1 20 "ardma wait 2"
    check "node 2: exports memory" exports 2 memory 256K
    check "node 1: copies into it, every block checked" in_guest 1 60 \
        "head -c 262144 $PAYLOAD >/tmp/part && ardma copy /tmp/part $place && ardma copy $place --compare /tmp/part"
}
