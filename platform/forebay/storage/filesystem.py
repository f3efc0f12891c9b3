"""Resolution of paths and URIs to file systems.

pyarrow's own come first, fsspec serves all others.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

import fsspec
import pyarrow as pa
from pyarrow import fs

from forebay.errors import InvalidOption, ReadFailed
from forebay.runtime.uris import HADOOP_SCHEMES, SCHEME, has_local_name, is_hadoop, split_options, with_options
from forebay.storage.arrow_stores import ARROW_SCHEMES, open_store
from forebay.storage.credentials import Credentials, granted, is_secret, redact, without_credentials
from forebay.storage.fsspec_bridge import Bridge, open_fsspec
from forebay.storage.hadoop import location as hadoop
from forebay.storage.hugging_face.location import open_repository
from forebay.storage.hugging_face.repository import SCHEME as HUB
from forebay.storage.hugging_face.repository import names_repository
from forebay.storage.retry import NotAFile

_OWN = (*ARROW_SCHEMES, *HADOOP_SCHEMES, HUB)


class Location(NamedTuple):
    """A file or folder in storage.

    `path` is its name within `fs`. `uri` is its canonical URI, or an absolute path if it is local.
    """

    fs: fs.FileSystem
    path: str
    uri: str

    @property
    def is_local(self) -> bool:
        """Whether `path` can be opened by the operating system."""
        return isinstance(self.fs, fs.LocalFileSystem)

    def child(self, name: str) -> Location:
        """File or folder `name` in this folder."""
        return Location(self.fs, f"{self.path.rstrip('/')}/{name}", below(self.uri, name))

    def open_input(self) -> pa.NativeFile:
        """Open the file for random access.

        Raises `NotAFile` for a local pipe or device: who opens a pipe waits for a writer. Raises `OSError`.
        """
        if self.is_local:
            mode = os.stat(self.path).st_mode  # noqa: PTH116 - a path takes as long as the call
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise NotAFile(f"{self.path} is a pipe or a device, and a file is expected")
        return self.fs.open_input_file(self.path)

    def __repr__(self) -> str:
        # Without its path: the path of a signed http:// URI holds the signature.
        return f"Location({self.uri!r})"


def resolve(uri: str | os.PathLike[str] | Location) -> Location:
    """Location that `uri` names, which need not exist.

    A location is returned as it is. Credentials in the URI are not part of the location's `uri`. This process uses
    them whenever it opens that storage.

    Args:
        uri: A local path or a URI. A path is relative to the working directory, and `~` is the home folder. A URI is
            `file://`, one of pyarrow's (`s3://`, `gs://`, `abfs://`, with its options after a `?`), `hdfs://`, `hf://`,
            or one of fsspec's.

    Raises:
        InvalidOption: The scheme is unknown, or the URI is malformed or empty.
        ReadFailed: The file system cannot be reached.
    """
    return uri if isinstance(uri, Location) else _resolve(uri, once=False)


def resolve_source(uri: str | os.PathLike[str] | Location) -> Location:
    """Same as `resolve`, with a client that never retries.

    For reads that `forebay.storage.retry` repeats.
    """
    return _resolve(uri.uri if isinstance(uri, Location) else uri, once=True)


def _resolve(uri: str | os.PathLike[str], *, once: bool) -> Location:
    if not isinstance(uri, str | os.PathLike):
        raise InvalidOption(f"{uri!r:.200} is not a location. Give a path or a URI.")
    _refuse_empty(text := os.fspath(uri))
    found = SCHEME.match(text)
    if found is None or has_local_name(text):
        named = _home_of(text) if found is None else Path(_path_of_file_uri(text))
        # Not Path.resolve: a dataset behind a link keeps its name when the link moves to the next version.
        path = os.path.normpath(named.absolute())
        return Location(fs.LocalFileSystem(), path, path)
    scheme = found[1].lower()
    full = scheme + text[len(scheme) :]
    if is_hadoop(full):
        hadoop.refuse_unknown_options(full)
        return _hadoop_location(without_credentials(full), scheme, once=once)
    public = without_credentials(full)
    if scheme == HUB and names_repository(public.partition("://")[2]):
        files, path = open_repository(public)
        return Location(fs.PyFileSystem(Bridge(files)), path, public)
    if scheme not in ARROW_SCHEMES:
        return _fsspec_location(public, scheme)
    _refuse_odd_name(public, full)
    try:
        parts = urlsplit(public)
    except ValueError as error:
        raise InvalidOption(f"{public} is not a URI: {error}.", uri=public) from None
    store = open_store(scheme, parts.netloc, parts.query, granted(public))
    path = (store.prefix + unquote(parts.path.lstrip("/"))).rstrip("/") or "/"
    return Location(store.once if once else store.fs, path, public)


def _home_of(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        user = text.partition("/")[0]
        raise InvalidOption(f"{text} begins with {user}, and no such user has a home here ({error}).") from None


def _refuse_odd_name(public: str, full: str) -> None:
    """Refuse a URI of Arrow's stores that would name something else."""
    name = split_options(public)[0].partition("://")[2].partition("/")[2]
    if "#" in public:
        found = "has a #, behind which nothing would count. In a name, write it %23"
    elif full.endswith("?"):
        found = "ends in a ?, which begins the options. In a name or a pattern, write it %3F"
    elif "//" in f"/{name.rstrip('/')}":
        found = "has an empty part (//), and Arrow reads no such key. Write one /, or copy the object to another key"
    else:
        return
    raise InvalidOption(f"{public} {found}.", uri=public)


