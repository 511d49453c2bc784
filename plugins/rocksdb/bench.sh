#!/bin/sh
# Measures what the plug-in costs: the throughput of db_bench as it is, under `tidegate run`, and
# there with the plug-in, in turns, under a policy without limits.
#
#   cargo build --release -p tidegate -p tidegate-preload -p tidegate-capi
#   make -C plugins/rocksdb
#   plugins/rocksdb/bench.sh [ROUNDS [KEYS]]
#
# Prints the ratios of the operations per second of each benchmark, and of the processor time of
# the whole run: the median of all rounds, the lowest and the highest. Other load on the machine
# disturbs single rounds, and processor times least.
set -eu
cd "$(dirname "$0")/../.."
rounds=${1:-10}
keys=${2:-300000}
tidegate=target/release/tidegate
plugin=$PWD/plugins/rocksdb/build/libtidegate-rocksdb.so
for file in "$tidegate" "$plugin"; do
    [ -e "$file" ] || { echo "there is no $file: see the head of this script" >&2; exit 1; }
done

# On a disk: files in memory are not gated.
work=$(mktemp -d target/bench-rocksdb.XXXXXX)
export TIDEGATE_SOCKET="$PWD/$work/socket"
"$tidegate" up --no-http --state "$work/state" > "$work/controller" 2>&1 &
controller=$!
end() {
    kill "$controller" 2> /dev/null || true
    wait "$controller" 2> /dev/null || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM
until grep -q 'is ready at' "$work/controller"; do
    kill -0 "$controller" 2> /dev/null || { cat "$work/controller" >&2; exit 1; }
    sleep 0.1
done
printf '[[tenant]]\nname = "free"\n' > "$work/policy.toml"
"$tidegate" apply "$work/policy.toml" > /dev/null

bench() { # a variant, and the words before db_bench
    variant=$1
    shift
    rm -rf "$work/db"
    (
        "$@" db_bench --benchmarks=fillrandom,readrandom --num="$keys" --seed=1 --threads=1 \
            --compression_type=none --db="$work/db" 2> "$work/errors" > "$work/output" || exit 1
        times > "$work/times"
    ) || { cat "$work/errors" >&2; exit 1; }
    if grep '^tidegate: RocksDB' "$work/errors" >&2; then exit 1; fi
    # The last line of `times` has the user's and the system's time of what was run.
    awk -v round="$round" -v variant="$variant" '
        FILENAME ~ /times$/ { split($1, user, /[ms]/); split($2, kernel, /[ms]/) }
        $1 == "fillrandom" || $1 == "readrandom" {
            for (i = 2; i < NF; i++) if ($(i + 1) ~ /^ops\/sec/) print round, variant, $1, $i
        }
        END {
            seconds = 60 * (user[1] + kernel[1]) + user[2] + kernel[2]
            print round, variant, "processor", seconds
        }' "$work/output" "$work/times" >> "$work/results"
}

run() { # a variant, by its number
    case $1 in
    0) bench stock env ;;
    1) bench run "$tidegate" run --tenant free -- ;;
    2) bench plugin env LD_PRELOAD="$plugin" "$tidegate" run --tenant free -- ;;
    esac
}

round=0
run 0
rm "$work/results" # The first run fills caches.
while [ "$round" -lt "$rounds" ]; do
    for turn in 0 1 2; do
        run $(((round + turn) % 3))
    done
    round=$((round + 1))
done

# shellcheck disable=SC2016  # awk's own variables
ratios='
    { rate[$1, $2, $3] = $4 }
    END {
        split("plugin/stock plugin/run run/stock", pairs, " ")
        for (p = 1; p <= 3; p++) {
            split(pairs[p], side, "/")
            for (round = 0; round < rounds; round++)
                print pairs[p], rate[round, side[1], name] / rate[round, side[2], name]
        }
    }'
for name in fillrandom readrandom processor; do
    awk -v name="$name" -v rounds="$rounds" "$ratios" "$work/results" | sort -k 1,1 -k 2,2g |
        awk -v name="$name" '
            function show() {
                if (count == 0) return
                middle = (values[int((count + 1) / 2)] + values[int(count / 2) + 1]) / 2
                printf "%-12s %-14s %.3f  %.3f .. %.3f\n", name, pair, middle, values[1],
                    values[count]
            }
            $1 != pair { show(); pair = $1; count = 0 }
            { values[++count] = $2 }
            END { show() }'
done
