# Guests: starting QEMU, and running commands in a guest over its second serial port, which is QEMU's own input and
# output. guest/agent is the other end and describes the protocol. State is kept by the guest's number.
# shellcheck shell=bash

# Without erms and fsrm the guest does not copy with `rep movsb`, which emulation does byte by byte.
GUEST_CPU=max,-erms,-fsrm

declare -A guest_pid guest_in guest_out guest_pending
guest_sequence=0
# What the last command printed.
guest_output=
# How the user's terminal was before guest_shell.
terminal_settings=
# The processes that copy between it and the guest.
terminal_copies=()

# The host's end of a broken port gives an error, which is handled, and not a signal, which would end the script.
trap : PIPE

# guest_start NUMBER KERNEL INITRAMFS ARGUMENT...: starts QEMU and returns at once.
guest_start() {
    local number=$1 kernel=$2 initramfs=$3 in=$WORK/guest$1.in out=$WORK/guest$1.out
    shift 3
    rm -f "$in" "$out"
    mkfifo "$in" "$out"
    guest_qemu "$kernel" "$initramfs" "lab.node=$number lab.slowness=$GUEST_SLOWNESS ${node_words[$number]:-}" "$LOGS/guest$number.console.log" \
        "$@" <"$in" >"$out" 2>>"$LOGS/guest$number.qemu.log" &
    guest_pid[$number]=$!
    local fd
    exec {fd}>"$in"
    guest_in[$number]=$fd
    exec {fd}<"$out"
    guest_out[$number]=$fd
    guest_pending[$number]=
}

# guest_memory on|off|none: sets `memory`, QEMU's arguments for a guest's memory: in a file that others can share, in a file
# that QEMU has mapped privately, or in no file.
guest_memory() {
    if [[ $1 == none ]]; then
        memory=(-machine q35 -m "$GUEST_MEMORY")
    else
        memory=(-machine "q35,memory-backend=ram" -object "memory-backend-memfd,id=ram,size=$GUEST_MEMORY,share=$1")
    fi
}

# guest_qemu KERNEL INITRAMFS WORDS CONSOLE ARGUMENT...: becomes a QEMU as all guests have it.
guest_qemu() {
    local kernel=$1 initramfs=$2 words=$3 console=$4
    shift 4
    # On a busy machine, before init runs, an emulated clock may jump by seconds, which the kernel would take for a stall, or for
    # a timer that does not work.
    qemu_exec -accel "$ACCEL" -cpu "$GUEST_CPU" -smp 1 -nodefaults -no-user-config -display none \
        -kernel "$kernel" -initrd "$initramfs" -append "console=ttyS0 panic=-1 rcupdate.rcu_cpu_stall_suppress_at_boot=1 no_timer_check $words" \
        -chardev "file,id=console,path=$console,append=on" -serial chardev:console -chardev stdio,id=port,signal=off -serial chardev:port "$@"
}

# guest_ready NUMBER SECONDS: waits for the agent.
guest_ready() { guest_collect "$1" "$2" ready; }

# guest_send NUMBER SECONDS COMMAND: starts a command, which the guest itself ends after SECONDS.
guest_send() {
    local number=$1
    [[ $3 != *$'\n'* ]] || die "a guest command must be one line: $3"
    guest_pending[$number]=$((++guest_sequence))
    printf '%s\n' "--- $3" >>"$LOGS/guest$number.commands.log"
    # A port without its guest is found out by guest_collect.
    { printf '%s %s %s\n' "$guest_sequence" $(($2 * GUEST_SLOWNESS)) "$3" >&"${guest_in[$number]}"; } 2>/dev/null || true
}

# guest_collect NUMBER SECONDS [ID]: waits for the end of what was sent; the output in guest_output, the status of the
# command as its own. Status 124: no answer in time; 125: the guest is gone.
guest_collect() {
    local number=$1 id=${3:-${guest_pending[$1]}} end=$(($(now_us) + $2 * GUEST_SLOWNESS * 1000000)) start line part status
    start=$(now_us)
    guest_output=
    line=
    while true; do
        status=0
        IFS= read -r -t 1 -u "${guest_out[$number]}" part || status=$?
        line+=$part
        if ((status > 128)); then
            progress "$start"
            (($(now_us) < end)) && continue
            guest_log "$number" "no answer in $2 s, times $GUEST_SLOWNESS"
            return 124
        elif ((status)); then
            guest_log "$number" "the guest is gone"
            return 125
        fi
        case $line in
            '|'*) guest_output+=${line#|}$'\n' ;;
            "=$id "*)
                guest_log "$number" "$guest_output= ${line#* }"
                return "${line#* }"
                ;;
        esac
        line=
    done
}

# guest_run NUMBER SECONDS COMMAND: both; the host waits longer than the guest, so that the port stays in step.
guest_run() {
    guest_send "$@"
    guest_collect "$1" $(($2 + 5))
}

guest_log() { printf '%s\n' "$2" >>"$LOGS/guest$1.commands.log"; }

# On a terminal, shows that a long step is alive.
progress() {
    if [[ -t 1 ]]; then printf '\r\033[K... %s' "$(since "$1")"; fi
}

# Wipes what progress wrote.
progress_end() {
    if [[ -t 1 ]]; then printf '\r\033[K'; fi
}

# guest_stop NUMBER: ends QEMU and forgets the guest.
guest_stop() {
    local number=$1 fd
    [[ -n ${guest_pid[$number]:-} ]] || return 0
    kill -KILL "${guest_pid[$number]}" 2>/dev/null || true
    wait "${guest_pid[$number]}" 2>/dev/null || true
    fd=${guest_in[$number]}
    exec {fd}>&-
    fd=${guest_out[$number]}
    exec {fd}<&-
    unset "guest_pid[$number]"
}

# guest_shell NUMBER: gives the user's terminal to a shell in the guest, until the shell ends, which ends the guest. The
# terminal passes on every key but Ctrl-], which interrupts this script. guest_terminal_back has to follow in any case.
guest_shell() {
    local rows=0 columns=0
    if [[ -t 0 ]]; then
        read -r rows columns < <(stty size)
        terminal_settings=$(stty -g)
        stty raw -echo isig intr '^]' quit undef susp undef
    fi
    # Some terminals have no size.
    ((rows && columns)) || rows=24 columns=80
    printf 'shell %s %s\n' "$rows" "$columns" >&"${guest_in[$1]}"
    # The end of an input that is no terminal is told to the shell as Ctrl-D, again until it takes notice.
    cat - <(while sleep 1; do printf '\004'; done) <&0 >&"${guest_in[$1]}" &
    terminal_copies=($!)
    cat <&"${guest_out[$1]}" &
    terminal_copies+=($!)
    # Signals interrupt this, and would not interrupt a command.
    wait $! || true
}

# The terminal may be gone.
guest_terminal_back() {
    local pid
    for pid in "${terminal_copies[@]}"; do { kill "$pid" && wait "$pid"; } 2>/dev/null || true; done
    terminal_copies=()
    [[ -z $terminal_settings ]] || stty "$terminal_settings" 2>/dev/null || true
    terminal_settings=
}
