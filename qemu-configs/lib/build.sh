# What the demo builds: the adaptor, the kernel module, the guest's programs, the initramfs. Nothing is built twice.
# shellcheck shell=bash

GUEST_TARGET=x86_64-unknown-linux-gnu

# The adaptor; its path is in ADAPTOR.
build_adaptor() {
    step "$BUILD/adaptor.log" "building the adaptor" cargo_run build --release --locked
    ADAPTOR=$REPO/target/release/assured-rdma
}

# The guest's command-line tool, static, since the guest has no libraries of its own; its path is in ARDMA. It has a
# target folder of its own: other flags would make cargo build everything in the adaptor's again.
build_ardma() {
    RUSTFLAGS='-C target-feature=+crt-static' step "$BUILD/ardma.log" "building ardma for the guest" \
        cargo_run build --release --locked --manifest-path "$REPO/guest-driver/ardma/Cargo.toml" \
        --target "$GUEST_TARGET" --target-dir "$REPO/target/guest"
    ARDMA=$REPO/target/guest/$GUEST_TARGET/release/ardma
}

# build_module RELEASE: the kernel module, in a copy of its sources for each kernel; its path is in MODULE, what the
# build printed is kept beside it.
build_module() {
    local release=$1 folder=$BUILD/module/$1 sources
    MODULE=$folder/assured_rdma.ko
    sources=$(cd "$REPO/guest-driver" && find "${MODULE_SOURCES[@]}" -type f -exec sha256sum {} + | sort)
    if [[ -f $MODULE && -f $folder/sources && $(<"$folder/sources") == "$sources" ]]; then return; fi
    rm -rf "$folder"
    mkdir -p "$folder"
    (cd "$REPO/guest-driver" && cp -r --parents "${MODULE_SOURCES[@]}" "$folder")
    step "$BUILD/module-$release.log" "building the kernel module for $release" \
        lab_run make -C "/lib/modules/$release/build" M="$folder/${MODULE_SOURCES[0]}" modules
    cp "$folder/${MODULE_SOURCES[0]}/assured_rdma.ko" "$MODULE"
    printf '%s\n' "$sources" >"$folder/sources"
}
