#!/bin/sh
# Runs the tests of one-sided access over RDMA, and of data nodes that are reached so, in a virtual
# machine whose kernel has a device in software (rdma_rxe), because few machines have a card. All of
# it comes from Debian packages. Where one is missing it says so and does nothing, or fails if
# TIDEGATE_NO_SKIP is set.
set -eu
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
kernel=$target/verbs

skip() {
    echo "verbs: skipped: $1"
    [ -z "${TIDEGATE_NO_SKIP:-}" ] || exit 1
    exit 0
}
for program in qemu-system-x86_64 busybox rdma ldd; do
    command -v "$program" >/dev/null || skip "there is no $program; see scripts/setup.sh verbs"
done
library=$(ldconfig -p | awk '$1 == "libibverbs.so.1" { print $NF; exit }')
[ -n "$library" ] || skip "there is no libibverbs.so.1; see scripts/setup.sh verbs"
driver=$(find "$(dirname "$library")/libibverbs" -name 'librxe-*.so' 2>/dev/null || true)
[ -n "$driver" ] || skip "there are no ibverbs-providers; see scripts/setup.sh verbs"
scripts/kernel.sh linux-image-amd64 "$kernel" crc32_generic dummy ib_core ib_uverbs \
    ip6_udp_tunnel rdma_rxe udp_tunnel || skip "there is no kernel for the virtual machine"

# The program of a test, by its name. Built as scripts/test.sh builds it, whose results are used
# where they are there.
built() {
    build="cargo test --workspace --test $1 --locked --no-run"
    $build >&2
    $build 2>&1 | sed -n 's/.*Executable .*(\(.*\))$/\1/p'
}
tests=$(built verbs)
cluster=$(built main)
cargo build --workspace --all-targets --locked
command=$target/debug/tidegate

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
root=$made/root
for folder in bin dev etc/libibverbs.d proc sys target/debug/deps tmp usr/lib usr/lib64; do
    mkdir -p "$root/$folder"
done
ln -s usr/lib usr/lib64 "$root"
cp tests/programs/verbs.sh "$root/init"
chmod 755 "$root/init"
cp "$(command -v busybox)" "$(command -v rdma)" "$root/bin"
cp "$kernel"/*.ko "$root"
echo "driver rxe" >"$root/etc/libibverbs.d/rxe.driver"
# Without what debuggers read, it is a third as large.
objcopy --strip-debug "$tests" "$root/tests"
objcopy --strip-debug "$cluster" "$root/target/debug/deps/cluster"
objcopy --strip-debug "$command" "$root/target/debug/tidegate"
# At the places where the loader looks: those that they have here.
for file in "$library" "$driver" $(ldd "$tests" "$cluster" "$command" "$library" "$driver" \
    "$root/bin/rdma" |
    sed -n 's/.*\s\(\/[^ ]*\) (0x[0-9a-f]*)$/\1/p' | sort -u); do
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
done
(cd "$root" && busybox find . | busybox cpio -o -H newc >"$made/packed" 2>/dev/null)

# Emulated, which works on every machine. Two processors, so that what is atomic has to be.
timeout 600 qemu-system-x86_64 -accel tcg,thread=multi -smp 2 -m 1024 \
    -nodefaults -no-user-config -no-reboot -display none -serial stdio \
    -kernel "$kernel/vmlinuz" -initrd "$made/packed" \
    -append "console=ttyS0 quiet panic=-1 rootfstype=ramfs" </dev/null | tee "$made/said"
grep -q '^verbs: passed' "$made/said" || { echo "verbs: FAILED" >&2; exit 1; }
