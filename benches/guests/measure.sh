# The measurements of a round. Each adds samples of the figures, in the unit that figures.sh shows.
# shellcheck shell=bash

SIZES=(8 4096 65536 1048576)
# How many operations of a size each way takes, so that one measurement takes about a second.
declare -A ENGINE_COUNT=([8]=100000 [4096]=50000 [65536]=10000 [1048576]=500)
declare -A STORES_COUNT=([8]=50000 [4096]=200 [65536]=10)
declare -A RXE_COUNT=([8]=5000 [4096]=4000 [65536]=500 [1048576]=40)
declare -A IVSHMEM_COUNT=([8]=500000 [4096]=100000 [65536]=20000 [1048576]=1000)
LATENCIES=2000
PERFTEST_PORT=18515

# Why something is not measured.
declare -A why_not

missing() {
    has "$1" || return 0
    why_not[$1]=$2
}

has() { [[ -z ${why_not[$1]:-} ]]; }

measure_all() {
    local bytes test
    for test in write read; do
        for bytes in "${SIZES[@]}"; do
            ardma_rate "$test" "$bytes" engine "${ENGINE_COUNT[$bytes]}"
            rxe_rate "$test" "$bytes"
        done
        ardma_latency "$test" engine
        rxe_latency "$test"
        ardma_latency "$test" checked
    done
    for bytes in "${SIZES[@]}"; do ivshmem write "$bytes" "${IVSHMEM_COUNT[$bytes]}"; done
    ivshmem latency 8 "$LATENCIES"
    for bytes in "${!STORES_COUNT[@]}"; do ardma_rate write "$bytes" stores "${STORES_COUNT[$bytes]}"; done
    progress_end
}

# sample FIGURE VALUE: one value of this round.
sample() {
    [[ $2 =~ ^[0-9]+\.?[0-9]*$ ]] || die "no number for $1 in: $guest_output"
    printf '%s %s\n' "guests/$1" "$2" >>"$LOGS/samples"
}

size_name() {
    case $1 in
        8) echo 8B ;;
        1048576) echo 1MiB ;;
        *) echo $(($1 / 1024))KiB ;;
    esac
}

# last_field NUMBER [SEPARATOR]: of the last line of what the guest has printed.
last_field() { awk -F "${2:- }" -v field="$1" 'NF { value = $field } END { print value }' <<<"$guest_output"; }

# ardma_rate write|read BYTES WAY COUNT
ardma_rate() {
    must in_guest 1 60 "ardma perf $1_bw $place -s $2 -n $4 --by $3 --csv"
    sample "$1-$(size_name "$2")-$3" "$(last_field 6 ,)"
}

# ardma_latency write|read WAY
ardma_latency() {
    must in_guest 1 60 "ardma perf $1_lat $place -s 8 -n $LATENCIES --by $2 --csv"
    sample "$1-latency-8B-$2" "$(last_field 8 ,)"
}

# rxe_rate write|read BYTES: perftest's megabytes are 2^20 bytes and have two decimals, too few for small sizes, whose rate comes out of
# the number of messages.
rxe_rate() {
    perftest "ib_$1_bw" "$2" "${RXE_COUNT[$2]}" || return 0
    local value
    if (($2 < 4096)); then
        value=$(awk -v bytes="$2" -v millions="$(last_field 5)" 'BEGIN { printf "%.6f", millions * bytes }')
    else
        value=$(awk -v mebibytes="$(last_field 4)" 'BEGIN { printf "%.6f", mebibytes * 1.048576 }')
    fi
    sample "$1-$(size_name "$2")-rxe" "$value"
}

# rxe_latency write|read: the typical one, which is the median.
rxe_latency() {
    perftest "ib_$1_lat" 8 "$LATENCIES" || return 0
    sample "$1-latency-8B-rxe" "$(last_field 5)"
}

# perftest PROGRAM BYTES COUNT: between the guests; its line of results is the last one with numbers in guest_output. Where it fails,
# rxe is left out from here on.
perftest() {
    local run="$1 -F -d rxe0 -s $2 -n $3"
    has rxe || return
    if in_guest 2 20 "hold perftest $run && listens $PERFTEST_PORT" && in_guest 1 60 "$run -p $PERFTEST_PORT $(address 2)"; then
        guest_output=$(grep -E '^[[:space:]]*[0-9]+([[:space:]]+[0-9.]+)+[[:space:]]*$' <<<"$guest_output" | tail -n 1)
        local results=$guest_output
        if in_guest 2 20 'ended perftest 10'; then
            guest_output=$results
            return
        fi
    fi
    missing rxe "$1 failed: $reason"
    return 1
}

# ivshmem write|latency ARGUMENT...
ivshmem() {
    local what words="$2 $3"
    if [[ $1 == latency ]]; then what=write-latency-8B words=$3; else what=write-$(size_name "$2"); fi
    guest_send 2 60 'ivshmem-perf serve'
    must in_guest 1 60 "ivshmem-perf $1 $words"
    sample "$what-ivshmem" "$(last_field 1)"
    guest_collect 2 65 || die "ivshmem-perf serve failed: $guest_output"
}
