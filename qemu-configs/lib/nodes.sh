# Nodes: an adaptor process and the guest attached to it, or one of several, if it has any. Sockets are in WORK, logs in LOGS.
# shellcheck shell=bash

declare -A adaptor_pid adaptor_port

# How a node's guest is started: whether its memory is shared (see guest_memory; default: on), whether it may be reset and
# has a monitor for that (yes or no; default: no, then a reset ends QEMU), its firmware (seabios or ovmf; default: seabios),
# more options for its QEMU, and more words for its kernel's command line.
declare -A node_memory node_resets node_firmware node_qemu node_words
# More options for a node's adaptor, a command that it is run by, and whether it has a guest (yes or no; default: yes).
declare -A adaptor_options adaptor_under node_guest
# For a node that is another bus of a node's adaptor: that node, which is bus 0, right before it and others of that kind.
declare -A node_host

# The accelerator in ACCEL: kvm where it really runs this kernel, else tcg. /dev/kvm may open and yet not do it, so a
# guest is tried; the answer holds until the machine is booted again. LAB_ACCEL decides without a trial.
choose_accelerator() {
    local kernel=$1 boot remembered
    ACCEL=${LAB_ACCEL:-}
    [[ -z $ACCEL ]] || return 0
    boot=$(</proc/sys/kernel/random/boot_id)
    remembered=$BUILD/accelerator
    if [[ -f $remembered && $(<"$remembered") == "$boot "* ]]; then
        ACCEL=$(cut -d ' ' -f 2 "$remembered")
    elif [[ -r /dev/kvm && -w /dev/kvm ]] && kvm_runs "$kernel"; then
        ACCEL=kvm
    else
        ACCEL=tcg
    fi
    echo "$boot $ACCEL" >"$remembered"
}

# Whether a guest comes up under KVM.
kvm_runs() {
    local console=$LOGS/kvm-probe.console.log messages=$LOGS/kvm-probe.qemu.log pid memory
    guest_memory on
    ACCEL=kvm guest_qemu "$1" "$INITRAMFS" lab.probe "$console" "${memory[@]}" -no-reboot </dev/null >/dev/null 2>"$messages" &
    pid=$!
    wait_until 10 kvm_probe_over "$pid" "$messages" || true
    { kill -KILL "$pid" && wait "$pid"; } 2>/dev/null || true
    grep -q 'lab: the guest is up' "$console" 2>/dev/null
}

# A guest which KVM cannot run is stopped, not ended.
kvm_probe_over() { ! kill -0 "$1" 2>/dev/null || grep -q 'internal error' "$2"; }

# A TCP port of this machine that nothing uses, and that was not given out before.
free_port() {
    local port taken
    taken=$(awk 'FNR > 1 { split($2, address, ":"); print address[2] }' /proc/net/tcp /proc/net/tcp6 2>/dev/null)
    while true; do
        port=$((20000 + RANDOM % 10000))
        [[ $'\n'"$taken"$'\n' == *$'\n'"$(printf '%04X' "$port")"$'\n'* || " ${adaptor_port[*]} " == *" $port "* ]] || break
    done
    printf '%d' "$port"
}

# nodes_plan COUNT: chooses the ports, which every adaptor has to know of every other.
nodes_plan() {
    NODES=$1
    local node
    for ((node = 1; node <= NODES; node++)); do adaptor_port[$node]=$(free_port); done
}

has_guest() { [[ ${node_guest[$1]:-yes} == yes ]]; }

# adaptor_start NODE: starts the adaptor and waits until QEMU can attach, or where it has no guest until other nodes can. Does nothing
# where another node's adaptor has this one.
adaptor_start() {
    local node=$1 socket peer peers=() sockets=() options under
    [[ -z ${node_host[$node]:-} ]] || return 0
    read -ra options <<<"${adaptor_options[$1]:-}"
    read -ra under <<<"${adaptor_under[$1]:-}"
    for ((peer = 1; peer <= NODES; peer++)); do
        if ((peer == node)) || [[ ${node_host[$peer]:-} == "$node" ]]; then
            socket=$WORK/node$peer.sock
            ! has_guest "$peer" || sockets+=(--socket-path "$socket")
        elif [[ -z ${node_host[$peer]:-} ]]; then
            peers+=(--peer "$peer=127.0.0.1:${adaptor_port[$peer]}")
        fi
    done
    RUST_LOG=${RUST_LOG:-info} "${under[@]}" setpriv --pdeathsig KILL -- "$ADAPTOR" adaptor --node-id "$node" \
        "${sockets[@]}" --listen "127.0.0.1:${adaptor_port[$node]}" "${peers[@]}" "${options[@]}" \
        </dev/null >>"$LOGS/node$node.adaptor.log" 2>&1 &
    adaptor_pid[$node]=$!
    if ! wait_until 5 adaptor_settled "$node" "$socket" || ! kill -0 "${adaptor_pid[$node]}" 2>/dev/null; then
        die "the adaptor of node $node did not come up: $(tail -n 1 "$LOGS/node$node.adaptor.log")"
    fi
}

# adaptor_settled NODE SOCKET: listening there, or dead already. A killed adaptor leaves its socket file, so the file alone says nothing.
adaptor_settled() {
    kill -0 "${adaptor_pid[$1]}" 2>/dev/null || return 0
    if has_guest "$1"; then
        awk -v path="$2" '$4 == "00010000" && $8 == path { found = 1 } END { exit !found }' /proc/net/unix
    else
        awk -v port="$(printf ':%04X' "${adaptor_port[$1]}")" \
            '$2 ~ port "$" && $4 == "0A" { found = 1 } END { exit !found }' /proc/net/tcp
    fi
}

