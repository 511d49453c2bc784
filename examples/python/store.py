"""Keeps keys and values in a data node's memory.

From the root of the repository, while `tidegate up examples/data-node.toml --state target/memory`
runs:

    cargo build --release -p tidegate-capi
    pip install ./python
    python3 examples/python/store.py target/memory/memory.sock web
"""

import sys

import tidegate


def main(at: str, tenant: str) -> None:
    with tidegate.Store(at, tenant) as store:
        store.put(b"greeting", b"hello")
        print("greeting:", store.get(b"greeting"))
        print("nothing:", store.get(b"nothing"))

        for number in range(3):
            store.put(b"key %d" % number, b"value %d" % number)
        print("many:", store.get_many(b"key %d" % number for number in range(4)))

        try:
            store.put(b"large", bytes(5000))
        except tidegate.ValueLength as error:
            print("large:", error)

        print("deleted:", store.delete(b"greeting"), store.delete(b"greeting"))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except tidegate.Error as error:
        sys.exit(str(error))
