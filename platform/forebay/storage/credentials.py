"""Credentials from URIs.

This process keeps them to open storage. No URI that is shown contains them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise, takewhile
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus, unquote

from forebay.errors import ForebayError, InvalidOption
from forebay.runtime.foreign_code import replaced_errors
from forebay.runtime.uris import SCHEME, split_options, with_options

# An option that is not listed here counts as a credential: a misspelt `secret_kye` must not be printed either.
PUBLIC_OPTIONS: dict[str, frozenset[str]] = {
    "s3": frozenset(
        (
            "allow_bucket_creation",
            "allow_bucket_deletion",
            "allow_delayed_open",
            "anonymous",
            "check_directory_existence_before_creation",
            "endpoint_override",
            "region",
            "scheme",
            "smart_defaults",
            "tls_ca_dir_path",
            "tls_ca_file_path",
            "tls_verify_certificates",
        )
    ),
    "gs": frozenset(("scheme", "endpoint_override", "retry_limit_seconds", "project_id")),
    "abfs": frozenset(
        ("blob_storage_authority", "dfs_storage_authority", "enable_tls", "credential_kind", "tenant_id", "client_id")
    ),
    "hdfs": frozenset(("user", "replication", "kerberos_principal", "kerberos_keytab", "kerberos_cache")),
}
_SAME_OPTIONS = {"gcs": "gs", "abfss": "abfs", "viewfs": "hdfs"}
_SECRET_NAME = re.compile(
    r"sig|secret|token|passw|passphrase|pwd|credential|(access|account|api|private).?key|^key$|^auth|bearer|jwt|sas"
    r"|delegation|connection.?string|^code$|^policy$|^pat$|^pw$|^pass$|^otp$|hmac|oauth|ticket|session|assertion",
    re.IGNORECASE,
)
_SECRET_WORDS = frozenset(
    ("secret", "token", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "jwt", "bearer", "sas")
)
_KEY_OWNERS = frozenset(("access", "account", "api", "auth", "encryption", "private", "secret", "signing", "storage"))
_HIDDEN_USERS = ("s3", "http", "https")
"""Schemes of access keys and tokens before the host. Elsewhere a container, an account or a Unix user stands there."""
_LOGIN = re.compile(rf"((?:\b(?:{'|'.join(_HIDDEN_USERS)})://)|(?://[^\s/@:'\"]*:))[^\s/@'\"?#,]+@", re.IGNORECASE)
"""Where a text holds the key or token of a URI that this process has never opened."""
# Shorter ones would also remove parts of ordinary words from messages.
_LEAST_LETTERS = 6
_HIDDEN = "***"
_KEPT_KINDS = (
    *(FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, FileExistsError, TimeoutError),
    *(OSError, ValueError),
)


class Credentials(NamedTuple):
    """Secret parts of a URI.

    `user` and `password` stand before the host, `options` after the `?`, all as written.
    """

    user: str = ""
    password: str = ""
    options: tuple[tuple[str, str], ...] = ()

    def option(self, name: str) -> str:
        """Value of an option, decoded.

        Empty if it was not given.
        """
        return unquote(dict(self.options).get(name, ""))

    def __repr__(self) -> str:
        return f"Credentials({_HIDDEN})"


class _Storage(NamedTuple):
    """Storage that credentials are valid for. `options` are unordered."""

    scheme: str
    host: str
    options: frozenset[str]


_granted: dict[_Storage, tuple[tuple[str, Credentials], ...]] = {}
_secrets: set[str] = set()


def without_credentials(uri: str) -> str:
    """`uri` without its credentials, safe to print and store.

    This process keeps the credentials, and uses them whenever it opens that storage.

    >>> without_credentials("s3://AKIA:sesame@bucket/clicks?region=eu-west-1&session_token=abc")
    's3://bucket/clicks?region=eu-west-1'

    Raises `InvalidOption` for credentials in a URI within a URI (`zip://a.parquet::https://...`).
    """
    if _has_chained(uri):
        raise InvalidOption(
            "The URI behind :: holds credentials, which would be shown. Leave them out, and set them in the "
            "environment or the configuration of that store."
        )
    public, credentials = _split(uri)
    if credentials is not None:
        _grant(public, credentials)
    return public


def has_credentials(uri: str) -> bool:
    """Whether `uri` has credentials. Unlike `without_credentials`, it keeps none of them."""
    return _split(uri)[1] is not None or _has_chained(uri)


def granted(uri: str) -> Credentials:
    """Credentials of this process for `uri`.

    Among those with its host and options, the nearest folder wins.
    """
    storage, path = _storage(uri)
    segments = path.split("/")
    best = max(reversed(_granted.get(storage, ())), key=lambda one: _shared(one[0].split("/"), segments), default=None)
    return best[1] if best else Credentials()


class Access:
    """Credentials of some URIs, for another process of the job.

    Unpickling grants them there.

    Empty until it is pickled, so that only the pickle ever holds secrets.
    """

    def __init__(self, uris: Iterable[str]) -> None:
        self._storages = {_storage(uri)[0] for uri in uris if "://" in uri}

    @property
    def digest(self) -> str:
        """SHA-256 hex digest of the credentials.

        It changes with them, and does not reveal them.
        """
        facts = sorted((storage.scheme, storage.host, path, given) for storage, path, given in self._entries())
        return hashlib.sha256(repr([(*names, tuple(given)) for *names, given in facts]).encode()).hexdigest()

    def __reduce__(self) -> tuple[Callable[..., Access], tuple[Any, ...]]:
        return _arrive, (self._storages, self._entries())

    def _entries(self) -> list[tuple[_Storage, str, tuple[Any, ...]]]:
        return [
            (storage, path, tuple(given)) for storage in self._storages for path, given in _granted.get(storage, ())
        ]


def _arrive(storages: set[_Storage], entries: list[tuple[_Storage, str, tuple[Any, ...]]]) -> Access:
    for storage, path, parts in entries:
        _keep(storage, path, Credentials(*parts))
    access = Access(())
    access._storages = storages  # noqa: SLF001 - its own maker
    return access


def redact(text: str) -> str:
    """`text` with every secret of this process, and each login in a URI, replaced by `***`."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return _LOGIN.sub(rf"\1{_HIDDEN}@", text) if "@" in text else text


