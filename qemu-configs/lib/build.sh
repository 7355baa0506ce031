# What the demo builds: the adaptor, the kernel module, the guest's programs, the initramfs. Nothing is built twice.
# shellcheck shell=bash

DEMO=$REPO/target/demo
BUILD=$DEMO/build
GUEST_TARGET=x86_64-unknown-linux-gnu
# Folders in guest-driver that make the module; the first one has its Makefile.
MODULE_SOURCES=(driver include)
# What else guests have: programs that were built, and items of the lab as lib/initramfs takes them.
guest_programs=() guest_items=()
# How the module is built, besides: what checks its source.
module_checks=()

# The adaptor; its path is in ADAPTOR.
build_adaptor() {
    step "$BUILD/adaptor.log" "building the adaptor" cargo_run build --release --locked --package assured-rdma
    # shellcheck disable=SC2034 # nodes.sh starts it
    ADAPTOR=$REPO/target/release/assured-rdma
}

# The guest's command-line tool; its path is in ARDMA.
build_ardma() {
    build_for_guest ardma
    ARDMA=$built
}

# build_for_guest PACKAGE: its program, static, since the guest has no libraries of its own; the path is in `built`. Such programs have
# a target folder of their own: other flags would make cargo build everything in the adaptor's again.
build_for_guest() {
    RUSTFLAGS='-C target-feature=+crt-static' step "$BUILD/$1.log" "building $1 for the guest" \
        cargo_run build --release --locked --package "$1" --target "$GUEST_TARGET" --target-dir "$REPO/target/guest"
    built=$REPO/target/guest/$GUEST_TARGET/release/$1
}

# build_module RELEASE: the kernel module, in a copy of its sources for each kernel; its path is in MODULE, what the
# build printed is kept beside it.
build_module() {
    local release=$1 folder=$BUILD/module/$1 sources
    MODULE=$folder/assured_rdma.ko
    # What an earlier build in the source folder left there is for another kernel, perhaps.
    sources=$(cd "$REPO/guest-driver" && find "${MODULE_SOURCES[@]}" \
        \( -name '*.[ch]' ! -name '*.mod.c' -o -name Makefile -o -name Kbuild \) -exec sha256sum {} + | sort)
    if [[ -f $MODULE && -f $folder/sources && $(<"$folder/sources") == "$sources" ]]; then return; fi
    rm -rf "$folder"
    mkdir -p "$folder"
    (cd "$REPO/guest-driver" && cut -c 67- <<<"$sources" | xargs cp --parents -t "$folder")
    step "$BUILD/module-$release.log" "building the kernel module for $release" \
        lab_run make -C "/lib/modules/$release/build" M="$folder/${MODULE_SOURCES[0]}" "${module_checks[@]}" modules
    cp "$folder/${MODULE_SOURCES[0]}/assured_rdma.ko" "$MODULE"
    printf '%s\n' "$sources" >"$folder/sources"
}

# build_initramfs RELEASE: packs the guest's files; the image is in INITRAMFS. Needs MODULE and ARDMA.
build_initramfs() {
    local release=$1 folder=$BUILD/initramfs-$1 here=$REPO/qemu-configs/guest
    INITRAMFS=$BUILD/initramfs-$release.cpio
    rm -rf "$folder"
    mkdir -p "$folder"/{bin,boot,dev,etc,proc,sys} "$folder/lib/modules/$release"
    cp "$here/init" "$folder/init"
    cp "$here/agent" "$ARDMA" "${guest_programs[@]}" "$folder/bin/"
    cp "$here/lab-profile" "$folder/etc/"
    cp "$MODULE" "$folder/lib/modules/$release/"
    # The demo's payload is the kernel that the guest runs.
    cp "$LAB_ROOT/boot/vmlinuz-$release" "$folder/boot/vmlinuz"
    lab_run "$REPO/qemu-configs/lib/initramfs" "$folder" "$release" "$INITRAMFS" "${guest_items[@]}" 2>"$BUILD/initramfs.log" ||
        die "cannot pack the initramfs: $(tail -n 3 "$BUILD/initramfs.log")"
}
