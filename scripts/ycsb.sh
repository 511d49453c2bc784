#!/bin/sh
# Builds YCSB with its binding for pools, from Maven's repository, and runs the test that uses it.
set -eu
cd "$(dirname "$0")/.."

mvn --batch-mode --quiet --file examples/ycsb/pom.xml package
# As scripts/test.sh builds, whose results are used where they are there.
cargo build --workspace --all-targets --locked
TIDEGATE_NO_SKIP=1 cargo test --workspace --test main --locked cluster::keys::ycsb
