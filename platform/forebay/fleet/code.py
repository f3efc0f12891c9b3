"""Code of a job: an archive in storage.

It has the files of the folder that Git does not ignore, and is named by its digest.

A container fetches the code, and runs a command in it:

python -m forebay.fleet.code STORAGE DIGEST FOLDER [-- COMMAND...]
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from forebay.errors import InvalidOption
from forebay.runtime.formatting import bytes_text
from forebay.storage.atomic import read_small, write_atomically
from forebay.storage.filesystem import resolve

FOLDER = ".code"
"""Folder of the archives below a storage."""
LARGEST_BYTES = 200 * 2**20
"""Bytes of all files, before compression, above which a folder is refused: data does not belong into it."""
SKIPPED = frozenset({".git", ".venv", "__pycache__", ".ipynb_checkpoints", "node_modules"})
"""Folders that are left out where Git does not say what is ignored."""

_SAME_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """Zip file of a folder.

    `digest` is the SHA-256 of `content`, as 64 hexadecimal digits.
    """

    content: bytes
    digest: str


def pack(folder: str | os.PathLike[str], storage: str | None = None) -> CodeArchive:
    """Archive of `folder`, with its submodules. Links are followed where they stay inside.

    `storage` of runs stays out, if that is a folder inside: it has the archives of earlier submissions.

    Raises `InvalidOption` for a folder that is not there, has no files, or has more than 200 MiB, and for a file that
    cannot be read or named.
    """
    root = Path(folder).resolve()
    if not root.is_dir():
        raise InvalidOption(f"{root} is not a folder. Give the folder of the job file.", folder=str(root))
    files = sorted(set(_files(root, root, frozenset())))
    runs = None if storage is None else _local_folder(storage)
    if runs is not None and root in runs.parents:
        files = [each for each in files if runs not in each.resolve().parents]
    _check_size(root, files)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for each in files:
            # The time of a file says nothing about its content, and would make two archives differ.
            entry = zipfile.ZipInfo(_name(root, each), _SAME_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if each.stat().st_mode & stat.S_IXUSR else 0o644) << 16
            archive.writestr(entry, _content(each))
    content = buffer.getvalue()
    return CodeArchive(content, hashlib.sha256(content).hexdigest())


def unpack(content: bytes, digest: str, into: str | os.PathLike[str]) -> None:
    """Write the files of an archive into the folder `into`.

    Raises `InvalidOption` if the archive is not the one with this digest, or names a file outside of `into`.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise InvalidOption(
            f"the archive of the code has the SHA-256 {found}, and the job was submitted with {digest}. "
            "Submit it again.",
            found=found,
            digest=digest,
        )
    target = Path(into).resolve()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            path = (target / entry.filename).resolve()
            if not path.is_relative_to(target):
                raise InvalidOption(f"the archive names a file outside of its folder: {entry.filename!r}.")
            if entry.is_dir():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(entry))
            path.chmod(entry.external_attr >> 16 & 0o777 or 0o644)


def _files(folder: Path, root: Path, parents: frozenset[Path]) -> Iterator[Path]:
    """Yield the files of a folder below `root`.

    Git names submodules, other repositories and links to folders, and not what is in them. `parents` are the folders
    around this one, to which a link may lead back.
    """
    around = parents | {folder.resolve()}
    for each in _listed(folder):
        if not (each.is_dir() or each.is_file()):  # a link to itself cannot be resolved
            continue
        found = each.resolve()
        if not found.is_relative_to(root):
            continue
        if each.is_file():
            yield each
        elif found not in around:
            yield from _files(each, root, around)


def _local_folder(storage: str) -> Path | None:
    location = resolve(storage)
    return Path(location.path).resolve() if location.is_local else None


def _listed(root: Path) -> Iterator[Path]:
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True)  # noqa: S603 - words of this file
    except (OSError, subprocess.CalledProcessError):
        yield from _walked(root)
        return
    yield from (root / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)


def _walked(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [each for each in folders if each not in SKIPPED]
        yield from (path for each in folders if (path := Path(folder) / each).is_symlink())
        yield from (Path(folder) / name for name in names)


def _name(root: Path, path: Path) -> str:
    name = path.relative_to(root).as_posix()
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidOption(
            f"the name of {os.fsencode(path)!r} is not UTF-8. Rename the file, or add it to .gitignore."
        ) from None
    return name


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidOption(
            f"{path} belongs to the code of the job and cannot be read ({error.strerror}). Let this user read the "
            "file, or add it to .gitignore."
        ) from error


def _check_size(root: Path, files: list[Path]) -> None:
    sizes = sorted(((each.stat().st_size, each) for each in files), reverse=True)
    total = sum(size for size, _ in sizes)
    if not files:
        raise InvalidOption(f"{root} has no files that Git does not ignore. Give the folder of the job file.")
    if total > LARGEST_BYTES:
        largest = ", ".join(f"{path.relative_to(root)} ({bytes_text(size)})" for size, path in sizes[:5])
        raise InvalidOption(
            f"the code in {root} has {bytes_text(total)}, and at most {bytes_text(LARGEST_BYTES)} can be sent to the "
            f"workers. The largest files: {largest}. Add data to .gitignore, or start in a smaller folder.",
            bytes=total,
        )


def code_uri(storage: str, digest: str) -> str:
    """URI of an archive."""
    return f"{storage.rstrip('/')}/{FOLDER}/{digest}.zip"


def store_code(storage: str, archive: CodeArchive) -> str:
    """Store an archive below `storage`, and return its URI.

    An archive that is there is not written again. Raises `OSError` if storage refuses.
    """
    uri = code_uri(storage, archive.digest)
    location = resolve(uri)
    if location.fs.get_file_info(location.path).size != len(archive.content):
        write_atomically(uri, archive.content)
    return uri


def fetch_code(storage: str, digest: str, into: str | os.PathLike[str]) -> None:
    """Read an archive and unpack it into a folder.

    Raises `InvalidOption` if it is not there.
    """
    uri = code_uri(storage, digest)
    location = resolve(uri)
    if location.fs.get_file_info(location.path).type != fs.FileType.File:
        raise InvalidOption(
            f"{location.uri} is not there. Submit the job again: that stores its code.", uri=location.uri
        )
    unpack(read_small(location), digest, into)


def main(words: Sequence[str]) -> None:
    """Fetch the code and run the command.

    An existing folder is not fetched again. It is whole: jobs of a shared cluster use one folder.
    """
    storage, digest, folder, *rest = words
    if not Path(folder).exists():
        _fetch_whole(storage, digest, Path(folder))
    if rest:
        os.chdir(folder)
        os.execvp(rest[1], rest[1:])  # noqa: S606 - the user's own command


def _fetch_whole(storage: str, digest: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".code-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        whole = Path(temporary) / "code"
        whole.mkdir()
        fetch_code(storage, digest, whole)
        try:
            whole.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was first
                raise


if __name__ == "__main__":
    main(sys.argv[1:])
