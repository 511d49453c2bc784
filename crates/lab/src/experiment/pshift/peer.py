# Solves configurations of `tidegate-lab bench pshift` with OR-tools' SimpleMaxFlow. Reads lines
# `FILE ROUNDS`; answers each with `MILLISECONDS FLOW`: the median of solving, without building.
# A file holds little-endian 64-bit integers: servers, buckets, shares; then capacities,
# reservations, and of each share its bucket, its server and its demand.
import statistics
import sys
import time

import numpy as np
from ortools.graph.python import max_flow

for line in sys.stdin:
    path, rounds = line.rsplit(maxsplit=1)
    data = np.fromfile(path, dtype="<i8")
    servers, buckets, shares = map(int, data[:3])
    sizes = [servers, buckets, shares, shares, shares]
    parts = np.split(data[3:], np.cumsum(sizes)[:-1])
    capacities, reservations, bucket, server, demand = parts
    source, sink = servers + buckets, servers + buckets + 1
    tails = np.concatenate([np.full(buckets, source), servers + bucket, np.arange(servers)])
    heads = np.concatenate([servers + np.arange(buckets), server, np.full(servers, sink)])
    amounts = np.concatenate([reservations, demand, capacities])
    times = []
    for _ in range(int(rounds)):
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(tails, heads, amounts)
        begin = time.perf_counter()
        status = flow.solve(source, sink)
        times.append(1e3 * (time.perf_counter() - begin))
        assert status == flow.OPTIMAL, status
    print(statistics.median(times), flow.optimal_flow(), flush=True)