def redacted(error: Exception) -> Exception:
    """Return `error` without secrets.

    If it or one of its causes contains one: an error of the nearest type. Otherwise `error` itself.
    """
    if not any(redact(str(one)) != str(one) for one in _chain(error)):
        return error
    if isinstance(error, ForebayError):
        facts = {name: redact(fact) if isinstance(fact, str) else fact for name, fact in error.facts.items()}
        return type(error)(redact(str(error)), **facts)
    kind: type[Exception] = next((kind for kind in _KEPT_KINDS if isinstance(error, kind)), RuntimeError)
    return kind(redact(str(error)))


@contextmanager
def redacting() -> Iterator[None]:
    """Remove the secrets from errors that the block raises."""
    with replaced_errors(redacted, is_cause_shown=False):
        yield


def _has_chained(uri: str) -> bool:
    """Whether a URI that fsspec chains behind `::` has credentials."""
    chained = [each for each in uri.split("::") if SCHEME.match(each)]
    return any(_split(each)[1] is not None for each in chained[1:])


def _split(uri: str) -> tuple[str, Credentials | None]:
    full, marked = split_options(uri)
    scheme, _, head = full.partition("://")
    netloc, slash, path = head.partition("/")
    _refuse_slash(scheme, netloc, path)
    before, at, host = netloc.rpartition("@")
    user, colon, password = before.partition(":")
    hides_user = scheme.lower() in _HIDDEN_USERS
    options = [option for option in marked[1:].split("&") if option]
    secret = [option for option in options if is_secret(scheme, option.partition("=")[0])]
    if not (secret or colon or (hides_user and user)):
        return uri, None
    public = [option for option in options if option not in secret]
    shown = "" if hides_user or not at else user + at
    pairs = tuple((name, value) for name, _, value in (option.partition("=") for option in secret))
    name = with_options(f"{scheme}://{shown}{host}{slash}{path}", "?" + "&".join(public) if public else "")
    return name, Credentials(user, password, pairs)


def is_secret(scheme: str, option: str) -> bool:
    """Whether the value of `option` may be a credential."""
    public = PUBLIC_OPTIONS.get(_SAME_OPTIONS.get(scheme, scheme))
    return _SECRET_NAME.search(option) is not None if public is None else option not in public


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name usually holds a secret.

    >>> [is_secret_name(name) for name in ("HF_TOKEN", "aws_secret_access_key", "dbPassword", "TOKENIZERS_PARALLELISM")]
    [True, True, True, False]
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("-", "_").split("_")
    if _SECRET_WORDS.intersection(words) or any(word.endswith(("password", "apikey", "secret")) for word in words):
        return True
    return any(word == "key" and before in _KEY_OWNERS for before, word in pairwise(words))


def _refuse_slash(scheme: str, netloc: str, path: str) -> None:
    if scheme == "s3" and ":" in netloc and "@" not in netloc and "@" in path:
        raise InvalidOption(
            "The secret key in this s3:// URI holds a / and so ends too early. Write %2F for each / and %2B for each "
            "+, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead."
        )


def _grant(public: str, credentials: Credentials) -> None:
    if granted(public) != credentials:
        _keep(*_storage(public), credentials)


def _keep(storage: _Storage, path: str, credentials: Credentials) -> None:
    others = tuple(one for one in _granted.get(storage, ()) if one[0] != path)
    _granted[storage] = (*others, (path, credentials))
    secrets = [credentials.user if storage.scheme in _HIDDEN_USERS else "", credentials.password]
    secrets += [value for _, value in credentials.options]
    spelled = {spell(secret) for secret in secrets for spell in (str, unquote, _quoted, _quoted_plus)}
    _secrets.update(secret for secret in spelled if len(secret) >= _LEAST_LETTERS)


def _quoted(secret: str) -> str:
    return quote(unquote(secret), safe="")


def _quoted_plus(secret: str) -> str:
    return quote_plus(unquote(secret), safe="")


def _storage(uri: str) -> tuple[_Storage, str]:
    name, options = split_options(uri)
    scheme, _, rest = name.partition("://")
    host, _, path = rest.partition("/")
    return _Storage(scheme, host, frozenset(options[1:].split("&"))), path.rstrip("/")


def _shared(one: list[str], other: list[str]) -> int:
    """Number of leading segments that two paths have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
