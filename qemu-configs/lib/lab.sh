# The lab root: a Debian with QEMU, guest kernels and their headers, a C compiler and, where the host has none, Rust.
# shellcheck shell=bash

LAB_DIR=${LAB_DIR:-$REPO/target/lab}
LAB_ROOT=$LAB_DIR/root

# Raised when make-root does something else with the same packages.
LAB_RECIPE=1
LAB_PACKAGES=(make gcc libc6-dev kmod pahole busybox-static pciutils cpio ovmf)
LAB_QEMU_PACKAGES=(qemu-system-x86)
# Roots with a kernel of our own: raised when debug-root does something else with the same packages.
LAB_DEBUG_RECIPE=1
LAB_DEBUG_PACKAGES=(bc bison flex libelf-dev sparse xz-utils)
# With what cargo needs to fetch crates, and what the layers netns and fuzz take besides.
LAB_RUST_PACKAGES=(rustc cargo rustfmt rust-clippy ca-certificates iproute2 g++)

# QEMU before this version has no usable vfio-user client.
QEMU_MINIMUM=10.1.1

# Whether the host's own QEMU can attach the adaptor.
host_has_qemu() {
    local version
    command -v qemu-system-x86_64 >/dev/null || return 1
    version=$(qemu-system-x86_64 --version | sed -n '1s/.*version \([0-9.]*\).*/\1/p')
    version_at_least "$version" "$QEMU_MINIMUM" &&
        [[ $(qemu-system-x86_64 -device help 2>/dev/null) == *'"vfio-user-pci"'* ]]
}

# The oldest Rust that the project promises to build with.
rust_minimum() { sed -n 's/^rust-version *= *"\(.*\)".*/\1/p' "$REPO/Cargo.toml" | head -n 1; }

# Whether the host's own Rust is recent and complete; a part of one would fail half way through the tests.
host_has_rust() {
    local version
    command -v cargo >/dev/null && command -v rustc >/dev/null || return 1
    version=$(cd / && rustc --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
    version_at_least "${version:-0}" "$(rust_minimum)" &&
        cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1
}

# Decides what the lab has to bring, and makes it unless it is there. Sets LAB_QEMU and LAB_RUST to `host` or `lab`.
lab_make() {
    local packages=("${LAB_PACKAGES[@]}") stamp
    [[ $(uname -m) == x86_64 ]] || die "the guest lab needs an x86-64 machine, this is $(uname -m)"
    LAB_QEMU=host LAB_RUST=host
    host_has_qemu || { LAB_QEMU=lab && packages+=("${LAB_QEMU_PACKAGES[@]}"); }
    if host_has_rust; then need_tools cc=gcc; else LAB_RUST=lab && packages+=("${LAB_RUST_PACKAGES[@]}"); fi
    stamp="recipe $LAB_RECIPE: ${packages[*]}"
    mkdir -p "$LAB_DIR"
    # One maker at a time; the second finds the work done.
    exec {lab_lock}>"$LAB_DIR/lock"
    flock "$lab_lock"
    lab_is_current "$stamp" || lab_make_root "$stamp" "${packages[@]}"
    exec {lab_lock}>&-
}

lab_is_current() { [[ -f $LAB_ROOT/etc/lab-stamp && $(<"$LAB_ROOT/etc/lab-stamp") == "$1" ]]; }

# Makes the root under another name, so that what is called `root` is always complete.
lab_make_root() {
    local stamp=$1 new=$LAB_DIR/root.new
    shift
    need_tools debootstrap unshare=util-linux flock=util-linux dpkg-deb=dpkg
    as_root rm -rf --one-file-system "$new"
    step "$LAB_DIR/make-root.log" "making the lab root in $LAB_DIR (Debian, $*), some minutes" \
        as_root "$REPO/qemu-configs/lib/make-root" "$new" "$stamp" "$@"
    as_root rm -rf --one-file-system "$LAB_ROOT"
    as_root mv "$new" "$LAB_ROOT"
}

# Sets up the lab's view of the files and becomes the command in it. Runs in a mount namespace of its own, which ends
# with the command, so that no mount can be left behind. Host and lab share /tmp, the repository and cargo's home under
# the same names; the root itself is not written to, so its other top folders are empty here to hold such names.
lab_view_script() {
    cat <<'VIEW'
set -e
lab=$1 view=$2 shared=$3 folder=$4
shift 4
mount -t tmpfs -o size=1m lab "$view"
for path in "$lab"/*; do
    name=${path##*/}
    case $name in
        dev | proc | sys | tmp | run) source=/$name ;;
        usr | etc) source=$path ;;
        *) source= ;;
    esac
    if [ -L "$path" ]; then
        cp -P "$path" "$view/$name"
    elif [ -d "$path" ]; then
        mkdir "$view/$name"
        [ -z "$source" ] || mount --rbind "$source" "$view/$name"
    fi
done
# Name servers and certificate authorities are those of the host, which may have some of its own.
for path in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$path" ] || [ ! -e "$lab$path" ] || mount --bind "$(realpath "$path")" "$view$path"
done
printf '%s\n' "$shared" | while IFS= read -r path; do
    mkdir -p "$view$path"
    mount --rbind "$path" "$view$path"
done
# The command dies with the shell that started it, however that one ends.
exec chroot "$view" /usr/bin/env -C "$folder" PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /usr/bin/setpriv --pdeathsig KILL -- "$@"
VIEW
}