def _hadoop_location(public: str, scheme: str, *, once: bool) -> Location:
    if granted(public).password:
        raise InvalidOption(f"{public}: HDFS has no passwords. Use Kerberos, or leave it out.", uri=public)
    full, options = split_options(public)
    netloc, _, name = full.partition("://")[2].partition("/")
    files = hadoop.open_hadoop(scheme, netloc, options.lstrip("?"), once=once)
    return Location(fs.PyFileSystem(Bridge(files)), "/" + name.strip("/"), public)


def _fsspec_location(public: str, scheme: str) -> Location:
    if scheme not in fsspec.available_protocols():
        raise InvalidOption(
            f"{public}: no file system is known for {scheme}://. Use a local path, {', '.join(_OWN)}, or one "
            f"of fsspec's: {', '.join(sorted(set(fsspec.available_protocols()) - set(_OWN)))}.",
            scheme=scheme,
        )
    try:
        filesystem, path = open_fsspec(_with_credentials(public, granted(public)))
    except ImportError as error:
        raise InvalidOption(
            f"{public}: {scheme}:// needs another package: {redact(str(error))}", scheme=scheme
        ) from None
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidOption(f"{public} is not a URI that fsspec accepts: {redact(repr(error))}", uri=public) from None
    except OSError as error:
        raise ReadFailed(
            f"The file system of {public} cannot be opened: {redact(str(error))}. Check its address and credentials.",
            uri=public,
        ) from None
    return Location(filesystem, path, public)


def _with_credentials(public: str, credentials: Credentials) -> str:
    scheme, _, rest = public.partition("://")
    head, _, query = rest.partition("?")
    netloc, slash, path = head.partition("/")
    user, _, host = netloc.rpartition("@")
    password = f":{credentials.password}" if credentials.password else ""
    login = (user or credentials.user) + password
    at = "@" if login else ""
    options = "&".join(filter(None, [query, *(f"{name}={value}" for name, value in credentials.options)]))
    return f"{scheme}://{login}{at}{host}{slash}{path}" + (f"?{options}" if options else "")


def _path_of_file_uri(uri: str) -> str:
    """Path after `file://` or `file://localhost`.

    `?` and `#` may be part of a file's name.
    """
    host, _, path = uri.partition("://")[2].partition("/")
    if host not in ("", "localhost"):
        host = host.rpartition("@")[2]
        shown = f"file://{host}/{path}"
        raise InvalidOption(
            f"{shown!r} names the host {host!r}. A file URI is absolute: file:///{host}/... or a plain path.", uri=shown
        )
    return "/" + unquote(path)


def below(uri: str, name: str) -> str:
    """URI of `name` within the folder `uri`.

    Keeps the options of `uri` (`?region=...`).

    >>> below("s3://bucket/runs/?region=eu-west-1", "ctr")
    's3://bucket/runs/ctr?region=eu-west-1'
    """
    folder, options = split_options(uri)
    _refuse_empty(folder)
    return with_options(f"{folder.rstrip('/')}/{name}", options)


def _refuse_empty(path: str) -> None:
    """Raise `InvalidOption` for what an unset variable of a shell gives: it would be this folder, or the root."""
    if not path.strip():
        raise InvalidOption(
            f"{path!r} names no file or folder. Give a path or a URI: a variable of a shell may be unset."
        )


def uri_below(folder: Location, name: str) -> str:
    """URI of the file `name` below `folder`, in a listing or table.

    Raises `InvalidOption` for a name that fsspec would read as options.

    >>> uri_below(resolve("/data"), "day=1/a b?.parquet")
    '/data/day=1/a b?.parquet'
    """
    if folder.is_local:
        return f"{folder.path.rstrip('/')}/{name}"
    # Arrow decodes the paths of its URIs. fsspec uses them as they are.
    if not isinstance(folder.fs, fs.PyFileSystem):
        return below(folder.uri, quote(name, safe="/=,:@+"))
    if "?" in name and not is_hadoop(folder.uri) and _has_options(folder.uri.partition("://")[0], name):
        raise InvalidOption(
            f"{folder.uri} holds {name!r:.200}, and on {folder.uri.partition('://')[0]}:// what is behind the ? would "
            "be read as options. Rename the file.",
            uri=folder.uri,
        )
    return below(folder.uri, name)


def _has_options(scheme: str, name: str) -> bool:
    """Whether fsspec would read options or credentials in a name."""
    keys = [option.partition("=")[0] for option in name.partition("?")[2].split("&") if option]
    is_option = bool(keys) and all(key.isidentifier() for key in keys)
    return scheme == HUB or is_option or any(is_secret(scheme, key) for key in keys)


def name_in_storage(uri: str, skip: int = 0) -> str:
    """Path of a file in its storage, without `uri`'s first `skip` characters.

    Arrow's stores decode the paths of URIs. All others use them as they are.

    >>> name_in_storage("s3://b/k=x%252Fy/a.parquet?region=e", len("s3://b"))
    'k=x%2Fy/a.parquet'
    """
    name = split_options(uri)[0][skip:].lstrip("/")
    return unquote(name) if uri.partition("://")[0].lower() in ARROW_SCHEMES and not has_local_name(uri) else name


def path_below(uri: str, folder: str) -> str:
    """Path of the file `uri` within `folder`.

    `below(folder, path)` is `uri` again.
    """
    name, options = split_options(folder)
    file = split_options(uri)[0] if is_hadoop(uri) else uri.removesuffix(options)
    return file[len(name) :].lstrip("/")
