#!/bin/sh
# Fetches a kernel for virtual machines of the tests, unless it is there:
#
#   scripts/kernel.sh PACKAGE FOLDER MODULE...
#
# puts the image of the kernel that PACKAGE stands for into FOLDER, as vmlinuz, and the modules that
# these patterns name beside it. The package is unpacked and not installed: it is large.
set -eu

package=$1
folder=$2
shift 2
[ ! -e "$folder/vmlinuz" ] || exit 0

fail() {
    echo "kernel: $1" >&2
    exit 1
}
[ "$(uname -m)" = x86_64 ] || fail "the virtual machine is for x86_64 only"
command -v apt-get >/dev/null || fail "there is no apt-get to fetch $package with"
image=$(apt-cache depends "$package" |
    awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
[ -n "$image" ] || fail "apt knows no $package"
echo "kernel: fetching $image"
fetched=$(mktemp -d)
trap 'rm -rf "$fetched"' EXIT
# As whoever runs this, because apt's own user may not write here.
(cd "$fetched" && apt-get -q -o APT::Sandbox::User=root download "$image")
dpkg-deb -x "$fetched"/*.deb "$fetched"
mkdir -p "$folder"
for module in "$@"; do
    find "$fetched/lib/modules" -name "$module.ko" -exec cp {} "$folder" \;
done
# Last, because where it is everything is taken to be.
cp "$fetched"/boot/vmlinuz-* "$folder/vmlinuz"
