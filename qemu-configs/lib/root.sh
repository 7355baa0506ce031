# What the scripts that make roots share. They run as root, and name the root in `root`.
# shellcheck shell=bash

suite=trixie
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
PATH=$PATH:/usr/sbin:/sbin

# own_namespace ARGUMENT...: starts the script again, with its arguments, in a mount namespace of its own: debootstrap and apt mount and
# leave things, and all of it ends with that process.
own_namespace() {
    [[ ${MAKE_ROOT_NAMESPACE:-} == yes ]] || MAKE_ROOT_NAMESPACE=yes exec unshare --mount -- "$0" "$@"
}

in_root() { chroot "${root:?}" "$@"; }

# install_packages PACKAGE...: from the suite and its backports.
install_packages() {
    mount --rbind /proc "$root/proc"
    mount --rbind /dev "$root/dev"
    in_root apt-get update -q
    in_root apt-get install -q -y --no-install-recommends -t "$suite-backports" "$@"
}

# unpack_kernel SUITE FLAVOUR [modules]: unpacks the kernel image and headers of one suite, and its modules where they are asked for. They
# are not installed: the headers of both suites want different versions of a library which QEMU needs too, and an image wants an
# initramfs generator; as files they are content.
unpack_kernel() {
    local from=$1 flavour=$2 modules=${3:-} release common debs deb exclude=(--exclude='./usr/share/*')
    release=$(in_root apt-cache show "linux-headers-$flavour/$from" |
        sed -n "s/^Depends:.*linux-headers-\([0-9][^ ]*-$flavour\) .*/\1/p" | head -n 1)
    [[ -n $release ]] || { echo "no kernel for $flavour in $from"; exit 1; }
    common=${release%-"$flavour"}
    debs=("linux-headers-$release" "linux-headers-$common-common" "linux-kbuild-$common")
    # Newer packaging has the image, and its modules, in packages of their own.
    if in_root apt-cache show "linux-binary-$release" >/dev/null 2>&1; then
        debs+=("linux-binary-$release")
        if [[ -n $modules ]]; then debs+=("linux-modules-$release"); fi
    else
        debs+=("linux-image-$release")
    fi
    [[ -n $modules ]] || exclude+=(--exclude='./usr/lib/modules/*/kernel')
    mkdir -p "$root/var/tmp/debs"
    in_root sh -c 'cd /var/tmp/debs && apt-get download -q "$@"' sh "${debs[@]}"
    for deb in "$root"/var/tmp/debs/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" |
            tar -x --keep-directory-symlink "${exclude[@]}" -C "$root"
    done
    rm -r "$root/var/tmp/debs"
    if [[ -f $root/usr/lib/modules/$release/vmlinuz ]]; then
        mv "$root/usr/lib/modules/$release/vmlinuz" "$root/boot/vmlinuz-$release"
    fi
    [[ -s $root/boot/vmlinuz-$release ]] || { echo "no image of $release"; exit 1; }
    chmod a+r "$root/boot/vmlinuz-$release"
}

# complete_root STAMP: the last step, which says of what recipe the root is.
complete_root() {
    in_root apt-get clean
    rm -rf "${root:?}"/var/lib/apt/lists/*
    printf '%s\n' "$1" >"$root/etc/lab-stamp"
}
