"""Conditional creation of a small file.

Of all processes that try, on any machine, one succeeds. The file appears whole or not at all.

Stores differ in how they offer it, and pyarrow offers it for none of them:
- local disks and NFS: a hard link to a complete neighbour. The second link fails.
- S3 and alike: `If-None-Match: *`, by boto3 (the extra `s3`).
- Google Cloud Storage: `ifGenerationMatch=0`, by its JSON API.
- HDFS: a rename without overwrite, by hdfs-native or WebHDFS.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyarrow import fs

from forebay.errors import InvalidOption
from forebay.runtime.extras import extra_package
from forebay.storage.arrow_stores import arguments_of
from forebay.storage.atomic import UMASK, find_small, look_again, make_folder
from forebay.storage.credentials import redact, redacting
from forebay.storage.file_lock import NO_LOCKS, FileLock
from forebay.storage.filesystem import Location, resolve
from forebay.storage.fsspec_bridge import Bridge
from forebay.storage.hadoop.files import HadoopFiles, neighbour

ANSWER_S = 20.0
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
_TAKEN = ("PreconditionFailed", "412")
_BUSY = ("ConditionalRequestConflict", "409")
_TRIES = 4


class NoExclusiveCreation(InvalidOption):
    """A storage without conditional creation, or one that ignores the condition."""


def create_exclusively(uri: str | Location, content: bytes) -> bool:
    """Create the file `uri`.

    Returns whether this call created it: False if there was one already.

    `content` is unique to the caller: a client whose request was done, and its answer lost, finds its own file.

    Raises:
        NoExclusiveCreation: The store has no such operation, or overwrote the file in spite of the condition.
        InvalidOption: The package for this store is not installed.
        OSError: The store refuses.
    """
    location = resolve(uri)
    if location.is_local:
        lock = _link(Path(location.path), content)
        if lock is not None:  # not asked for: a descriptor would stay open for each file
            lock.release()
        return lock is not None
    with redacting():
        try:
            is_created = _create(location, content)
            # A store that ignores the condition accepts a second one, too.
            is_replaced = is_created and not _is_trusted(location) and _create(location, content)
        except OSError:  # the answer may have been lost
            if find_small(location) != content:
                raise
            return True
        if is_replaced:
            raise NoExclusiveCreation(
                f"{location.uri} was created twice, though the request said not to replace it: this store ignores "
                f"conditions. {_ADVICE}",
                uri=location.uri,
            )
    return is_created or find_small(location) == content


def create_locked(uri: str | Location, content: bytes) -> FileLock | None:
    """Create a local file that is locked from the start.

    Returns its lock, or None if there was a file already.

    The lock ends with its process: a file that can be locked belongs to a process that has ended. On a file system
    without locks, the returned lock holds nothing. Raises as `create_exclusively`.
    """
    return _link(Path(resolve(uri).path), content)


def _link(path: Path, content: bytes) -> FileLock | None:
    make_folder(path.parent)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    lock = FileLock(descriptor)
    try:
        with open(descriptor, "wb", closefd=False) as file:  # a disk without room may take a part at first
            file.write(content)
        os.fchmod(descriptor, 0o666 & ~UMASK)
        # Before the link: after a crash, a claim that is there but empty would be read.
        os.fsync(descriptor)
        _lock(descriptor)
        _link_once(draft, path)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, FileExistsError):
            return None
        if error.errno in _NO_LINKS:
            from forebay.storage.private_folder import mount_of  # noqa: PLC0415 - few commands need it

            on = f" is on {mount.title} and" if (mount := mount_of(path)) is not None else ""
            raise NoExclusiveCreation(
                f"{path.parent}{on} has no hard links ({error}). {_ADVICE}", uri=str(path)
            ) from error
        raise
    finally:
        with suppress(FileNotFoundError):
            Path(draft).unlink()
    return lock


def _link_once(draft: str, path: Path) -> None:
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise
        # A client of NFS repeats a request whose answer was lost, and is then told that the file exists. With `soft`
        # it gives up, and the server may have done it.
        look_again(path.parent)
        try:
            is_ours = path.samefile(draft)
        except FileNotFoundError:
            is_ours = False
        if not is_ours:
            raise


def _lock(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def _create(location: Location, content: bytes) -> bool:
    match location.fs:
        case fs.S3FileSystem():
            return _put_s3(location, content)
        case fs.GcsFileSystem():
            return _post_gcs(location, content)
        case fs.PyFileSystem(handler=Bridge(fs=HadoopFiles() as files)):
            return _rename_hdfs(files, location, content)
        case fs.PyFileSystem(handler=Bridge() as bridge) if "webhdfs" in _protocols(bridge):
            return _rename_webhdfs(bridge.fs, location, content)
    raise NoExclusiveCreation(
        f"{location.uri}: this store cannot create a file exclusively. {_ADVICE}", uri=location.uri
    )


def _is_trusted(location: Location) -> bool:
    """Whether the store itself decides.

    Many servers speak S3 or Google's API, and some ignore conditions.
    """
    return not isinstance(location.fs, fs.S3FileSystem | fs.GcsFileSystem)


def _put_s3(location: Location, content: bytes) -> bool:
    with extra_package("boto3", f"{location.uri}: {_ONCE}"):
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - optional extra
    bucket, _, key = location.path.partition("/")
    client = _s3_client(_frozen(arguments_of(location.fs)), os.getpid())
    for _ in range(_TRIES):
        try:
            client.put_object(Bucket=bucket, Key=key, Body=content, IfNoneMatch="*")
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _BUSY:  # another creation or deletion is under way: the store asks to try again
                continue
            if code in _TAKEN:
                return False
            raise OSError(redact(f"{location.uri}: {error}")) from None
        except BotoCoreError as error:
            raise OSError(redact(f"{location.uri}: {error}")) from None
        return True
    raise OSError(f"{location.uri}: the store answered {_TRIES} times that another request is under way")


_ONCE = "a run on this store, so that it trains once if it is started twice,"
_Frozen = tuple[tuple[str, Any], ...]


def _frozen(arguments: dict[str, Any]) -> _Frozen:
    names = ("access_key", "secret_key", "session_token", "region", "scheme", "endpoint_override", "anonymous")
    return tuple((name, arguments[name]) for name in names if arguments.get(name))


@lru_cache(maxsize=16)
def _s3_client(frozen: _Frozen, _pid: int) -> Any:
    import boto3  # noqa: PLC0415 - optional extra
    from botocore import UNSIGNED  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    given = dict(frozen)
    endpoint = given.get("endpoint_override")
    if endpoint and "://" not in endpoint:  # AWS_ENDPOINT_URL has its scheme
        endpoint = f"{given.get('scheme', 'https')}://{endpoint}"
    config = Config(
        connect_timeout=ANSWER_S / 2,
        read_timeout=ANSWER_S,
        retries={"mode": "standard", "max_attempts": _TRIES},
        s3={"addressing_style": "path" if endpoint else "auto"},
        signature_version=UNSIGNED if given.get("anonymous") else None,
    )
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=given.get("region"),
        aws_access_key_id=given.get("access_key"),
        aws_secret_access_key=given.get("secret_key"),
        aws_session_token=given.get("session_token"),
        config=config,
    )


def _post_gcs(location: Location, content: bytes) -> bool:
    with extra_package("requests", f"{location.uri}: {_ONCE}"):
        import requests  # noqa: PLC0415 - only for this store; Ray brings it

    arguments = arguments_of(location.fs)
    bucket, _, name = location.path.partition("/")
    host = arguments.get("endpoint_override") or "storage.googleapis.com"
    address = f"{arguments.get('scheme') or 'https'}://{host}/upload/storage/v1/b/{bucket}/o"
    query = f"uploadType=media&ifGenerationMatch=0&name={quote(name, safe='')}"
    try:
        answer = _gcs_session(arguments, location).post(f"{address}?{query}", data=content, timeout=ANSWER_S)
    except requests.RequestException as error:
        raise OSError(redact(f"{location.uri}: {error}")) from None
    if answer.status_code == 412:
        return False
    if not answer.ok:
        raise OSError(f"{location.uri}: the store answered {answer.status_code} {redact(answer.text[:200])}")
    return True


def _gcs_session(arguments: dict[str, Any], location: Location) -> Any:
    import requests  # noqa: PLC0415

    if arguments.get("anonymous"):
        return requests.Session()
    if token := arguments.get("access_token"):
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {token}"
        return session
    with extra_package("google-auth", f"{location.uri}: {_ONCE}"):
        import google.auth  # noqa: PLC0415 - Ray brings it; other installations may lack it
        from google.auth.transport.requests import AuthorizedSession  # noqa: PLC0415
    scopes = ["https://www.googleapis.com/auth/devstorage.read_write"]
    return AuthorizedSession(google.auth.default(scopes=scopes)[0])


def _rename_hdfs(files: HadoopFiles, location: Location, content: bytes) -> bool:
    draft = neighbour(location.path)
    with files.create(draft) as stream:
        stream.write(content)
    try:
        files.mv(draft, location.path, overwrite=False)
    except OSError:  # the type of the refusal differs with the version of the server: look
        if not files.exists(location.path):
            raise
        files.rm(draft)
        return False
    return True


def _rename_webhdfs(store: Any, location: Location, content: bytes) -> bool:
    draft = neighbour(location.path)
    store.makedirs(draft.rpartition("/")[0], exist_ok=True)
    with store.open(draft, "wb") as stream:
        stream.write(content)
    # The NameNode answers false if the target exists. fsspec drops the answer, but then the neighbour is still there.
    store.mv(draft, location.path)
    if not store.exists(draft):
        return True
    store.rm(draft)
    return False


def _protocols(bridge: Bridge) -> tuple[str, ...]:
    protocol = bridge.fs.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


_ADVICE = (
    "Without that, two starts of one run cannot be told apart. Use storage with it: a local disk, NFS, S3, Google "
    "Cloud Storage, HDFS."
)
