"""A file system of fsspec whose reads and writes pass the gates of a stage.

It wraps any other file system, local or remote, and needs no shim::

    import fsspec
    from tidegate.filesystem import GatedFileSystem

    files = GatedFileSystem(fsspec.filesystem("file"), tenant="training")
    with files.open("/data/shard-0.npy") as file:
        file.read()

Where this package is installed by pip, the protocol ``tidegate`` wraps what stands behind it::

    fsspec.open("tidegate::s3://bucket/shard-0.npy", tidegate={"tenant": "training"})

This module needs fsspec (``pip install './python[fsspec]'``, or Debian's python3-fsspec).
"""

from __future__ import annotations

import os
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

from .stage import Request, Stage, gated, shared

__all__ = ["GatedFileSystem"]


class GatedFileSystem(AbstractFileSystem):
    """The file system ``fs``, or the one that ``target_protocol`` and ``target_options`` name.

    Its requests are those of ``stage``, or of the stage that this process has for ``tenant`` and
    the controller at ``socket``. With ``fo``, paths are relative to it.

    The bytes of a read or a write are counted as the program moves them: what the wrapped file
    system fetches ahead, or repeats, is not. Calls about names are requests without bytes. A copy
    within the file system is a read and a write of the file's size.

    Rules match the path in the wrapped file system, with a slash before it: ``/bucket/key``.

    It can be pickled if it was made without ``stage``; another process then opens its own.
    """

    protocol = "tidegate"
    root_marker = ""

    def __init__(
        self,
        fs: Any = None,
        *,
        stage: Stage | None = None,
        tenant: str | None = None,
        socket: str | os.PathLike[str] | None = None,
        fo: str | None = None,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if (fs is None) == (target_protocol is None):
            raise ValueError("name either a file system or target_protocol")
        self.fs = fsspec.filesystem(target_protocol, **(target_options or {})) if fs is None else fs
        self.stage = stage or shared(tenant, None if socket is None else os.fspath(socket))
        self._root = None if fo is None else str(self.fs._strip_protocol(fo))

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fspath(path)
        text = text[len("tidegate://") :] if text.startswith("tidegate://") else text
        return text.rstrip("/") or text[:1]

    def _target(self, path: Any) -> Any:
        """A path of ours in the wrapped file system."""
        if isinstance(path, (list, tuple)):
            return [self._target(one) for one in path]
        own = self._strip_protocol(path)
        if self._root is None:
            return self.fs._strip_protocol(own)
        return "/".join(part for part in (self._root.rstrip("/"), own.strip("/")) if part)

    def _own(self, target: str) -> str:
        """The opposite."""
        if self._root is None:
            return target
        return target[len(self._root.rstrip("/")) :].lstrip("/")

    def _named(self, info: Any) -> Any:
        """A description of a file under its path here."""
        return {**info, "name": self._own(info["name"])}

    def _request(self, operation: str, target: Any, length: int = 0) -> Request:
        one = target[0] if isinstance(target, list) and target else target
        return self.stage.request(operation, length, f"/{str(one).lstrip('/')}")

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        target = self._target(path)
        if cache_options is not None:
            options["cache_options"] = cache_options
        with self._request("open", target):
            inner = self.fs.open(target, mode, block_size, autocommit=autocommit, **options)
        return gated(inner, self.stage, f"/{target.lstrip('/')}", mode)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        target = self._target(path)
        with self._request("list", target):
            found = self.fs.ls(target, detail=True, **options)
        return [self._named(one) if detail else self._own(one["name"]) for one in found]

    def info(self, path: str, **options: Any) -> Any:
        target = self._target(path)
        with self._request("stat", target):
            return self._named(self.fs.info(target, **options))

    def created(self, path: str) -> Any:
        target = self._target(path)
        with self._request("stat", target):
            return self.fs.created(target)

    def modified(self, path: str) -> Any:
        target = self._target(path)
        with self._request("stat", target):
            return self.fs.modified(target)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        target = self._target(path)
        with self._request("link", target):
            self.fs.mkdir(target, create_parents=create_parents, **options)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        target = self._target(path)
        with self._request("link", target):
            self.fs.makedirs(target, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        target = self._target(path)
        with self._request("link", target):
            self.fs.rmdir(target)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        target = self._target(path)
        with self._request("link", target):
            self.fs.rm(target, recursive=recursive, maxdepth=maxdepth)

    def rm_file(self, path: str) -> None:
        target = self._target(path)
        with self._request("link", target):
            self.fs.rm_file(target)

    def touch(self, path: str, truncate: bool = True, **options: Any) -> None:
        target = self._target(path)
        with self._request("open", target):
            self.fs.touch(target, truncate=truncate, **options)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        source, target = self._target(path1), self._target(path2)
        length = self.fs.size(source) or 0
        with self._request("read", source, length):
            pass
        with self._request("write", target, length):
            self.fs.cp_file(source, target, **options)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        source, target = self._target(path1), self._target(path2)
        with self._request("link", target):
            self.fs.mv(source, target, **options)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.fs.invalidate_cache(None if path is None else self._target(path))
        super().invalidate_cache(path)
