#!/bin/sh
# Fetches a kernel for a virtual machine, and runs the test that boots it from a volume.
set -eu
cd "$(dirname "$0")/.."

scripts/kernel.sh linux-image-cloud-amd64 "${CARGO_TARGET_DIR:-target}/guest" 'virtio*'
# As scripts/test.sh builds, whose results are used where they are there.
cargo build --workspace --all-targets --locked
TIDEGATE_NO_SKIP=1 cargo test --workspace --test main --locked cluster::guest
