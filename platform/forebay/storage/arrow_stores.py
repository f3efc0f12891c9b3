"""pyarrow's own file systems, with credentials and limited retries.

The credentials are not in their URI.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import pyarrow as pa
from pyarrow import fs

from forebay.errors import InvalidOption, ReadFailed
from forebay.storage.credentials import Credentials, redact

ARROW_SCHEMES = ("file", "s3", "gs", "gcs", "abfs", "abfss")

_PROBE = "forebay-probe"
_S3_CREDENTIALS = ("access_key", "secret_key", "session_token")
# Options that `S3FileSystem()` has no parameter for: such a file system is used as the URI creates it.
_S3_URI_ONLY = ("tls_ca_dir_path", "tls_verify_certificates", "smart_defaults")
_AZURE_NAMED = ("account_key", "client_secret")


class Store(NamedTuple):
    """A file system and the prefix of its paths.

    `once` is the same one without retries of its own. `prefix` is a bucket, or `/`.
    """

    fs: fs.FileSystem
    once: fs.FileSystem
    prefix: str


def open_store(scheme: str, netloc: str, query: str, credentials: Credentials) -> Store:
    """Return the store of a URI, opened with `credentials`.

    Takes the scheme, the authority and the public options of the URI.

    Each store is created once per process. Raises `InvalidOption` or `ReadFailed`, without the credentials in the text.
    """
    # Keyed by process too: the clients' own threads do not survive a fork.
    return _open_store(scheme, netloc, query, credentials, os.getpid())


@lru_cache(maxsize=64)
def _open_store(scheme: str, netloc: str, query: str, credentials: Credentials, _pid: int) -> Store:
    shown = f"{scheme}://{netloc}/" + (f"?{query}" if query else "")
    try:
        filesystem, path = _from_uri(scheme, netloc, query, credentials)
    except (pa.ArrowInvalid, ValueError) as error:
        hint = ". A ? begins the options: in a name or a pattern, write it %3F" if query or credentials.options else ""
        raise InvalidOption(
            f"{shown} is not a URI that pyarrow accepts: {redact(str(error))}{hint}", uri=shown
        ) from None
    except OSError as error:
        raise ReadFailed(
            f"The file system of {shown} cannot be opened: {redact(str(error))}. Check its address and credentials.",
            uri=shown,
        ) from None
    return Store(filesystem, _without_retries(filesystem, query), path.removesuffix(_PROBE))


def _from_uri(scheme: str, netloc: str, query: str, credentials: Credentials) -> tuple[fs.FileSystem, str]:
    """Same as `FileSystem.from_uri`, with credentials where pyarrow accepts them."""
    if scheme == "s3":
        return _s3(netloc, query, credentials)
    if scheme in ("abfs", "abfss"):
        return _azure(scheme, netloc, query, credentials)
    user, at, host = netloc.rpartition("@")
    password = f":{credentials.password}" if credentials.password else ""
    options = "&".join(filter(None, [query, *(f"{name}={value}" for name, value in credentials.options)]))
    uri = f"{scheme}://{user}{password}{at}{host}/{_PROBE}" + (f"?{options}" if options else "")
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(uri)
    return found


def _s3(netloc: str, query: str, credentials: Credentials) -> tuple[fs.FileSystem, str]:
    unknown = [name for name, _ in credentials.options if name not in _S3_CREDENTIALS]
    if unknown:
        raise ValueError(f"it has no option {' or '.join(map(repr, unknown))}")
    key, secret = credentials.user, credentials.password
    pairs = [pair for pair in parse_qsl(query) if pair[0] != "anonymous"]
    public = "&".join(part for part in query.split("&") if not part.startswith("anonymous="))
    user = f"{key}:{secret}@" if key else ""
    filesystem, path = _in_region(f"s3://{user}{netloc}/{_PROBE}" + (f"?{public}" if public else ""))
    given: dict[str, Any] = {name: credentials.option(name) for name in _S3_CREDENTIALS if credentials.option(name)}
    if dict(parse_qsl(query)).get("anonymous") == "true":
        given = {"anonymous": True}
    if given:
        filesystem = fs.S3FileSystem(**_settings(filesystem, dict(pairs)) | given)
    return filesystem, path


def _in_region(uri: str) -> tuple[fs.FileSystem, str]:
    """Same as `FileSystem.from_uri`, where Amazon cannot be asked for the bucket's region.

    Without `region=` and an endpoint, Arrow asks Amazon, whatever `AWS_REGION` says. A network without a way there has
    a gateway to its own region alone.
    """
    found: tuple[fs.FileSystem, str]
    try:
        found = fs.FileSystem.from_uri(uri)
    except OSError as error:
        if "resolving region" not in str(error):
            raise
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if not region:
            raise OSError(
                f"{error}. Amazon was asked for the region of the bucket: write it as ?region=eu-west-1 behind the "
                "URI, or set AWS_REGION; AWS_ENDPOINT_URL is the address of another store"
            ) from None
        found = fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}region={region}")
    return found


def _azure(scheme: str, netloc: str, query: str, credentials: Credentials) -> tuple[fs.FileSystem, str]:
    # pyarrow drops a password in the authority silently (seen in 26.0.1).
    filesystem, path = fs.FileSystem.from_uri(f"{scheme}://{netloc}/{_PROBE}" + (f"?{query}" if query else ""))
    given = {name: credentials.option(name) for name in _AZURE_NAMED if credentials.option(name)}
    if credentials.password:
        given["account_key"] = unquote(credentials.password)
    sas = "&".join(f"{name}={value}" for name, value in credentials.options if name not in _AZURE_NAMED)
    if sas and "sig=" not in sas:
        raise ValueError(f"it has no option {' or '.join(name for name, _ in credentials.options)}")
    if sas:
        given["sas_token"] = f"?{sas}"
    return (fs.AzureFileSystem(**arguments_of(filesystem) | given) if given else filesystem), path


def _without_retries(filesystem: fs.FileSystem, query: str) -> fs.FileSystem:
    """Return the file system without its own retries.

    For reads that `storage.retry` repeats: a client that retries too would make one read sixteen.

    Azure's client has no option for that. It repeats a request up to three times, within a few seconds.
    """
    options = dict(parse_qsl(query))
    if isinstance(filesystem, fs.S3FileSystem) and not options.keys() & set(_S3_URI_ONLY):
        once = fs.AwsStandardS3RetryStrategy(max_attempts=1)
        return fs.S3FileSystem(**_settings(filesystem, options), retry_strategy=once)
    if isinstance(filesystem, fs.GcsFileSystem) and "retry_limit_seconds" not in options:
        return fs.GcsFileSystem(**arguments_of(filesystem) | {"retry_time_limit": timedelta(seconds=1)})
    return filesystem


def writing_at_once(filesystem: fs.FileSystem) -> fs.FileSystem:
    """Return the file system with uploads in the writing thread.

    By default, pyarrow uploads to S3 in its own threads.
    """
    if not isinstance(filesystem, fs.S3FileSystem):
        return filesystem
    return fs.S3FileSystem(**_settings(filesystem, {}) | {"background_writes": False})


def _settings(filesystem: fs.FileSystem, options: dict[str, str]) -> dict[str, Any]:
    if options.keys() & set(_S3_URI_ONLY):
        only = ", ".join(sorted(options.keys() & set(_S3_URI_ONLY)))
        raise ValueError(f"{only} cannot be combined with access_key=, session_token= or anonymous=")
    arguments = arguments_of(filesystem)
    proxy = arguments["proxy_options"]
    arguments["proxy_options"] = proxy if proxy["host"] else None
    # Empty means "from the environment" here, but not to the constructor.
    return {name: value for name, value in arguments.items() if value not in ("", None)}


def arguments_of(filesystem: fs.FileSystem) -> dict[str, Any]:
    """Constructor arguments of a file system.

    From its pickle representation (pyarrow 20 to 26).
    """
    arguments: dict[str, Any] = filesystem.__reduce__()[1][0]
    return {name: value for name, value in arguments.items() if value != ""}
