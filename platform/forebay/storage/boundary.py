"""Locations that a file of somebody else may name.

The author of a table or a manifest must not choose to which host this process sends its credentials, or which files of
other folders it reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from forebay.errors import InvalidOption
from forebay.runtime.uris import HADOOP_SCHEMES, split_options, with_options
from forebay.storage.arrow_stores import ARROW_SCHEMES
from forebay.storage.credentials import Credentials, granted
from forebay.storage.filesystem import Location, resolve_source, uri_below
from forebay.storage.hadoop.location import configured_hosts

Uri = str | os.PathLike[str]

_ABSOLUTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
SAME_STORE = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
"""Schemes of Hadoop and Google for a store, and ours."""
_HDFS_PORT = ":8020"
_KNOWN = ("s3", "gs", "abfs", "hdfs", "hf")
_AZURE = re.compile(r"([\w-]+@)?[\w-]+(\.(blob|dfs)\.core\.(windows\.net|chinacloudapi\.cn|usgovcloudapi\.net))?")
_WORD = r"[\w.:-]*"
_FREE_OPTIONS = {
    "s3": dict.fromkeys(
        ("region", "anonymous", "allow_bucket_creation", "check_directory_existence_before_creation"), r"[\w-]*"
    ),
    "gs": {"retry_limit_seconds": r"[\d.]+", "project_id": _WORD},
    "hdfs": {"replication": r"\d*", "user": _WORD},
}
"""Options that choose no host, no key and no file, and their values."""


class _Named(NamedTuple):
    """A file or folder, by store and decoded name.

    The name begins with a slash.
    """

    scheme: str
    host: str
    name: str


def allowed_locations(given: Uri | Sequence[Uri]) -> tuple[Location, ...]:
    """Locations of `allow_locations=`. Raises `InvalidOption`."""
    uris = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(uris, Sequence):
        raise InvalidOption(f"allow_locations={given!r:.200}: give a list of folders or files, as paths or URIs.")
    return tuple(resolve_source(uri) for uri in uris)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Folders that the files of a table must be in.

    Attributes:
        table: Description of the table, for errors.
        root: Folder of the table.
        allowed: Other locations that the user allows.
    """

    table: str
    root: Location
    allowed: tuple[Location, ...] = ()

    def uri_of(self, path: str, *, is_encoded: bool) -> str:
        """URI of a file that the table names.

        It is made of the location that the user named and the path below it: scheme, host and options of a table are
        only compared.

        Args:
            path: A path below the table, an absolute path on its store, or a URI.
            is_encoded: Whether the format percent-encodes its paths. They are decoded once.

        Raises:
            InvalidOption: The file is outside of the folder of the table and of all allowed locations.
        """
        named = self._named(path, is_encoded=is_encoded)
        for place in (self.root, *self.allowed):
            uri = _within(place, named)
            if uri is not None:
                return uri
        raise self.refusal(path, f"which is not below {self.root.uri}")

    def _named(self, path: str, *, is_encoded: bool) -> _Named:
        root = _identity(self.root)
        found = _ABSOLUTE.match(path)
        scheme, host, name = found[1] if found else "", "", path[found.end() :] if found else path
        if found and name.startswith("//"):
            host, slash, name = name[2:].partition("/")
            name = slash + name
        if is_encoded:
            if found and re.search(r"[?#]", host + name):
                raise self.refusal(path, "which has options or a fragment")
            try:
                name = unquote(name, errors="strict")
            except UnicodeDecodeError:
                raise self.refusal(path, "which is not UTF-8") from None
        if "\0" in name or ("\\" in name and ".." in re.split(r"[/\\]", name)):
            raise self.refusal(path, "which is no name of a file")
        if not found:
            scheme, host = root.scheme, root.host
            name = name if name.startswith("/") else f"{root.name.rstrip('/')}/{name}"
        named = _Named(*_store(scheme, host), name)
        if named.scheme != "file" and {".", ".."} & set(name.split("/")):
            raise self.refusal(path, "which has the segment . or ..")
        return named

    def refusal(self, path: str, why: str) -> InvalidOption:
        """Error with table, path and remedy. `why` begins with "which"."""
        folder = path.partition("?")[0].rpartition("/")[0]
        return InvalidOption(
            f"{self.table} names the file {path!r:.300}, {why}. The author of a table must not choose which files of "
            "others are read, and where credentials are sent. If the table is a shallow clone, or files were added to "
            f"it where they lie, and you trust it, allow their location: allow_locations=[{folder!r:.300}], or "
            "--allow-location. Otherwise rewrite the table.",
            table=self.table,
            path=path,
        )


def _identity(place: Location) -> _Named:
    if place.is_local:
        return _Named("file", "", place.path)
    scheme, _, rest = split_options(place.uri)[0].partition("://")
    host, _, name = rest.partition("/")
    host = host if _store(scheme, "")[0] == "abfs" else host.rpartition("@")[2]
    return _Named(*_store(scheme, host), "/" + (unquote(name) if scheme in ARROW_SCHEMES else name))


def _store(scheme: str, host: str) -> tuple[str, str]:
    scheme = SAME_STORE.get(scheme.lower(), scheme.lower()).replace("abfss", "abfs")
    if scheme == "file":
        return scheme, host if host != "localhost" else ""
    if scheme in HADOOP_SCHEMES:
        return scheme, host.lower().removesuffix(_HDFS_PORT)
    return scheme, host.lower() if scheme == "abfs" else host


