# What the guests of this comparison have besides the adaptor: rdma_rxe over a virtio network, perftest, and memory that they share.
# shellcheck shell=bash

# The lab's kernels are without rdma_rxe. What has it is a copy of the lab's root with another kernel, so that the lab does not grow.
PEERS_RECIPE=1
PEERS_PACKAGES=(perftest ibverbs-providers iproute2)
PEERS_DIR=$LAB_DIR/peers
MODULES=(virtio_net rdma_rxe ib_uverbs)
PERFTEST=(ib_write_bw ib_read_bw ib_write_lat ib_read_lat)
SHARED_BYTES=4M
# The largest that rdma_rxe can use: packets of 4 KiB and their headers.
NETWORK_MTU=9000
# Where the largest blocks are put.
TARGET_BYTES=1M

prepare() {
    local release
    lab_make
    peers_make
    release=$(lab_kernel)
    KERNEL=$LAB_ROOT/boot/vmlinuz-$release
    ACCEL=${LAB_ACCEL:-tcg}
    build_adaptor
    build_ardma
    build_for_guest ivshmem-perf
    guest_programs=("$built")
    build_module "$release"
    build_initramfs "$release"
    say "kernel $release, QEMU of the $LAB_QEMU with $ACCEL"
}

# The root with rdma_rxe and perftest, in place of the lab's own from here on. Where it cannot be made, as without a network, the rest is
# measured with the lab's kernel.
peers_make() {
    local stamp
    stamp="recipe $PEERS_RECIPE: ${PEERS_PACKAGES[*]}; $(<"$LAB_ROOT/etc/lab-stamp")"
    exec {lab_lock}>"$LAB_DIR/lock"
    flock "$lab_lock"
    if [[ ! -f $PEERS_DIR/etc/lab-stamp || $(<"$PEERS_DIR/etc/lab-stamp") != "$stamp" ]]; then
        (peers_make_root "$stamp") || missing rxe "no root with rdma_rxe could be made; see $LAB_DIR/peers.log"
    fi
    exec {lab_lock}>&-
    has rxe || return 0
    LAB_ROOT=$PEERS_DIR
    guest_items=(rdma "${PERFTEST[@]}" "${MODULES[@]/#/module=}" /etc/libibverbs.d/rxe.driver)
    # Its name has the version of its interface.
    guest_items+=("$(cd "$LAB_ROOT" && printf '/%s' usr/lib/*/libibverbs/librxe-*.so)")
}

peers_make_root() {
    as_root rm -rf --one-file-system "$PEERS_DIR.new" &&
        step "$LAB_DIR/peers.log" "making a root with rdma_rxe in $PEERS_DIR (${PEERS_PACKAGES[*]}), a minute" \
            as_root "$REPO/qemu-configs/lib/grow-root" "$LAB_ROOT" "$PEERS_DIR.new" "$1" "${PEERS_PACKAGES[@]}" &&
        as_root rm -rf --one-file-system "$PEERS_DIR" &&
        as_root mv "$PEERS_DIR.new" "$PEERS_DIR"
}

# Both guests, with all three ways between them at the same time.
guests_start() {
    local node shared
    # The file has no name when both have opened it, so that nothing is left of it.
    shared=$(mktemp /dev/shm/assured-rdma.XXXXXX)
    exec {shared_file}<>"$shared"
    rm "$shared"
    # shellcheck disable=SC2034 # nodes.sh starts guests with it
    node_qemu=([1]=$(guest_devices 1) [2]=$(guest_devices 2))
    nodes_plan 2
    for node in 1 2; do adaptor_start "$node"; done
    for node in 1 2; do node_boot "$node"; done
    for node in 1 2; do must guest_up "$node" && must driver_loads "$node"; done
    must in_guest 1 40 'ardma wait 2 --timeout 30'
    must exports 2 target "$TARGET_BYTES"
    must in_guest 2 20 'ivshmem-perf --help'
    ! has rxe || for node in 1 2; do rxe_up "$node" || missing rxe "$reason"; done
}

# guest_devices NODE: the network is one datagram a packet, which no program but the two QEMUs touches.
guest_devices() {
    printf '%s ' -object "memory-backend-file,id=shared,share=on,size=$SHARED_BYTES,mem-path=/proc/self/fd/$shared_file" \
        -device ivshmem-plain,memdev=shared \
        -netdev "$(network "$1" $((3 - $1)))" \
        -device "virtio-net-pci,netdev=net,romfile=,host_mtu=$NETWORK_MTU,mac=52:54:00:00:00:0$1"
}

network() { printf 'dgram,id=net,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s' "$WORK/network$1" "$WORK/network$2"; }

rxe_up() {
    local command
    for command in 'modprobe virtio_net && modprobe rdma_rxe && modprobe ib_uverbs' "ip link set eth0 mtu $NETWORK_MTU up" \
        "ip address add $(address "$1")/24 dev eth0" 'rdma link add rxe0 type rxe netdev eth0'; do
        in_guest "$1" 30 "$command" || return
    done
}

# What a guest is called in that network.
address() { printf '10.0.0.%d' "$1"; }

# must COMMAND...: a step without which nothing can be measured.
must() {
    reason=
    "$@" || die "${reason:-failed: $*}"
}