# Whether the system holds packets for a node which its adaptor has not taken yet.
packets_wait() {
    awk -v port="$(printf ':%04X' "${adaptor_port[$1]}")" \
        'FNR > 1 && ($2 ~ port "$") && $5 !~ /:00000000$/ { found = 1 } END { exit !found }' /proc/net/tcp
}

# adaptor_kill NODE SIGNAL: ends the adaptor and waits for that; its status is the wait's.
adaptor_kill() {
    local pid=${adaptor_pid[$1]:-}
    [[ -n $pid ]] || return 0
    unset "adaptor_pid[$1]"
    kill -s "$2" "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null
}

# Guests of even nodes have the adaptor behind a PCI Express root port, those of odd nodes on the root bus, so that both
# places are tried. A node whose place is `none` gets it later, by node_monitor.
declare -A node_places
node_place() {
    if [[ -n ${node_places[$1]:-} ]]; then
        echo "${node_places[$1]}"
    elif (($1 % 2)); then
        echo root-bus
    else
        echo root-port
    fi
}

# node_boot NODE: starts the guest of a node and returns at once.
node_boot() {
    local node=$1 memory firmware more arguments=(-no-reboot)
    guest_memory "${node_memory[$node]:-on}"
    node_firmware_options "$node"
    read -ra more <<<"${node_qemu[$node]:-}"
    if [[ ${node_resets[$node]:-no} == yes ]]; then
        rm -f "$WORK/monitor$node".{in,out}
        mkfifo "$WORK/monitor$node".{in,out}
        arguments=(-chardev "pipe,id=monitor,path=$WORK/monitor$node" -mon "chardev=monitor,mode=control")
        rm -f "$WORK/monitor$node.ready"
    fi
    # shellcheck disable=SC2054 # QEMU's commas
    case $(node_place "$node") in
        root-port) arguments+=(-device pcie-root-port,id=root1,chassis=1 -device "$(node_device "$node" root1)") ;;
        root-bus) arguments+=(-device "$(node_device "$node")") ;;
    esac
    guest_start "$node" "$KERNEL" "$INITRAMFS" "${memory[@]}" "${firmware[@]}" "${arguments[@]}" "${more[@]}"
}

# node_device NODE [BUS]: the adaptor of this node, as QEMU takes it; only JSON can hold the socket.
node_device() {
    printf '{"driver":"vfio-user-pci","socket":{"path":"%s","type":"unix"}%s}' "$WORK/node$1.sock" "${2:+,\"bus\":\"$2\"}"
}

# Sets `firmware`. OVMF keeps its variables in a second flash, which is a new one for each start.
node_firmware_options() {
    local folder=$LAB_ROOT/usr/share/OVMF variables=$WORK/variables$1.fd
    firmware=()
    [[ ${node_firmware[$1]:-seabios} == ovmf ]] || return 0
    cp "$folder/OVMF_VARS_4M.fd" "$variables"
    firmware=(-drive "if=pflash,unit=0,format=raw,readonly=on,file=$folder/OVMF_CODE_4M.fd"
        -drive "if=pflash,unit=1,format=raw,file=$variables")
}

# node_monitor NODE COMMAND [ARGUMENTS]: a command of QMP, with its arguments in JSON; the answer is in monitor_answer, and
# an error is a failure.
node_monitor() {
    local file=$WORK/monitor$1
    if [[ ! -e $file.ready ]]; then
        : >"$file.ready"
        monitor_command "$1" qmp_capabilities || return
    fi
    monitor_command "$@"
}

monitor_command() {
    local file=$WORK/monitor$1 json=${3:-"{}"} end=$(($(now_us) + 10000000)) line fd
    exec {fd}<>"$file.out"
    printf '{"execute":"%s","arguments":%s}\n' "$2" "$json" >"$file.in"
    monitor_answer='no answer'
    # Events come in between, and the greeting.
    while (($(now_us) < end)); do
        IFS= read -r -t 1 -u "$fd" line || continue
        printf '%s\n' "$line" >>"$LOGS/guest$1.monitor.log"
        [[ $line == '{"return":'* || $line == '{"error":'* ]] || continue
        monitor_answer=$line
        break
    done
    exec {fd}<&-
    [[ $monitor_answer == '{"return":'* ]] && return
    # shellcheck disable=SC2034 # for the check that this is a part of
    reason="QEMU of node $1, $2: $monitor_answer"
    return 1
}

# Ends everything that was started, guests first: an adaptor that goes first makes QEMU complain.
nodes_stop() {
    local node
    for node in "${!guest_pid[@]}"; do guest_stop "$node"; done
    for node in "${!adaptor_pid[@]}"; do adaptor_stop "$node"; done
}

# An adaptor that does not obey a SIGTERM is killed.
adaptor_stop() {
    local pid=${adaptor_pid[$1]}
    kill -TERM "$pid" 2>/dev/null || true
    wait_until 3 adaptor_gone "$pid" || say "the adaptor of node $1 ignored SIGTERM"
    adaptor_kill "$1" KILL || true
}

# A zombie is gone too: this shell reaps it later.
adaptor_gone() { [[ ! -d /proc/$1 || $(cut -d ' ' -f 3 "/proc/$1/stat" 2>/dev/null) == Z ]]; }
