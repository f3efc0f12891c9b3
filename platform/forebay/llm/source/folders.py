"""Folders of models on any storage, as local folders."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from pyarrow import fs

from forebay.data.transform.fingerprint.values import digest
from forebay.errors import InvalidOption
from forebay.llm.source.hub_model import hub_copy, hub_model
from forebay.storage.filesystem import Location, resolve
from forebay.storage.globs import children
from forebay.storage.private_folder import unsafe_folder

_SAMPLES, _SAMPLE_BYTES = 9, 1 << 16
_MOST_HEADER_BYTES = 100 << 20
"""Longest header that the safetensors library takes."""


def small_files_of(model: str) -> Location:
    """Folder of a model, perhaps without its weights.

    On any storage. For a model of the Hub, a copy that may lack the weights.

    Raises `InvalidOption` for a model that the Hub does not give.
    """
    hub = hub_model(model)
    return resolve(model if hub is None else hub_copy(hub, with_weights=False))


def local_copy(folder: str, *, with_weights: bool = True) -> str:
    """Local path of a model's folder.

    The folder itself, or a copy that all processes of the machine share.

    The copy is named after the URI, sizes and times of all files, and appears by a rename. Subfolders are left out.
    `folder` may name a model of the Hub, which is downloaded, its weights only `with_weights`.

    Raises `InvalidOption` for a folder that does not exist.
    """
    hub = hub_model(folder)
    if hub is not None:
        return hub_copy(hub, with_weights=with_weights)
    location = resolve(folder)
    if location.is_local:
        if not Path(location.path).is_dir():
            raise InvalidOption(f"{location.uri} is not a folder. Give the folder of a model.", path=location.uri)
        return location.path
    files = [info for info in children(location.fs, location.path) if info.type == fs.FileType.File]
    if not files:
        raise InvalidOption(f"{location.uri} holds no files. Give the folder of a model.", path=location.uri)
    version = sorted((info.base_name, info.size, info.mtime_ns) for info in files)
    target = _copies() / digest(repr((location.uri, version)).encode())[:32]
    if not target.exists():
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target.parent))
        try:
            for info in files:
                fs.copy_files(info.path, str(draft / info.base_name), location.fs, fs.LocalFileSystem())
            draft.rename(target)
        except OSError:
            # Another process was first.
            if not target.exists():
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return str(target)


def copy_headers(location: Location, to: Path, *, with_weights: bool) -> None:
    """Copy a model's folder with the headers of its weights.

    The copies of the weights are as long as the files, and sparse. Subfolders are left out.

    Raises `InvalidOption` for a file of weights that was cut.
    """
    for info in children(location.fs, location.path):
        if info.type != fs.FileType.File:
            continue
        if info.base_name.endswith(".json"):
            fs.copy_files(info.path, str(to / info.base_name), location.fs, fs.LocalFileSystem())
        elif with_weights and info.base_name.endswith(".safetensors"):
            with location.fs.open_input_file(info.path) as file:
                length = int.from_bytes(file.read(8), "little")
                header = file.read(min(length, _MOST_HEADER_BYTES))
            _check_length(f"{location.uri}/{info.base_name}", header, length, info.size)
            with (to / info.base_name).open("wb") as copy:
                copy.write(length.to_bytes(8, "little") + header)
                copy.truncate(info.size)


def _check_length(uri: str, header: bytes, length: int, size: int) -> None:
    try:
        facts = json.loads(header)
        ends = [each["data_offsets"][1] for name, each in facts.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise InvalidOption(f"{uri} is not a file of safetensors, or was cut. Copy it again.", path=uri) from error
    if size != 8 + length + max(ends, default=0):
        raise InvalidOption(
            f"{uri} has {size:,} bytes, and its header says {8 + length + max(ends, default=0):,}: it was cut or "
            "damaged. Copy it again.",
            path=uri,
        )


def folder_digest(folder: str) -> str:
    """SHA-256 of a folder's file names, sizes and samples.

    Samples are 64 KiB at 9 offsets of each file.

    Copies of a model have the same digest. Models that were trained in other ways differ in nearly all weights.
    For a model of the Hub, it is the digest of its name and commit: its weights are not needed here.
    """
    hub = hub_model(folder)
    if hub is not None:
        return digest(str(hub).encode())
    location = resolve(folder)
    facts: list[object] = []
    for info in sorted(children(location.fs, location.path), key=lambda each: str(each.base_name)):
        if info.type == fs.FileType.File and info.base_name.endswith((".json", ".safetensors")):
            facts.append((info.base_name, info.size))
            last = max(info.size - _SAMPLE_BYTES, 0)
            with location.fs.open_input_file(info.path) as file:
                facts += [
                    digest(file.read_at(_SAMPLE_BYTES, part * last // (_SAMPLES - 1))) for part in range(_SAMPLES)
                ]
    return digest(repr(facts).encode())


def _copies() -> Path:
    """Folder of the copies. Raises `InvalidOption` if other users can change it."""
    path = Path(tempfile.gettempdir()) / f"forebay-models-{os.geteuid()}"
    with suppress(FileExistsError):  # also a link or a file of another user
        path.mkdir(mode=0o700, parents=True)
    # Not the folders above: /tmp of a pod has no sticky bit, and no other users.
    if problem := unsafe_folder(path.lstat()):
        raise InvalidOption(
            f"{path}, where models are copied to, {problem}: others could change what is trained. Set TMPDIR to a "
            "folder of your own.",
            path=str(path),
        )
    return path