def _within(place: Location, named: _Named) -> str | None:
    """URI of a file at or below `place`, or None."""
    scheme, host, base = _identity(place)
    if (scheme, host) != (named.scheme, named.host):
        return None
    if place.is_local:
        return _within_local(place.path, os.path.normpath("/" + named.name.lstrip("/")))
    base = base.rstrip("/")
    if named.name == base:
        return place.uri
    return uri_below(place, named.name[len(base) + 1 :]) if named.name.startswith(f"{base}/") else None


def _within_local(folder: str, path: str) -> str | None:
    # A link within a table that was unpacked from an archive may lead anywhere.
    real, base = os.path.realpath(path), os.path.realpath(folder)
    if not _is_at_or_below(real, base):
        return None
    return path if _is_at_or_below(path, folder) else folder.rstrip("/") + real[len(base.rstrip("/")) :]


def _is_at_or_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def is_name_below(root: str, name: str) -> bool:
    """Whether a stored `name` is a file below the folder `root`.

    >>> is_name_below("s3://bucket/a", "day=1/x.parquet")
    True
    >>> [is_name_below("s3://bucket/a", name) for name in ("../x", "%2e%2e/x", "/x", "x?endpoint_override=host")]
    [False, False, False, False]
    """
    folder, options = split_options(root)
    joined = f"{folder}/{name}"
    if split_options(with_options(joined, options))[0] != joined:
        return False
    decoded = unquote(name) if _scheme(root) in ARROW_SCHEMES else name
    segments = set(re.split(r"[/\\]", decoded))
    return decoded != "" and decoded[0] != "/" and "\0" not in decoded and not {".", ".."} & segments


def check_stored_uri(uri: str, what: str, own: Location | None, allowed: Sequence[Location] = ()) -> None:
    """Check a URI that a file holds, as `may_open`.

    Args:
        uri: The URI.
        what: Description of the file, for errors.
        own: Location of the file, as the user gave it, if it is a file.
        allowed: Other locations that the user allows.

    Raises:
        InvalidOption: The URI must not be opened.
    """
    if may_open(uri, own, allowed):
        return
    name, options = split_options(uri)
    shown = with_options(f"{name.partition('://')[0]}://{name.rpartition('@')[2]}" if "@" in name else name, options)
    raise InvalidOption(
        f"{what} names {shown!r:.300}. Its author must not choose where credentials are sent: absolute paths and "
        f"{', '.join(f'{each}://' for each in _KNOWN)} are accepted, without options for hosts, keys or files, and "
        "hosts of HDFS that HADOOP_CONF_DIR names. If you trust it, allow the location: "
        f"allow_locations=[{shown!r:.300}], or --allow-location.",
        uri=shown,
    )


def may_open(uri: str, own: Location | None, allowed: Sequence[Location] = ()) -> bool:
    """Whether a URI that a file holds may be opened. `own` is the file's location.

    It names a local path or a store of a known kind, without options that choose a host, a key or a local file.
    Anything else needs the user's word: the store and options of `own`, a location of `allowed` above it, or
    credentials that this process was given for that store.
    """
    is_plain = "\0" not in uri and not {".", ".."} & set(re.split(r"[/\\]", unquote(uri)))
    return is_plain and (_is_harmless(uri, own) or _is_given(uri, own, allowed))


def _is_harmless(uri: str, own: Location | None) -> bool:
    name, options = split_options(uri)
    if not options and uri.startswith("/"):
        return True
    return _has_known_host(name, own) and not _bound_options(uri)


def _is_given(uri: str, own: Location | None, allowed: Sequence[Location]) -> bool:
    if granted(uri) != Credentials():
        return True
    for place in (each for each in (own, *allowed) if each is not None and not each.is_local):
        is_there = _is_at_or_below(split_options(uri)[0], split_options(place.uri)[0])
        if place is own:
            scheme, host = _store(*_scheme_and_host(uri))
            here = _store(*_scheme_and_host(own.uri))
            is_bucket = scheme in ("s3", "gs") and _has_known_host(uri, own)
            is_there = scheme == here[0] and (is_bucket or host == here[1])
        if is_there and _bound_options(uri) == _bound_options(place.uri):
            return True
    return False


def _bound_options(uri: str) -> set[tuple[str, str]]:
    """Options that may choose a host, a key or a file."""
    name, options = split_options(uri)
    free = _FREE_OPTIONS.get(_store(*_scheme_and_host(name))[0], {})
    pairs = (option.partition("=") for option in options[1:].split("&") if option)
    return {(key, value) for key, _, value in pairs if not re.fullmatch(free.get(key, "(?!)"), value)}


def _scheme(uri: str) -> str:
    found = _ABSOLUTE.match(uri)
    return found[1].lower() if found else ""


def _scheme_and_host(name: str) -> tuple[str, str]:
    return _scheme(name), name.partition("://")[2].partition("/")[0]


def _has_known_host(name: str, own: Location | None) -> bool:
    """Whether the host of a URI was chosen by the user or the store."""
    scheme, host = _store(*_scheme_and_host(name))
    match scheme:
        case "memory":
            return True
        case "file":
            return host == ""
        case "s3" | "gs" | "hf":
            return re.fullmatch(r"(anonymous@)?[\w.-]+" if scheme == "gs" else r"[\w.-]+", host) is not None
        case "abfs":
            # A host of any other name is that of a service that is compatible with Azure's.
            return _AZURE.fullmatch(host) is not None
        case "hdfs" | "viewfs":
            host = host.rpartition("@")[2]
            is_own = own is not None and not own.is_local and _identity(own)[:2] == (scheme, host)
            return host == "" or is_own or host in configured_hosts()
    return False
