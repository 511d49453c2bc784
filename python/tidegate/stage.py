"""A stage in this process: the gates of a policy for programs without the shim."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import operator
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Any, NamedTuple, NoReturn

from .errors import of_status
from .library import fail, load, wrong_type

__all__ = ["Counters", "Request", "Stage", "StageInfo", "gated", "shared"]

OPERATIONS = {
    "read": 0,
    "write": 1,
    "sync": 2,
    "allocate": 3,
    "open": 4,
    "stat": 5,
    "list": 6,
    "link": 7,
    "attribute": 8,
    "get": 9,
    "put": 10,
    "delete": 11,
    "scan": 12,
}
"""The operations of requests, by their numbers in the C interface."""

_CHANNELS_MAX = 128
"""Channels of a stage."""

_BYTES_MAX = 1 << 63
"""Bytes above the largest request."""

_PIECE = 1 << 20
"""The most bytes of a file that one request moves: a large read takes its tokens bit by bit."""

_BUFFER = 1 << 17
"""Bytes that a file reads ahead or gathers, so that short reads and writes are few requests."""

_POLL = 0.002
"""Seconds between two checks whether rules have come."""

_NO_RULES = 20
"""TIDEGATE_NO_RULES: there are none yet, and they may still come."""


class Counters(NamedTuple):
    """The traffic of a channel so far."""

    channel: int
    operations: int
    bytes: int
    waited: float
    """Seconds that its requests waited, in all."""


class StageInfo(NamedTuple):
    """The state of a stage."""

    generation: int
    """How many sets of rules it has had; with zero, requests pass unhindered."""
    not_storage: int
    """Requests that passed unhindered because they were about no storage."""
    queue_full: int
    """Requests that passed unhindered because a queue was full for two seconds."""


class _Settings(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("tenant", ctypes.c_char_p),
        ("socket", ctypes.c_char_p),
        ("command", ctypes.c_char_p),
        ("layered", ctypes.c_int),
        ("key_count", ctypes.c_size_t),
        ("keys", ctypes.c_void_p),
    ]


class _Info(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("generation", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("not_storage", ctypes.c_uint64),
        ("queue_full", ctypes.c_uint64),
    ]


class _Counters(ctypes.Structure):
    _fields_ = [
        ("channel", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("operations", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("waited_ns", ctypes.c_uint64),
    ]


_Admission = ctypes.c_uint64 * 20
"""Memory of the library, for a request under way."""

_stages: weakref.WeakSet[Stage] = weakref.WeakSet()
"""The open stages of this process."""


class Request:
    """A request of a stage. The block waits until it may be made, and makes it::

        with stage.request("read", length, path) as request:
            data = file.read(length)
            request.moved = len(data)

    Tokens for bytes that it did not move go back. Without ``moved`` it has moved all bytes, or none
    if the block ended with an exception. Inside of the block the thread makes no other request of
    the stage: a gate that limits requests in service would wait for this one.
    """

    __slots__ = ("_admission", "_arguments", "_stage", "_thread", "moved")

    def __init__(self, stage: Stage, operation: int, length: int, path: bytes | None) -> None:
        self.moved: int | None = None
        self._stage = stage
        self._arguments = (operation, length, path)
        self._admission = _Admission()
        self._thread: int | None = None
        """The thread that is making the request."""

    def __enter__(self) -> Request:
        thread = threading.get_ident()
        handle = self._stage._begin(thread)
        try:
            # A second admission would overwrite the first one, which nothing could complete then.
            if self._thread is not None:
                raise ValueError("this request is under way already; make another one")
            status = self._stage._library.tidegate_enforce(
                handle, *self._arguments, self._admission
            )
            if status:
                fail(status)
        except BaseException:
            self._stage._end(thread)
            raise
        self._thread = thread
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        length, thread = self._arguments[1], self._thread
        if thread is None:
            raise ValueError("this request is not under way")
        wrong: Exception | None = None
        try:
            moved = length if kind is None else 0
            if self.moved is not None:
                moved = _count("moved", self.moved)
        except (TypeError, ValueError) as refused:
            # The request is over all the same: a queue's permit goes back, and no token does.
            moved, wrong = length, refused
        self._thread = None
        try:
            if status := self._stage._library.tidegate_complete(self._admission, moved):
                fail(status)
        finally:
            self._stage._end(thread)
        if wrong is not None:
            raise wrong


class Stage:
    """A stage for the tenant ``tenant``, by default for the one that the policy's rules name.

    It connects to the controller at the Unix socket ``socket``, by default ``TIDEGATE_SOCKET`` or
    where ``tidegate up`` listens, and waits at most ``timeout`` seconds for its rules. With
    ``timeout=None`` it does not wait: requests pass unhindered until a controller is there.
    ``command`` is the name of the program for people.

    The program asks before each request, and the gates of the policy hold it::

        with tidegate.Stage("training") as stage:
            with stage.request("read", length, path):
                ...
            with stage.open("shard-0.npy") as file:     # or has a file ask by itself
                file.read()

    Any number of threads may use a stage, and others run while one waits. Processes that are forked
    pass the same gates, as long as the process that has opened the stage lives. A program under
    ``tidegate run`` needs no stage: a file's requests would pass two.

    Raises :class:`tidegate.NoLibrary` without the C library, and :class:`tidegate.Unreachable` if
    no rules come in time, or as soon as the controller refuses the stage.
    """

    def __init__(
        self,
        tenant: str | None = None,
        *,
        socket: str | os.PathLike[str] | None = None,
        command: str | None = None,
        timeout: float | None = 5.0,
    ) -> None:
        self._handle: int | None = None
        self._library = load()
        self._busy = 0
        self._idle = threading.Condition()
        self._requests: dict[int, int] = {}
        self._files: weakref.WeakSet[Any] = weakref.WeakSet()
        if timeout is not None and not isinstance(timeout, (int, float)):
            raise wrong_type("timeout", "a number or None", timeout)
        # Also of a value that is no number, which no time is beyond.
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be at least 0 s, not {timeout}")
        words = {
            "tenant": tenant,
            "socket": None if socket is None else os.fspath(socket),
            "command": os.path.basename(sys.argv[0] or "python") if command is None else command,
        }
        settings = _Settings(
            size=ctypes.sizeof(_Settings),
            **{name: _text(name, word) for name, word in words.items()},
        )
        handle = ctypes.c_void_p()
        if status := self._library.tidegate_stage_open(
            ctypes.byref(settings), ctypes.byref(handle)
        ):
            fail(status)
        self._handle = handle.value
        _stages.add(self)
        if timeout is not None:
            self._wait(timeout)

    def _wait(self, timeout: float) -> None:
        """Waits for the first rules; if none come, closes the stage."""
        until = time.monotonic() + timeout
        while status := self._library.tidegate_stage_ready(self._handle):
            reason = self._library.tidegate_error_detail().decode()
            if status != _NO_RULES:
                self.close()
                raise of_status(status, reason)
            if time.monotonic() >= until:
                self.close()
                words = f"no rules came from a controller within {timeout} s: {reason}"
                raise of_status(status, words + _help(reason))
            time.sleep(_POLL)

    def __reduce__(self) -> NoReturn:
        # Two owners of one handle would close it twice.
        raise TypeError("a stage cannot be copied or pickled; open another one")

    def request(
        self,
        operation: str,
        length: int = 0,
        path: str | os.PathLike[str] | None = None,
    ) -> Request:
        """A request for a ``with`` block, which waits at the gates.

        ``operation`` is one of ``read``, ``write``, ``sync``, ``allocate``, ``open``, ``stat``,
        ``list``, ``link``, ``attribute``, ``get``, ``put``, ``delete`` and ``scan``. ``length`` is
        the most bytes that it moves, and zero for operations that move none. ``path`` is the file
        that it is about. Without it the request matches no rule with a path, and of resources of
        files only ``/**``.
        """
        number = OPERATIONS.get(operation)
        if number is None:
            raise ValueError(f"{operation!r} is none of {', '.join(OPERATIONS)}")
        length = _count("length", length)
        return Request(self, number, length, None if path is None else _path(path))

    def open(
        self,
        path: str | os.PathLike[str],
        mode: str = "rb",
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Opens a file of this machine whose reads and writes are requests of the stage.

        Arguments are those of the function ``open``. The file has no descriptor for others, who
        would read past the gates.
        """
        binary = mode.replace("t", "").replace("b", "")
        with self.request("open", 0, path):
            inner = io.FileIO(path, binary)
        file: Any = gated(inner, self, path, binary)
        if "b" not in mode:
            file = io.TextIOWrapper(file, encoding, errors, newline)
            self._files.add(file)
        opened: IO[Any] = file
        return opened

    def info(self) -> StageInfo:
        """The state of the stage."""
        info = _Info(size=ctypes.sizeof(_Info))
        with self._held() as handle:
            if status := self._library.tidegate_stage_info(handle, ctypes.byref(info)):
                fail(status)
        return StageInfo(info.generation, info.not_storage, info.queue_full)

    def counters(self) -> list[Counters]:
        """The traffic of each channel that had any, in the order of their numbers."""
        found = (_Counters * _CHANNELS_MAX)()
        count = ctypes.c_size_t()
        with self._held() as handle:
            if status := self._library.tidegate_collect(
                handle, found, _CHANNELS_MAX, ctypes.byref(count)
            ):
                fail(status)
        return [
            Counters(one.channel, one.operations, one.bytes, one.waited_ns / 1e9)
            for one in found[: count.value]
        ]

    def close(self) -> None:
        """Disconnects from the controller, when requests of other threads are done.

        Its open files first write the data that they have gathered: later they could not. May be
        repeated. In a forked child it leaves the parent's stage and its files as they are.
        """
        if threading.get_ident() in self._requests:
            raise ValueError("this thread has a request of the stage under way")
        try:
            if self._handle is not None:
                self._flush()
        finally:
            with self._idle:
                handle, self._handle = self._handle, None
                while self._busy:
                    self._idle.wait()
            if handle is not None:
                self._library.tidegate_stage_close(handle)

    def _flush(self) -> None:
        """All open files write the data that they have gathered. Raises the last error."""
        with contextlib.ExitStack() as stack:
            for file in list(self._files):
                if not file.closed:
                    stack.callback(file.flush)

    def _begin(self, thread: int) -> int:
        """The handle of the stage, which stays open until `_end`."""
        with self._idle:
            if self._handle is None:
                raise ValueError("the stage is closed")
            self._busy += 1
            self._requests[thread] = self._requests.get(thread, 0) + 1
            return self._handle

    def _end(self, thread: int) -> None:
        """`thread` is the one that began: another one may end its request."""
        with self._idle:
            # A request that was under way at a fork ends in two processes.
            self._busy = max(0, self._busy - 1)
            if self._requests.get(thread, 0) > 1:
                self._requests[thread] -= 1
            else:
                self._requests.pop(thread, None)
            if self._busy == 0:
                self._idle.notify_all()

    @contextlib.contextmanager
    def _held(self) -> Iterator[int]:
        """The handle of the stage, which stays open during the block."""
        thread = threading.get_ident()
        handle = self._begin(thread)
        try:
            yield handle
        finally:
            self._end(thread)

    def _forked(self) -> None:
        """In a child: the threads that made requests, or held the lock, are the parent's."""
        self._busy = 0
        self._idle = threading.Condition()
        self._requests = {}
        # The parent writes the data that its files have gathered.
        self._files = weakref.WeakSet()

    def __enter__(self) -> Stage:
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


_opening = threading.Lock()
"""Held while a shared stage is opened, so that threads share one."""


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    for stage in list(_stages):
        stage._forked()


os.register_at_fork(after_in_child=_after_fork)


def shared(tenant: str | None = None, socket: str | None = None) -> Stage:
    """The stage of this process for a tenant, opened when it is first needed. Leave it open."""
    with _opening:
        return _opened(tenant, socket)


@functools.cache
def _opened(tenant: str | None, socket: str | None) -> Stage:
    return Stage(tenant, socket=socket)


def _count(name: str, value: Any) -> int:
    """A number of bytes, of Python or of NumPy."""
    try:
        number = operator.index(value)
    except TypeError:
        raise wrong_type(name, "int", value) from None
    if not 0 <= number < _BYTES_MAX:
        raise ValueError(f"{name} must be from 0 to {_BYTES_MAX - 1}, not {number}")
    return number


def _text(name: str, word: str | None) -> bytes | None:
    if word is None:
        return None
    if not isinstance(word, str):
        raise wrong_type(name, "str or None", word)
    text = os.fsencode(word)
    if b"\0" in text:
        raise ValueError(f"{name} must not have a zero byte")
    return text


def _path(path: str | os.PathLike[str]) -> bytes | None:
    """The absolute path for rules; None if it is no UTF-8, as rules are."""
    try:
        text = os.path.abspath(os.fsdecode(path)).encode()
    except UnicodeEncodeError:
        return None
    if b"\0" in text:
        raise ValueError("path must not have a zero byte")
    return text


def _help(reason: str) -> str:
    """What an operator can do for this reason."""
    if reason.startswith("no controller"):
        return "; start one with `tidegate up`, or name its socket"
    return ""


class _GatedRaw(io.RawIOBase):
    """A file whose reads and writes ask the stage first. It has no descriptor for others."""

    def __init__(self, inner: Any, stage: Stage, path: str | os.PathLike[str]) -> None:
        self.inner = inner
        self._stage = stage
        self._path = path

    def readable(self) -> bool:
        return bool(self.inner.readable())

    def writable(self) -> bool:
        return bool(self.inner.writable())

    def seekable(self) -> bool:
        return bool(self.inner.seekable())

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[:_PIECE]
        data = self._read(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        pieces = iter(lambda: self._read(_PIECE), b"")
        return b"".join(pieces)

    def _read(self, length: int) -> bytes:
        with self._stage.request("read", length, self._path) as request:
            data: bytes = self.inner.read(length) or b""
            request.moved = len(data)
        return data

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")[:_PIECE]
        with self._stage.request("write", len(view), self._path) as request:
            written = self.inner.write(view)
            # Some file objects return nothing and have written all.
            request.moved = len(view) if written is None else written
        return request.moved

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.inner.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self.inner.tell())

    def truncate(self, size: int | None = None) -> int:
        return int(self.inner.truncate(size))

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                self.inner.close()


class _GatedFile(io.BufferedIOBase):
    """A buffered file over a raw one.

    NumPy reads and writes the buffered files of `io` by their descriptors, so this is none of them.
    """

    def __init__(self, file: io.BufferedReader | io.BufferedWriter | io.BufferedRandom) -> None:
        self._file: Any = file

    def readable(self) -> bool:
        return bool(self._file.readable())

    def writable(self) -> bool:
        return bool(self._file.writable())

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def _checked(self, name: str) -> Any:
        """A method of the file for reading, which a file for writing does not have."""
        if not self.readable():
            raise io.UnsupportedOperation("not readable")
        return getattr(self._file, name)

    def read(self, size: int | None = -1) -> bytes:
        return bytes(self._checked("read")(size))

    def read1(self, size: int = -1) -> bytes:
        return bytes(self._checked("read1")(size))

    def peek(self, size: int = 0) -> bytes:
        return bytes(self._checked("peek")(size))

    def readinto(self, buffer: Any) -> int:
        return int(self._checked("readinto")(buffer))

    def readinto1(self, buffer: Any) -> int:
        return int(self._checked("readinto1")(buffer))

    def readline(self, size: int | None = -1) -> bytes:
        return bytes(self._checked("readline")(-1 if size is None else size))

    def write(self, data: Any) -> int:
        return int(self._file.write(data))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def truncate(self, size: int | None = None) -> int:
        return int(self._file.truncate(size))

    def flush(self) -> None:
        if not self.closed:
            self._file.flush()

    def close(self) -> None:
        self._file.close()

    def commit(self) -> None:
        """Has a transaction of the wrapped file system keep what was written."""
        self._file.raw.inner.commit()

    def discard(self) -> None:
        """The opposite."""
        self._file.raw.inner.discard()


def gated(
    inner: Any, stage: Stage, path: str | os.PathLike[str], mode: str
) -> io.BufferedIOBase:
    """An open binary file, with reads and writes that are requests of a stage.

    ``mode`` is the one that it was opened with, and ``path`` is for rules.
    """
    raw = _GatedRaw(inner, stage, path)
    if "+" in mode:
        file = _GatedFile(io.BufferedRandom(raw, _BUFFER))
    elif "r" in mode:
        return _GatedFile(io.BufferedReader(raw, _BUFFER))
    else:
        file = _GatedFile(io.BufferedWriter(raw, _BUFFER))
    stage._files.add(file)
    return file
