#!/bin/sh
# Fetches a kernel for the virtual machine of the tests, and runs the test that boots it from a
# volume. The kernel is unpacked into target/guest and not installed: its package is 27 MB.
set -eu
cd "$(dirname "$0")/.."

guest=${CARGO_TARGET_DIR:-target}/guest
if [ ! -e "$guest/vmlinuz" ]; then
    [ "$(uname -m)" = x86_64 ] || { echo "guest: the guest is for x86_64 only" >&2; exit 1; }
    package=$(apt-cache depends linux-image-cloud-amd64 |
        awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
    [ -n "$package" ] || { echo "guest: apt knows no linux-image-cloud-amd64" >&2; exit 1; }
    echo "guest: fetching the kernel of $package"
    fetched=$(mktemp -d)
    trap 'rm -rf "$fetched"' EXIT
    # As whoever runs this, because apt's own user may not write here.
    (cd "$fetched" && apt-get -q -o APT::Sandbox::User=root download "$package")
    dpkg-deb -x "$fetched"/*.deb "$fetched"
    mkdir -p "$guest"
    find "$fetched/lib/modules" -name 'virtio*.ko' -exec cp {} "$guest" \;
    # Last, because where it is everything is taken to be.
    cp "$fetched"/boot/vmlinuz-* "$guest/vmlinuz"
fi

cargo build --workspace --locked
TIDEGATE_NO_SKIP=1 cargo test --package tidegate-tests --locked cluster::guest
