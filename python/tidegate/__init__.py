"""Keys and values in the memory of a Tidegate data node.

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

A program under ``tidegate run`` says what its requests are for, and rules of the policy match it:

    with tidegate.scope("compaction"):
        compact()                           # rules with context = "compaction" apply

This is the C interface, by ctypes; docs/src/data-nodes.md and docs/src/capi.md are the guides.

Simulations run at the points of a grid, on all processors or on Ray (docs/src/simulator.md):

    tidegate.sweep("scenario.toml", {"transport.law": ["dctcp", "qtcp"]}, seeds=5)
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pathlib
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import NoReturn

from .sweeps import SimulationError, sweep

__all__ = [
    "Contended",
    "Damaged",
    "ENTRY_MAX",
    "Error",
    "Forked",
    "Full",
    "KEY_MAX",
    "KeyLength",
    "Late",
    "NotAdmitted",
    "OtherVersion",
    "SimulationError",
    "Store",
    "Throttled",
    "Unreachable",
    "VALUE_MAX",
    "ValueLength",
    "scope",
    "sweep",
]
__version__ = "0.1.0"

KEY_MAX = 250
"""Bytes of the longest key; the shortest has one."""
VALUE_MAX = 4096
"""Bytes of the longest value."""
ENTRY_MAX = 4144
"""Bytes of the longest key and value together."""


class Error(Exception):
    """What went wrong, in words. ``status`` is the number that the C interface gives it."""

    status: int = 0


class Unreachable(Error, ConnectionError):
    """No data node listens there; or it is gone, and without it there are no tokens."""


class NotAdmitted(Error, PermissionError):
    """The data node does not let this process in, or not for this tenant."""


class OtherVersion(Error):
    """The data node, the store in its memory or the library is of another release."""


class KeyLength(Error, ValueError):
    """The key has no bytes, or more than KEY_MAX."""


class ValueLength(Error, ValueError):
    """The value has more than VALUE_MAX bytes, or with its key more than ENTRY_MAX."""


class Full(Error):
    """The store has no room for the key or its value."""


class Contended(Error):
    """Others changed the key again and again. Nothing was changed; try again."""


class Damaged(Error):
    """The store, or a value in it, is not what was written."""


class Late(Error, TimeoutError):
    """It was not done in time, as there were no tokens for it. A change may happen yet."""


class Forked(Error):
    """The store was opened by the process that this one was forked from."""


class Throttled(Error):
    """This client's updates hold as many blocks as they may. Try again after two periods."""


_ERRORS: dict[int, type[Error]] = {
    9: Unreachable,
    10: NotAdmitted,
    11: OtherVersion,
    12: KeyLength,
    13: ValueLength,
    14: Full,
    15: Contended,
    16: Damaged,
    17: Late,
    18: Forked,
    19: Throttled,
}

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


@functools.cache
def _library() -> ctypes.CDLL:
    """The library: the one that is named, that came with this package, or that the system has."""
    beside = pathlib.Path(__file__).with_name("libtidegate.so")
    path = os.environ.get("TIDEGATE_LIBRARY") or (beside if beside.exists() else "libtidegate.so")
    try:
        library = ctypes.CDLL(os.fspath(path))
    except OSError as error:
        raise OSError(
            f"{error}; build it (cargo build --release -p tidegate-capi) and install this package"
            " by pip, or name it in TIDEGATE_LIBRARY"
        ) from None
    library.tidegate_version.restype = ctypes.c_uint32
    major, minor, patch = map(int, __version__.split("."))
    if library.tidegate_version() != major << 16 | minor << 8 | patch:
        raise OtherVersion(f"{path} is not of release {__version__}; build it from the same source")
    library.tidegate_error_detail.restype = ctypes.c_char_p
    store, bytes_ = ctypes.c_void_p, _Bytes
    for name, arguments in {
        "open": [ctypes.c_char_p, ctypes.POINTER(_Settings), ctypes.POINTER(store)],
        "close": [store],
        "get": [store, bytes_, _Buffer, ctypes.POINTER(_Found)],
        "get_many": [store, ctypes.POINTER(_Lookup), ctypes.c_size_t],
        "put": [store, bytes_, bytes_],
        "delete": [store, bytes_, ctypes.POINTER(ctypes.c_int)],
    }.items():
        getattr(library, f"tidegate_store_{name}").argtypes = arguments
    library.tidegate_scope_enter.argtypes = [ctypes.c_char_p]
    library.tidegate_scope_enter.restype = ctypes.c_uint16
    library.tidegate_scope_leave.argtypes = [ctypes.c_uint16]
    library.tidegate_scope_leave.restype = None
    return library


@contextlib.contextmanager
def scope(context: str) -> Iterator[None]:
    """Has the requests of this thread in a context with this name, until the block ends.

    A rule of the policy with ``context`` gives them a tenant, and so its class and its limits. The
    program runs under ``tidegate run``; elsewhere a scope changes nothing. Scopes nest, and belong
    to the thread that has entered them: a block with ``await`` in it would also apply to other
    tasks of the thread. As a decorator, it is around each call of a function.

    Names are cut after 63 bytes, and a process has at most 255 of them; later ones are no context.
    Raises ``ValueError`` for a name with a zero byte.
    """
    if not isinstance(context, str):
        raise _wrong_type("context", "str", context)
    name = context.encode()
    if b"\0" in name:
        raise ValueError("the name of a context has no zero byte")
    library = _library()
    outer = library.tidegate_scope_enter(name)
    try:
        yield
    finally:
        library.tidegate_scope_leave(outer)


def _fail(status: int) -> NoReturn:
    detail = _library().tidegate_error_detail().decode()
    error = _ERRORS.get(status, Error)(detail)
    error.status = status
    raise error


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
        raise _wrong_type(name, "bytes", content) from None


def _wrong_type(name: str, wanted: str, value: object) -> TypeError:
    return TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


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
            raise _wrong_type("tenant", "str or None", tenant)
        if not isinstance(timeout, (int, float)):
            raise _wrong_type("timeout", "a number", timeout)
        for name, number in (("parts", parts), ("locations", locations)):
            if not isinstance(number, int):
                raise _wrong_type(name, "int", number)
            if not 0 <= number < 1 << 32:
                raise ValueError(f"{name} must be from 0 to 4294967295, not {number}")
        if not 0 < timeout < _TIMEOUT_MAX:
            raise ValueError(f"timeout must be above 0 and below {_TIMEOUT_MAX} s, not {timeout}")
        path = os.fsencode(at)
        for name, word in (("at", path), ("tenant", (tenant or "").encode())):
            if b"\0" in word:
                raise ValueError(f"{name} must not have a zero byte")
        self._library = library = _library()
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
            _fail(status)
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
                _fail(status)
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
                    _fail(status)
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
                _fail(status)
        finally:
            room.is_busy = False

    def delete(self, key: bytes) -> bool:
        """Takes a key's value away; whether it had one."""
        room = self._enter()
        try:
            _point(room.key, key, "key")
            if status := self._library.tidegate_store_delete(self._handle, room.key, room.had):
                _fail(status)
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
