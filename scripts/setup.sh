#!/bin/sh
# Installs the system packages that the given parts of this repository need and that are missing:
#
#   scripts/setup.sh [test] [demo] [bench] [guest] [ycsb] [verbs] [ns3] [bindings] [browser]
#
# The first three are meant if none is named. It says what it installs and why, and it changes
# nothing else. When nothing is missing it asks dpkg once and is done, so `make test` may call it
# every time. Installing needs root, or sudo; asking does not. Rust is not its business: rustup and
# rust-version in Cargo.toml are.
#
# It knows Debian and Ubuntu. On another system it prints the list, warns and goes on, because the
# same tools may be there under other names.
set -eu

usage() {
    echo "usage: scripts/setup.sh [test] [demo] [bench] [guest] [ycsb] [verbs] [ns3] [bindings]" \
        "[browser]" >&2
    exit 2
}

# package | parts that need it | why | command
#
# A command is named where it may well have come from elsewhere (a JDK, a Node.js of a version
# manager): where it is there, the package is not needed.
packages() {
    cat <<'LIST'
gcc                  | every                | links Rust programs, builds C programs of tests
libc6-dev            | every                | C headers and start files, for the same
make                 | test                 | the C example is built as its readers would build it
git                  | test                 | a real program that tests run under a policy
python3              | test                 | a real program that tests run under a policy
python3-pip          | test                 | installs the Python package as its users do | pip
python3-fsspec       | test                 | file systems that the Python package wraps
python3-numpy        | test demo            | training jobs where PyTorch is not installed
mypy                 | test                 | checks the types of the Python package
tar                  | test                 | a real program that tests run under a policy
rsync                | test                 | a real program that tests run under a policy
sqlite3              | test                 | a real program that tests run under a policy
qemu-utils           | test                 | qemu-img, qemu-io: clients of the shim and the gateway
libnbd-bin           | test demo guest      | nbdinfo, nbdcopy, nbdfuse: clients of the gateway
e2fsprogs            | test demo            | a file system on a volume
pv                   | bench                | holds a backup back, a peer in the table of backups
postgresql           | bench                | a database beside a backup
iproute2             | test verbs           | two machines in one, and an RDMA device in software
fuse3                | test                 | fusermount3, which nbdfuse needs unless it is root's
rocksdb-tools        | test bench           | db_bench: threads with names, files with write hints
default-jre-headless | test                 | a real program that tests run under a policy | java
nodejs               | test                 | a real program that tests run under a policy | node
fio                  | test demo bench      | the tenants: real I/O of every kind
libaio-dev           | test                 | a test program that submits through libaio
liburing-dev         | test                 | a test program that submits through liburing
memcached            | test demo bench ycsb | what stands behind a key-value node
libmemcached-tools   | test                 | memccapable, memcaslap: clients of the gateway
qemu-system-x86      | guest verbs          | virtual machines: one on a volume, one with RDMA
busybox-static       | guest verbs          | all that runs in it
libibverbs1          | verbs                | one-sided access over RDMA
ibverbs-providers    | verbs                | RDMA in software, for the same
libibverbs-dev       | bindings             | the header of libibverbs
libclang-dev         | bindings             | reads it
maven                | ycsb                 | fetches YCSB and builds its binding | mvn
default-jdk-headless | ycsb                 | compiles and runs both | javac
nbdkit               | test bench           | a block server, the peer in the table of the path
g++                  | test bench ns3       | builds the plug-in for RocksDB, and peers
libns3-dev           | bench ns3            | another network simulator, to compare ours with
librocksdb-dev       | test bench           | the plug-in's headers; RocksDB's rate limiter, a peer
python3-venv         | bench                | OR-tools from PyPI, a peer in the table of pShift
nutcracker           | bench                | the stock proxy of memcached, a peer of paths
chromium             | browser              | opens the report of experiments, in a test | chromium
LIST
}

needed() { # the lines of `packages` for the named parts, without blanks around the bars
    packages | awk -F ' *[|] *' -v parts="$*" '
        BEGIN { count = split(parts, part, " ") }
        {
            wanted = $2 == "every"
            for (i = 1; i <= count; i++) if (index(" " $2 " ", " " part[i] " ")) wanted = 1
            if (wanted) print $1 "|" $3 "|" $4
        }
    '
}

missing() { # of the lines on standard input, those whose package or command is not there
    lines=$(cat)
    # shellcheck disable=SC2046  # names of packages hold no blanks
    installed=$(dpkg-query -W -f '${Package}:${db:Status-Status}\n' \
        $(printf '%s\n' "$lines" | cut -d '|' -f 1) 2>/dev/null || true)
    printf '%s\n' "$lines" | while IFS='|' read -r package why program; do
        [ -z "$program" ] || ! command -v "$program" >/dev/null || continue
        printf '%s\n' "$installed" | grep -qxF "$package:installed" || echo "$package|$why"
    done
}

show() { # lines of package|why, aligned
    awk -F '|' '{ printf "  %-20s %s\n", $1, $2 }'
}

[ $# -gt 0 ] || set -- test demo bench
for part in "$@"; do
    case $part in
        test | demo | bench | guest | ycsb | verbs | ns3 | bindings | browser) ;;
        *) usage ;;
    esac
done

command -v cargo >/dev/null || echo "setup: cargo is not on PATH; see https://rustup.rs" >&2

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    echo "setup: not Debian or Ubuntu, so nothing is installed. $* needs the like of:" >&2
    needed "$@" | show >&2
    exit 0
fi

lacking=$(needed "$@" | missing)
[ -n "$lacking" ] || exit 0

echo "setup: installing for $*:"
printf '%s\n' "$lacking" | show
names=$(printf '%s\n' "$lacking" | cut -d '|' -f 1 | tr '\n' ' ')
if [ "$(id -u)" = 0 ]; then
    as_root=
elif sudo -n true 2>/dev/null; then
    as_root='sudo -n'
elif command -v sudo >/dev/null && [ -t 0 ]; then
    as_root=sudo
else
    echo "setup: this needs root. As root, run: apt-get install $names" >&2
    exit 1
fi

# An index that is out of date may still name the packages, so its failure is not the end.
$as_root apt-get -q update || echo "setup: apt-get update failed; going on" >&2
# shellcheck disable=SC2086  # names of packages hold no blanks
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120 \
    install --no-install-recommends $names
