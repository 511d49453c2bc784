#!/bin/sh
# Every check and every test, in the order in which a failure costs least. Stops at the first
# failure. `make test` installs what the tests need and then runs this.
set -eu
cd "$(dirname "$0")/.."

began=$(date +%s)

step() { # a heading, and the command that it stands for
    heading=$1
    shift
    echo "== $heading: $*"
    since=$(date +%s)
    if ! "$@"; then
        echo "== $heading: FAILED after $(($(date +%s) - since)) s" >&2
        exit 1
    fi
    echo "== $heading: ok, $(($(date +%s) - since)) s"
}

step "format" cargo fmt --all --check
step "lints" cargo clippy --workspace --all-targets --locked -- -D warnings
# End-to-end tests run the command and load the libraries, which cargo test alone does not build.
# All targets, because development dependencies change features: without them, nearly every crate
# would be compiled once for the programs and once more for the tests.
step "build" cargo build --workspace --all-targets --locked
# The shim runs in other people's programs. Optimized, it once ended each of them at its start, and
# all tests of debug builds passed.
step "optimized shim" sh -c 'cargo build --release --locked -p tidegate-preload &&
    LD_PRELOAD="$PWD/target/release/libtidegate_preload.so" /bin/ls -d . >/dev/null'
# Examples in documentation, tidy, arrows and links are among them.
step "tests" cargo test --workspace --locked --no-fail-fast
echo "== all passed, $(($(date +%s) - began)) s"
