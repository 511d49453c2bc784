"""Writes in two contexts and in none, one inside the other, in two threads: as contexts.c."""

import os
import sys
import threading

import tidegate

BLOCK = bytes(64 << 10)


def put(name: str, times: int) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for _ in range(times):
        assert os.write(file, BLOCK) == len(BLOCK)
    os.close(file)


@tidegate.scope("flush")
def work() -> None:
    put("thread", 4)


with tidegate.scope("flush"):
    put("main", 1)
    try:
        with tidegate.scope("compaction_l0"):
            put("main", 2)
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            raise KeyError
    except KeyError:
        put("main", 8)
try:
    with tidegate.scope("no\0context"):
        pass
except ValueError:
    put("main", 16)
print("done", flush=True)
sys.stdin.read()
