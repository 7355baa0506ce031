# What the tests on a kernel that watches its modules share, besides what all tests with guests do.
# shellcheck shell=bash

# shellcheck source=tests/qemu/lib.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../qemu/lib.sh"
# shellcheck source=qemu-configs/lib/checks.sh
source "$REPO/qemu-configs/lib/checks.sh"

# Builds driver-stress, which guests then have.
stress_build() {
    lab_make
    mkdir -p "$BUILD"
    step "$BUILD/driver-stress.log" "building driver-stress for the guest" \
        lab_run cc -O2 -Wall -Wextra -Werror -static -pthread -I "$REPO/guest-driver/include/uapi" \
        "$REPO"/tests/kernel/driver-stress/*.c -o "$BUILD/driver-stress"
    guest_programs+=("$BUILD/driver-stress")
}

# watches NODE: the kernel does what these tests need, or they would prove nothing.
watches() {
    in_guest "$1" 20 "mount -t debugfs debug $DEBUG && cd $DEBUG && ls kmemleak failslab fail_page_alloc fail_usercopy >/dev/null && grep -q N dma-api/disabled"
}

DEBUG=/sys/kernel/debug

# leaks_nothing NODE: what is not referenced from anywhere, once it is some seconds old. The second look finds it.
leaks_nothing() {
    in_guest "$1" 60 "cd $DEBUG && sleep 6 && echo scan >kmemleak && echo scan >kmemleak && cat kmemleak" || return
    [[ -n $guest_output ]] || return 0
    reason="kmemleak: $guest_output"
    return 1
}
