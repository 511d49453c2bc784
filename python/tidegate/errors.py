"""The errors of this package. Each has the words of the library, which say what helps."""

from __future__ import annotations

__all__ = [
    "Contended",
    "Damaged",
    "Error",
    "Forked",
    "Full",
    "KeyLength",
    "Late",
    "NoLibrary",
    "NotAdmitted",
    "OtherVersion",
    "Throttled",
    "Unreachable",
    "ValueLength",
    "of_status",
]


class Error(Exception):
    """What went wrong, in words. ``status`` is the number that the C interface gives it."""

    status: int = 0


class NoLibrary(Error, OSError):
    """The C library cannot be loaded."""


class Unreachable(Error, ConnectionError):
    """No controller or data node listens there, or it is gone; or the controller sends no rules."""


class NotAdmitted(Error, PermissionError):
    """The data node does not let this process in, or not for this tenant."""


class OtherVersion(Error):
    """The data node, the store in its memory or the library is of another release."""


class KeyLength(Error, ValueError):
    """The key has no bytes, or more than KEY_MAX."""


class ValueLength(Error, ValueError):
    """The value has more than VALUE_MAX bytes, or with its key more than ENTRY_MAX."""


class Full(Error):
    """The store has no space for the key or its value."""


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
    20: Unreachable,
    21: Unreachable,
}


def of_status(status: int, detail: str) -> Error:
    """The error that a status of the C interface stands for."""
    error = _ERRORS.get(status, Error)(detail)
    error.status = status
    return error
