#!/bin/busybox sh
# The first and only program of a virtual machine whose disk is a volume: writes a pattern to it,
# makes it durable, reads it back from the disk, and says what it saw on the serial port.
bb=/bin/busybox
$bb mount -t devtmpfs none /dev
$bb mount -t proc none /proc
# Each behind those that it needs.
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev \
    virtio_pci virtio_blk; do
    $bb insmod /$module.ko
done
pattern() { $bb seq 100000 299999; }
echo "guest: size $($bb blockdev --getsize64 /dev/vda)"
echo "guest: wrote $(pattern | $bb crc32)"
pattern | $bb dd of=/dev/vda bs=64k iflag=fullblock conv=fsync 2>/dev/null
echo 3 >/proc/sys/vm/drop_caches
echo "guest: read $($bb head -c 1400000 /dev/vda | $bb crc32)"
$bb poweroff -f
