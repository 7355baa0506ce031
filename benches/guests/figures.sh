# What comes of the samples: a line for each figure, and target/bench/guests.json.
# shellcheck shell=bash

RXE="rdma_rxe over virtio-net"

# Shows and writes all figures.
figures() {
    local left_out=
    has rxe || left_out=$(head -n 1 <<<"${why_not[rxe]}" | tr -d '"\\\t')
    mkdir -p "$OUTPUT"
    figure_list | awk -f "$REPO/benches/guests/figures.awk" -v json="$OUTPUT/guests.json" -v left_out="$left_out" \
        -v processor="$(sed -n '/^model name/ { s/.*: //p; q }' /proc/cpuinfo)" -v processors="$(nproc)" -v kernel="$(uname -r)" \
        - "$LOGS/samples"
    echo "written to $OUTPUT/guests.json"
}

# figure NAME SAMPLES UNIT [LIMIT TARGET]: a line for figures.awk: the name of its samples, and of those that it is held against.
figure() { printf '%s\t%s\t%s\t%s\t%s\t%s\n' "guests/$1" "guests/$2" "$3" "${4:+guests/$4}" "${4:+$RXE}" "${5:-}"; }

# What is measured and shown; targets are those of the project.
figure_list() {
    local test bytes name target
    for test in write read; do
        for bytes in "${SIZES[@]}"; do
            name=$test-$(size_name "$bytes")
            target=
            ((bytes < 1048576)) || target='ratio>=20'
            figure "$name" "$name-engine" MB/s "$name-rxe" "$target"
            figure "$name-rxe" "$name-rxe" MB/s
            [[ $test != write ]] || figure "$name-ivshmem" "$name-ivshmem" MB/s
            [[ $test != write || -z ${STORES_COUNT[$bytes]:-} ]] || figure "$name-stores" "$name-stores" MB/s
        done
        name=$test-latency-8B
        figure "$name" "$name-engine" us "$name-rxe" 'ratio<=0.2'
        figure "$name-rxe" "$name-rxe" us
        [[ $test != write ]] || figure "$name-ivshmem" "$name-ivshmem" us
        figure "$name-checked" "$name-checked" us
    done
}
