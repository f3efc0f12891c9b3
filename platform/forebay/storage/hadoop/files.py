"""HDFS as a file system of fsspec.

Through hdfs-native, for the bridge to pyarrow. Names are used as they are.
"""

from __future__ import annotations

import io
import secrets
from contextlib import suppress
from typing import Any

from forebay.storage.fsspec_bridge import AnsweredFiles
from forebay.storage.hadoop.clients import HadoopAddress, ask_name_node, plain_errors
from forebay.storage.hadoop.native import hdfs_native
from forebay.storage.range_reader import RangeReader

Facts = dict[str, Any]


class HadoopFiles(AnsweredFiles):
    """Files of one HDFS.

    A file that is written appears, whole, when it is closed.
    """

    protocol = "hdfs"
    root_marker = "/"
    cachable = False

    def __init__(self, address: HadoopAddress, replication: int | None = None) -> None:
        super().__init__()
        self._address = address
        self._replication = replication

    def __reduce__(self) -> tuple[Any, ...]:
        return HadoopFiles, (self._address, self._replication)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        # hdfs-native's own class cuts names at ? and #.
        return "/" + path.strip("/")

    def info(self, path: str, **_options: object) -> Facts:
        name = self._strip_protocol(path)
        return _facts(ask_name_node(self._address, lambda client: client.get_file_info(name)))

    def ls(self, path: str, detail: bool = True, **_options: object) -> list[Any]:
        name = self._strip_protocol(path)
        found = ask_name_node(self._address, lambda client: list(client.list_status(name)))
        return [_facts(status) if detail else status.path for status in found]

    # fsspec omits folders where storage does not answer.
    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_options: object
    ) -> Any:
        found: dict[str, Facts] = {}
        folders = [(self._strip_protocol(path), 1)]
        while folders:
            folder, depth = folders.pop()
            for facts in self.ls(folder):
                is_folder = facts["type"] == "directory"
                if withdirs or not is_folder:
                    found[facts["name"]] = facts
                if is_folder and (maxdepth is None or depth < maxdepth):
                    folders.append((facts["name"], depth + 1))
        ordered = {name: found[name] for name in sorted(found)}
        return ordered if detail else list(ordered)

    def mkdir(self, path: str, create_parents: bool = True, **_options: object) -> None:
        name = self._strip_protocol(path)
        ask_name_node(self._address, lambda client: client.mkdirs(name, 0o755, create_parent=create_parents))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if not exist_ok and self.exists(path):
            raise FileExistsError(path)
        self.mkdir(path)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:  # noqa: ARG002 - fsspec's
        name = self._strip_protocol(path)
        if not ask_name_node(self._address, lambda client: client.delete(name, recursive)):
            raise FileNotFoundError(path)

    def rm_file(self, path: str) -> None:
        self.rm(path)

    def rmdir(self, path: str) -> None:
        self.rm(path)

    def mv(self, path1: str, path2: str, overwrite: bool = True, **_options: object) -> None:
        """Rename in one step.

        Without `overwrite`, raises `OSError` if there is a file already.
        """
        old, new = self._strip_protocol(path1), self._strip_protocol(path2)
        ask_name_node(self._address, lambda client: client.rename(old, new, overwrite))

    def open(self, path: str, mode: str = "rb", **_options: object) -> Any:
        name = self._strip_protocol(path)
        if mode == "rb":
            return _Reader(ask_name_node(self._address, lambda client: client.read(name)))
        return _Writer(self, name)

    def create(self, name: str) -> Any:
        """Writer of a new file.

        Readers see the file from its first block on.
        """
        options = hdfs_native().WriteOptions()
        options.overwrite = True
        if self._replication is not None:
            options.replication = self._replication
        return ask_name_node(self._address, lambda client: client.create(name, options))


def neighbour(path: str) -> str:
    """Hidden name of a draft beside `path`."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.{secrets.token_hex(6)}"


def _facts(status: Any) -> Facts:
    kind = "directory" if status.isdir else "file"
    name = status.path.rstrip("/") or "/"
    return {"name": name, "size": status.length, "type": kind, "mtime": status.modification_time / 1000}


class _Reader(RangeReader):
    """An open file.

    hdfs-native ends the thread with a panic for bytes past the end, which are never asked for.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(len(inner))
        self._inner = inner

    def read_range(self, start: int, stop: int) -> bytes:
        with plain_errors():
            return bytes(self._inner.read_range(start, stop - start))


class _Writer(io.RawIOBase):
    """A draft beside a file.

    It replaces the file in one step when it is closed.
    """

    def __init__(self, files: HadoopFiles, name: str) -> None:
        self._files, self._name, self._draft = files, name, neighbour(name)
        self._inner = files.create(self._draft)
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, content: Any) -> int:
        data = bytes(content)
        with plain_errors():
            self._inner.write(data)
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        try:
            with plain_errors():
                self._inner.close()
            self._files.mv(self._draft, self._name)
        except OSError:
            with suppress(OSError):  # why it failed is known already
                self._files.rm(self._draft)
            raise