# lab_exec COMMAND...: replaces this (sub)shell by a command in the lab, with the same process number.
lab_exec() {
    local shared=("$REPO") namespace=(unshare --mount)
    ((EUID == 0)) || namespace+=(--map-root-user)
    mkdir -p "$LAB_DIR/view"
    [[ $LAB_DIR == "$REPO"/* ]] || shared+=("$LAB_DIR")
    if [[ ${LAB_RUST:-} == lab ]]; then
        export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo}
        mkdir -p "$CARGO_HOME"
        shared+=("$CARGO_HOME")
    fi
    exec "${namespace[@]}" sh -c "$(lab_view_script)" sh \
        "$(realpath "$LAB_ROOT")" "$(realpath "$LAB_DIR/view")" "$(printf '%s\n' "${shared[@]}")" "$PWD" "$@"
}

# The same, and come back.
lab_run() { (lab_exec "$@"); }

# qemu_exec ARGUMENT...: becomes QEMU, the host's or the lab's.
qemu_exec() {
    if [[ $LAB_QEMU == host ]]; then
        exec setpriv --pdeathsig KILL -- qemu-system-x86_64 "$@"
    else
        lab_exec qemu-system-x86_64 "$@"
    fi
}

# Makes sure of a Rust, for work that needs nothing else of the lab.
rust_make() {
    if host_has_rust; then
        LAB_RUST=host
        need_tools cc=gcc
    else
        lab_make
    fi
}

# rust_run COMMAND...: in the repository, where Rust is: on the host or in the lab.
rust_run() (
    cd "$REPO"
    if [[ $LAB_RUST == host ]]; then exec "$@"; else lab_exec "$@"; fi
)

cargo_run() { rust_run cargo "$@"; }

# lab_debug NAME: from here on the lab's root is one whose kernel watches its modules: with the options of tests/kernel/debug.config, and
# of NAME.config on top of these. It is made unless it is there; the lab itself has to be.
lab_debug() {
    local configs=("$REPO/tests/kernel/debug.config") root=$LAB_DIR/kernel-$1 stamp
    [[ $1 == debug ]] || configs+=("$REPO/tests/kernel/$1.config")
    stamp="recipe $LAB_DEBUG_RECIPE: ${LAB_DEBUG_PACKAGES[*]}; $(cat "${configs[@]}" | sha256sum); $(<"$LAB_ROOT/etc/lab-stamp")"
    exec {debug_lock}>"$root.lock"
    flock "$debug_lock"
    if [[ ! -f $root/etc/lab-stamp || $(<"$root/etc/lab-stamp") != "$stamp" ]]; then
        cat "${configs[@]}" >"$root.config"
        as_root rm -rf --one-file-system "$root.new"
        step "$root.log" "building a kernel that watches its modules, once, in $root (Debian's source, ${configs[*]##*/}), 5 to 20 minutes" \
            as_root "$REPO/qemu-configs/lib/debug-root" "$LAB_ROOT" "$root.new" "$stamp" "$root.config" "${LAB_DEBUG_PACKAGES[@]}"
        as_root rm -rf --one-file-system "$root"
        as_root mv "$root.new" "$root"
    fi
    exec {debug_lock}>&-
    LAB_ROOT=$root
}

# lab_modules RELEASE NAME...: modules of a kernel of the lab, which has none of them. They are fetched once; `lab_module_files` has
# their paths. Runs as any user: apt has its folders for itself.
lab_modules() {
    local release=$1 name folder=$LAB_DIR/modules-$1
    shift
    exec {lab_lock}>"$LAB_DIR/lock"
    flock "$lab_lock"
    [[ -f $folder/complete && $(<"$folder/complete") == "${*/%/.ko.xz}" ]] || step "$LAB_DIR/modules.log" \
        "fetching modules of the kernel $release" lab_fetch_modules "$release" "$folder" "${@/%/.ko.xz}"
    exec {lab_lock}>&-
    lab_module_files=()
    for name; do lab_module_files+=("$folder/$name.ko.xz"); done
}

lab_fetch_modules() {
    local release=$1 folder=$2 apt=$2/apt options
    shift 2
    options=(-q -o "Dir::State=$apt/state" -o "Dir::Cache=$apt/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root)
    # Newer packaging has the modules in a package of their own.
    rm -rf "$folder" && mkdir -p "$apt"/{state/lists/partial,cache/archives/partial} && cd "$apt" &&
        lab_run apt-get "${options[@]}" update &&
        { lab_run apt-get "${options[@]}" download "linux-modules-$release" ||
            lab_run apt-get "${options[@]}" download "linux-image-$release"; } &&
        dpkg-deb --fsys-tarfile "$apt"/*.deb |
        tar -x -C "$folder" --transform 's|.*/||' --wildcards "${@/#/*/}" &&
        cd "$REPO" && rm -r "$apt" && echo "$*" >"$folder/complete"
}

# The kernels in the lab, oldest first, as full releases.
lab_kernels() {
    local image
    for image in "$LAB_ROOT"/boot/vmlinuz-*; do printf '%s\n' "${image##*/vmlinuz-}"; done | sort -V
}

# The full release of a kernel named like 6.12, 6.12.117 or in full; without a name, of the newest.
lab_kernel() {
    local releases
    mapfile -t releases < <(lab_kernels)
    if [[ -z ${1:-} ]]; then
        printf '%s' "${releases[-1]}"
    else
        local release
        for release in "${releases[@]}"; do
            [[ $release != "$1" && $release != "$1"[.+]* ]] || { printf '%s' "$release" && return; }
        done
        usage_error "no kernel $1 in the lab, it has: ${releases[*]%%+*}"
    fi
}
