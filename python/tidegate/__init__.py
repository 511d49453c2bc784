"""Tidegate for Python: scopes, stages, stores and simulations.

A program under ``tidegate run`` reports what its requests are for, and rules of the policy match
it:

    with tidegate.scope("compaction"):
        compact()                           # rules with context = "compaction" apply

A program that cannot be run under it asks the gates of the policy by itself, file by file or
request by request:

    with tidegate.Stage("training") as stage, stage.open("shard-0.npy") as file:
        file.read()

or has all that a file system of `fsspec` reads and writes pass them
(:class:`tidegate.filesystem.GatedFileSystem`).

A data node gives its memory to processes on its machine, which read and write it by themselves:

    with tidegate.Store("/tmp/tidegate/memory.sock", tenant="web") as store:
        store.put(b"greeting", b"hello")
        store.get(b"greeting")                  # b"hello"
        store.get(b"nothing")                   # None
        store.get_many([b"greeting", b"none"])  # [b"hello", None]
        store.delete(b"greeting")               # True

Keys and values are ``bytes`` and are copied. A call waits until it is done or has failed, at most
for the store's timeout, and other threads run meanwhile. A store may be used by any number of
threads, and only by the process that has opened it.

Simulations run with one call, or at the points of a grid on all processors or on Ray:

    tidegate.sim("scenario.toml")
    tidegate.sweep("scenario.toml", {"transport.law": ["dctcp", "qtcp"]}, seeds=5)

Stages and stores are the C interface, by ctypes. docs/src/python.md is the guide.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import NoReturn

from .errors import (
    Contended,
    Damaged,
    Error,
    Forked,
    Full,
    KeyLength,
    Late,
    NoLibrary,
    NotAdmitted,
    OtherVersion,
    Throttled,
    Unreachable,
    ValueLength,
)
from .library import fail, load, wrong_type
from .scopes import scope
from .stage import Counters, Request, Stage, StageInfo
from .sweeps import SimulationError, sim, sweep

__all__ = [
    "Contended",
    "Counters",
    "Damaged",
    "ENTRY_MAX",
    "Error",
    "Forked",
    "Full",
    "KEY_MAX",
    "KeyLength",
    "Late",
    "NoLibrary",
    "NotAdmitted",
    "OtherVersion",
    "Request",
    "SimulationError",
    "Stage",
    "StageInfo",
    "Store",
    "Throttled",
    "Unreachable",
    "VALUE_MAX",
    "ValueLength",
    "scope",
    "sim",
    "sweep",
]
__version__ = "0.1.0"

KEY_MAX = 250
"""Bytes of the longest key; the shortest has one."""
VALUE_MAX = 4096
"""Bytes of the longest value."""
ENTRY_MAX = 4144
"""Bytes of the longest key and value together."""

_TIMEOUT_MAX = 1_000_000_000
"""Seconds above the longest timeout, some 30 years."""

_BATCH = 64
"""Keys that are looked for in one call of the library."""


class _Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("length", ctypes.c_size_t)]


class _Found(ctypes.Structure):
    """The same, where only whether there is a pointer matters."""

    _fields_ = [("data", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _Buffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("capacity", ctypes.c_size_t)]


class _Lookup(ctypes.Structure):
    _fields_ = [
        ("key", _Bytes),
        ("buffer", _Buffer),
        ("value", _Found),
        ("status", ctypes.c_int),
        ("reserved", ctypes.c_uint32),
    ]


class _Settings(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("tenant", ctypes.c_char_p),
        ("timeout_ns", ctypes.c_uint64),
        ("parts", ctypes.c_uint32),
        ("locations", ctypes.c_uint32),
        ("bare", ctypes.c_int),
        ("reserved", ctypes.c_uint32),
    ]


def _declared() -> ctypes.CDLL:
    """The library, whose functions of stores have their types."""
    found = load()
    store, bytes_ = ctypes.c_void_p, _Bytes
    for name, arguments in {
        "open": [ctypes.c_char_p, ctypes.POINTER(_Settings), ctypes.POINTER(store)],
        "close": [store],
        "get": [store, bytes_, _Buffer, ctypes.POINTER(_Found)],
        "get_many": [store, ctypes.POINTER(_Lookup), ctypes.c_size_t],
        "put": [store, bytes_, bytes_],
        "delete": [store, bytes_, ctypes.POINTER(ctypes.c_int)],
    }.items():
        getattr(found, f"tidegate_store_{name}").argtypes = arguments
    return found


class _Room:
    """What a thread needs for its calls, made once."""

    def __init__(self) -> None:
        self.is_busy = False
        self.key = _Bytes()
        self.content = _Bytes()
        self.had = ctypes.c_int()
        self.found = _Found()
        self.memory = ctypes.create_string_buffer(_BATCH * VALUE_MAX)
        self.address = ctypes.addressof(self.memory)
        self.buffer = _Buffer(self.address, VALUE_MAX)
        self.lookups = (_Lookup * _BATCH)()
        for place, lookup in enumerate(self.lookups):
            lookup.buffer = _Buffer(self.address + place * VALUE_MAX, VALUE_MAX)


def _point(to: _Bytes, content: bytes, name: str) -> None:
    """Has ``to`` point to bytes, which it keeps alive; ``name`` is that of the argument."""
    try:
        to.length = len(content)
        to.data = content
    except TypeError:
        raise wrong_type(name, "bytes", content) from None


class Store:
    """A client of the data node that listens on the Unix socket ``at``.

    It acts for ``tenant``, by default for whom the policy's rules say. Opening it, and each call,
    takes at most ``timeout`` seconds. It has one of ``parts`` equal parts of what its tenant is
    promised, and remembers where the values of ``locations`` keys are, which makes a get of them
    three times as cheap. ``bare`` does without promises and limits, for measurements, which only
    root and the data node's own user may.

    Errors are those of this module; their words say what helps.
    """

    def __init__(
        self,
        at: str | os.PathLike[str],
        tenant: str | None = None,
        *,
        timeout: float = 10.0,
        parts: int = 1,
        locations: int = 65_536,
        bare: bool = False,
    ) -> None:
        self._handle: int | None = None
        self._rooms: weakref.WeakSet[_Room] = weakref.WeakSet()
        self._own = threading.local()
        if not isinstance(tenant, (str, type(None))):
            raise wrong_type("tenant", "str or None", tenant)
        if not isinstance(timeout, (int, float)):
            raise wrong_type("timeout", "a number", timeout)
        for name, number in (("parts", parts), ("locations", locations)):
            if not isinstance(number, int):
                raise wrong_type(name, "int", number)
            if not 0 <= number < 1 << 32:
                raise ValueError(f"{name} must be from 0 to 4294967295, not {number}")
        if not 0 < timeout < _TIMEOUT_MAX:
            raise ValueError(f"timeout must be above 0 and below {_TIMEOUT_MAX} s, not {timeout}")
        path = os.fsencode(at)
        for name, word in (("at", path), ("tenant", (tenant or "").encode())):
            if b"\0" in word:
                raise ValueError(f"{name} must not have a zero byte")
        self._library = library = _declared()
        settings = _Settings(
            size=ctypes.sizeof(_Settings),
            tenant=None if tenant is None else tenant.encode(),
            timeout_ns=max(1, int(timeout * 1e9)),
            parts=parts,
            locations=locations,
            bare=bare,
        )
        handle = ctypes.c_void_p()
        if status := library.tidegate_store_open(path, settings, ctypes.byref(handle)):
            fail(status)
        self._handle = handle.value

    def __reduce__(self) -> NoReturn:
        # A copy would close the store of the original.
        raise TypeError("a store cannot be copied or pickled; open another one")

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if it has none."""
        room = self._enter()
        try:
            _point(room.key, key, "key")
            found = room.found
            if status := self._library.tidegate_store_get(
                self._handle, room.key, room.buffer, found
            ):
                fail(status)
            return ctypes.string_at(room.address, found.length) if found.data else None
        finally:
            room.is_busy = False

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """The values of keys, in their order, which are looked for together."""
        keys = list(keys)
        values: list[bytes | None] = []
        room = self._enter()
        try:
            for first in range(0, len(keys), _BATCH):
                some = keys[first : first + _BATCH]
                lookups = room.lookups
                for lookup, key in zip(lookups, some):
                    _point(lookup.key, key, "each of keys")
                if status := self._library.tidegate_store_get_many(
                    self._handle, lookups, len(some)
                ):
                    fail(status)
                for place in range(len(some)):
                    found = lookups[place].value
                    address = found.data
                    values.append(
                        None if address is None else ctypes.string_at(address, found.length)
                    )
            return values
        finally:
            room.is_busy = False

    def put(self, key: bytes, value: bytes) -> None:
        """Gives a key a value, whether it has one or not."""
        room = self._enter()
        try:
            _point(room.key, key, "key")
            _point(room.content, value, "value")
            if status := self._library.tidegate_store_put(self._handle, room.key, room.content):
                fail(status)
        finally:
            room.is_busy = False

    def delete(self, key: bytes) -> bool:
        """Takes a key's value away; whether it had one."""
        room = self._enter()
        try:
            _point(room.key, key, "key")
            if status := self._library.tidegate_store_delete(self._handle, room.key, room.had):
                fail(status)
            return room.had.value == 1
        finally:
            room.is_busy = False

    def close(self) -> None:
        """Gives the store's session slot back, when calls of other threads are done.

        May be repeated.
        """
        handle, self._handle = self._handle, None
        if handle is None:
            return
        own = getattr(self._own, "room", None)
        while any(room.is_busy for room in self._rooms if room is not own):
            time.sleep(0.001)
        self._library.tidegate_store_close(handle)

    def _enter(self) -> _Room:
        """This thread's room. From here on, until it is not busy, the store is not closed."""
        room: _Room | None = getattr(self._own, "room", None)
        if room is None:
            room = self._own.room = _Room()
            self._rooms.add(room)
        room.is_busy = True
        if self._handle is None:
            room.is_busy = False
            raise ValueError("the store is closed")
        return room

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()
