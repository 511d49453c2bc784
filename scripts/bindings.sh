#!/bin/sh
# Makes crates/fabric/src/memory/verbs/ibverbs.rs anew: the structures, constants and functions of
# libibverbs that crates/fabric calls. The file is in the repository, so that building needs neither
# libclang nor the header; run this after a change of the lists below, or of a version.
#
# The functions become a table that is filled at run time. The layout of each structure is asserted
# when the file is compiled. Structures of which we have only addresses are opaque. The locks inside
# others are words, as many as on x86-64: their size depends on the processor, and no field behind a
# lock is used.
set -eu
cd "$(dirname "$0")/.."

version=0.73.2
file=crates/fabric/src/memory/verbs/ibverbs.rs

functions='alloc_pd close_device create_cq create_qp dealloc_pd dereg_mr destroy_cq destroy_qp
    free_device_list get_device_list get_device_name modify_qp open_device query_device query_gid
    query_port reg_mr'
# Types that no signature of these has: values of integers, and what is behind a void pointer.
types='access_flags port_attr qp_attr_mask send_flags'
constants='LINK_LAYER_ETHERNET'
opaque='ah comp_channel device mw mw_bind pd recv_wr srq'

scripts/setup.sh bindings
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
cargo install --quiet --locked --root "$made" --version "=$version" bindgen-cli

options=
for name in $functions; do options="$options --allowlist-function ibv_$name"; done
for name in $types; do options="$options --allowlist-type ibv_$name"; done
for name in $constants; do options="$options --allowlist-var IBV_$name"; done
for name in $opaque; do options="$options --opaque-type ibv_$name"; done
# shellcheck disable=SC2086  # names hold no blanks
"$made/bin/bindgen" /usr/include/infiniband/verbs.h $options \
    --blocklist-type 'pthread_.*' --blocklist-type '__(atomic|pthread)_.*' \
    --raw-line 'pub type pthread_mutex_t = [u64; 5];' \
    --raw-line 'pub type pthread_cond_t = [u64; 6];' \
    --dynamic-loading Ibverbs --dynamic-link-require-all --wrap-unsafe-ops \
    --default-enum-style consts --no-prepend-enum-name \
    --with-derive-default --no-derive-debug --no-doc-comments \
    --rust-edition 2024 --rust-target 1.85 --formatter none --output "$made/ibverbs.rs"
rustfmt --edition 2024 --config-path . "$made/ibverbs.rs"
mv "$made/ibverbs.rs" "$file"
