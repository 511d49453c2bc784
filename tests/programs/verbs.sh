#!/bin/busybox sh
# The first and only program of a virtual machine with an RDMA device in software: makes the device,
# and runs the tests of one-sided access over it, and those of data nodes.
bb=/bin/busybox
$bb mount -t devtmpfs none /dev
$bb mount -t proc none /proc
$bb mount -t sysfs none /sys
# Each behind those that it needs.
for module in crc32_generic dummy udp_tunnel ip6_udp_tunnel ib_core ib_uverbs rdma_rxe; do
    $bb insmod /$module.ko
done
$bb ip link set lo up
$bb ip link set dummy0 up
$bb ip address add 10.0.0.1/24 dev dummy0
/bin/rdma link add rxe0 type rxe netdev dummy0
/bin/rdma link
export TIDEGATE_NO_SKIP=1 RUST_BACKTRACE=1 TIDEGATE_TEST_DIR=/tmp TIDEGATE_TEST_LINK=dummy0
/tests --test-threads=1 &&
    /target/debug/deps/cluster cluster::rdma --test-threads=1 && echo "verbs: passed"
$bb poweroff -f
