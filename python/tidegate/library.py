"""The C library: it is found, checked and declared once, when something first needs it."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from typing import NoReturn

from .errors import NoLibrary, OtherVersion, of_status

__all__ = ["fail", "load", "loaded", "wrong_type"]

_POINTER = ctypes.c_void_p
"""A handle, or the address of a structure whose type the caller knows."""


@functools.cache
def load() -> ctypes.CDLL:
    """The library: the one that is named, that came with this package, or that the system has."""
    from . import __version__

    beside = pathlib.Path(__file__).with_name("libtidegate.so")
    path = os.environ.get("TIDEGATE_LIBRARY") or (beside if beside.exists() else "libtidegate.so")
    try:
        found = ctypes.CDLL(os.fspath(path))
    except OSError as error:
        raise NoLibrary(
            f"{error}; build it (cargo build --release -p tidegate-capi) and install this package"
            " by pip, or name it in TIDEGATE_LIBRARY"
        ) from None
    found.tidegate_version.restype = ctypes.c_uint32
    major, minor, patch = map(int, __version__.split("."))
    if found.tidegate_version() != major << 16 | minor << 8 | patch:
        raise OtherVersion(f"{path} is not of release {__version__}; build it from the same source")
    found.tidegate_error_detail.restype = ctypes.c_char_p
    _declare_stage(found)
    return found


def _declare_stage(found: ctypes.CDLL) -> None:
    text, number, size = ctypes.c_char_p, ctypes.c_uint32, ctypes.c_size_t
    for name, arguments in {
        "stage_open": [_POINTER, _POINTER],
        "stage_close": [_POINTER],
        "stage_ready": [_POINTER],
        "stage_info": [_POINTER, _POINTER],
        "collect": [_POINTER, _POINTER, size, _POINTER],
        "enforce": [_POINTER, number, ctypes.c_uint64, text, _POINTER],
        "complete": [_POINTER, ctypes.c_uint64],
        "scope_enter": [text],
        "scope_leave": [ctypes.c_uint16],
    }.items():
        getattr(found, f"tidegate_{name}").argtypes = arguments
    found.tidegate_scope_enter.restype = ctypes.c_uint16
    found.tidegate_scope_leave.restype = None


def loaded() -> ctypes.CDLL | None:
    """The library, if something has needed it already."""
    return load() if load.cache_info().currsize else None


def fail(status: int) -> NoReturn:
    """Raises the error of the call that has returned ``status`` on this thread."""
    raise of_status(status, load().tidegate_error_detail().decode())


def wrong_type(name: str, wanted: str, value: object) -> TypeError:
    """The error for an argument called ``name``."""
    return TypeError(f"{name} must be {wanted}, not {type(value).__name__}")
