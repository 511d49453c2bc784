"""Contexts: what the requests of a thread are for."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
from collections.abc import Iterator
from typing import Any

from .library import loaded, wrong_type

__all__ = ["scope"]

_log = logging.getLogger("tidegate")


@contextlib.contextmanager
def scope(context: str) -> Iterator[None]:
    """Puts the requests of this thread into a context with this name, until the block ends.

    A rule of the policy with ``context`` gives them a tenant, and so its class and its limits. The
    shim of ``tidegate run`` tags the system calls of the thread, and needs no library for it. In
    a program without the shim, requests of a :class:`tidegate.Stage` have the context if the
    stage was opened before. Without shim and stage a scope changes nothing, and the first one
    writes that to the log ``tidegate`` at the level of debugging.

    Scopes nest, and belong to the thread that has entered them: a block with ``await`` in it would
    also apply to other tasks of the thread. As a decorator, it is around each call of a function,
    and has no effect on the body of a coroutine or a generator, which runs after the call.

    Names are cut after 63 bytes, and a process has at most 255 of them; later ones are no context.
    Raises ``ValueError`` for a name with a zero byte.
    """
    if not isinstance(context, str):
        raise wrong_type("context", "str", context)
    name = context.encode()
    if b"\0" in name:
        raise ValueError("the name of a context has no zero byte")
    if (shim := _shim()) is not None:
        outer = shim(name, len(name), 0)
        try:
            yield
        finally:
            shim(None, 0, outer)
    elif (library := loaded()) is not None:
        outer = library.tidegate_scope_enter(name)
        try:
            yield
        finally:
            library.tidegate_scope_leave(outer)
    else:
        _note_no_shim()
        yield


@functools.cache
def _shim() -> Any:
    """The function of the shim that enters contexts; None if the shim is not in this process.

    It takes a name with its length, or no name and the context to return to. It takes some 20 ns,
    so it keeps Python's lock.
    """
    try:
        enter = ctypes.PyDLL(None).tidegate_shim_enter
    except AttributeError:
        return None
    enter.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint16]
    enter.restype = ctypes.c_uint16
    return enter


@functools.cache
def _note_no_shim() -> None:
    _log.debug("scopes change nothing: this program runs without `tidegate run` and has no stage")
