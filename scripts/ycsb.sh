#!/bin/sh
# Builds YCSB with its binding for pools, from Maven's repository, and runs the test that uses it.
set -eu
cd "$(dirname "$0")/.."

mvn --batch-mode --quiet --file examples/ycsb/pom.xml package
cargo build --workspace --locked
TIDEGATE_NO_SKIP=1 cargo test --package tidegate-tests --locked cluster::keys::ycsb
