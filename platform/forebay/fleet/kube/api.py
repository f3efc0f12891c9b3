"""Client of a Kubernetes API server.

Requests have deadlines, errors have types, lists come by page, and changes by watch.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias

import urllib3
from urllib3.exceptions import HTTPError, SSLError

from forebay.fleet.kube.api_errors import AccessRefused, ApiUnreachable, ObjectMissing, TooManyRequests, kube_error
from forebay.fleet.kube.connection import Connect, Connection

Object: TypeAlias = dict[str, Any]
"""Object of Kubernetes, as its JSON."""

DEADLINE_S = 10.0
ATTEMPTS = 3
PAGE_SIZE = 500
WATCH_S = 300
SILENCE_S = 90.0
"""Longest silence of a watch. A watch on a server that stopped is silent forever (measured by SIGSTOP)."""

_LONGEST_WAIT_S = 30.0
_A_DAY_S = 86400.0
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_JSON, _MERGE, _APPLY = "application/json", "application/merge-patch+json", "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class _Request:
    """One request.

    `silence_s`: longest wait for the next byte, None: the deadline.
    """

    verb: str
    path: str
    body: Object | None = None
    query: Mapping[str, object] = field(default_factory=dict)
    content: str = _JSON
    accept: str = _JSON
    silence_s: float | None = None
    is_stream: bool = False


class KubeApi:
    """Requests to one API server.

    Paths begin with "/api" or "/apis". Requests that may be repeated are sent up to 3 times, with a deadline of 10 s
    each. `create` is sent once: after a lost answer the object may be there, and only the caller can tell whether it is
    his.

    Raises `KubeError`s. Credentials are read again once after a 401, as they may have been renewed.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        cluster: str,
        deadline_s: float = DEADLINE_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.cluster, self._connect, self._deadline_s, self._sleep = cluster, connect, deadline_s, sleep
        self._connection: Connection = connect()

    def get(self, path: str, **query: object) -> Object:
        """Return an object, or one page of a list."""
        return self._json(_Request("GET", path, query=query))

    def exists(self, path: str) -> bool:
        """Whether an object exists.

        Its content is not sent, so a Secret stays secret.
        """
        try:
            self._json(_Request("GET", path, accept=_METADATA))
        except ObjectMissing:
            return False
        return True

    def clock(self) -> float:
        """Time of the server, in seconds since the epoch."""
        response = self._open(_Request("GET", "/version"))
        return parsedate_to_datetime(response.headers["Date"]).timestamp()

    def create(self, path: str, body: Object, *, dry_run: bool = False) -> Object:
        """Create an object.

        Unknown fields are refused. Returns it with the server's defaults.
        """
        return self._json(_Request("POST", path, body=body, query=_checked(dry_run)), attempts=1)

    def merge(self, path: str, body: Object) -> Object:
        """Change the fields in `body`. A null removes a field."""
        return self._json(_Request("PATCH", path, body=body, content=_MERGE))

    def apply(self, path: str, body: Object, *, manager: str = "forebay") -> Object:
        """Create an object, or apply `body` to it.

        Fields of other managers are changed too.
        """
        query = {"fieldManager": manager, "force": "true", **_checked(dry_run=False)}
        return self._json(_Request("PATCH", path, body=body, query=query, content=_APPLY))

    def replace(self, path: str, body: Object) -> Object:
        """Replace an object as it was read.

        Raises `ObjectChanged` if it was changed since.
        """
        return self._json(_Request("PUT", path, body=body, query=_checked(dry_run=False)))

    def delete(self, path: str, *, at_once: bool = False, uid: str | None = None) -> None:
        """Delete an object, after the objects that it owns.

        With `at_once`, without the time that a pod has to end. With `uid`, only the object that has it. Raises
        `ObjectChanged` for another one.
        """
        body: Object = {"propagationPolicy": "Foreground", **({"gracePeriodSeconds": 0} if at_once else {})}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        self._json(_Request("DELETE", path, body=body))

    def pages(self, path: str, **query: object) -> Iterator[Object]:
        """Yield a list in pages of 500.

        The last one has the version from which a watch goes on.
        """
        token = ""
        while True:
            page = self.get(path, limit=PAGE_SIZE, **({"continue": token} if token else {}), **query)
            yield page
            token = page["metadata"].get("continue", "")
            if not token:
                return

    def items(self, path: str, **query: object) -> Iterator[Object]:
        """Yield the objects of a list, read in pages."""
        for page in self.pages(path, **query):
            yield from page.get("items") or ()

    def watch(
        self, path: str, *, version: str, timeout_s: int = WATCH_S, selector: str = ""
    ) -> Iterator[tuple[str, Object]]:
        """Yield changes after `version` as (kind, object).

        The kind is "ADDED", "MODIFIED", "DELETED" or "BOOKMARK". The server ends it after `timeout_s` seconds, or
        before: go on from the last object's version. Raises `VersionExpired` if the server no longer has the version,
        and `ApiUnreachable` after a silence of 90 s.
        """
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        query |= {"timeoutSeconds": str(timeout_s), **by_label(selector)}
        for line in self._stream(_Request("GET", path, query=query, silence_s=SILENCE_S, is_stream=True)):
            event = json.loads(line)
            if event["type"] == "ERROR":
                status = event["object"]
                raise kube_error(self.cluster, "WATCH", path, status.get("code", 500), json.dumps(status).encode(), {})
            yield event["type"], event["object"]

    def lines(
        self, path: str, query: Mapping[str, object] | None = None, *, silence_s: float = _A_DAY_S
    ) -> Iterator[str]:
        """Yield the lines of a text, such as a log.

        With `follow="true"`, until it ends, or is silent for too long.
        """
        for line in self._stream(_Request("GET", path, query=query or {}, silence_s=silence_s, is_stream=True)):
            yield line.decode(errors="replace")

    def _json(self, request: _Request, *, attempts: int = ATTEMPTS) -> Object:
        for attempt in range(attempts):
            try:
                response = self._open(request)
                return self._object(request, response)
            except ApiUnreachable:
                if attempt == attempts - 1:
                    raise
                self._sleep(0.2 * 2**attempt * (1 + random.random()))  # noqa: S311 - jitter
        raise AssertionError("the last attempt returns or raises")

    def _object(self, request: _Request, response: urllib3.BaseHTTPResponse) -> Object:
        try:
            found: Object = json.loads(response.data)
        except (ValueError, HTTPError) as error:
            raise self._unreachable(request, error) from error
        return found

    def _open(self, request: _Request) -> urllib3.BaseHTTPResponse:
        """Send a request, and renew credentials once.

        It waits while the server refuses requests.
        """
        renewed = False
        while True:
            try:
                return self._send(request)
            except AccessRefused as error:
                if renewed or error.status != 401:
                    raise
                renewed, self._connection = True, self._connect()
            except TooManyRequests as error:
                wait = error.facts.get("retry_after_s")
                if not isinstance(wait, float) or wait > _LONGEST_WAIT_S:
                    raise
                self._sleep(wait)

    def _send(self, request: _Request) -> urllib3.BaseHTTPResponse:
        try:
            response = self._connection.pool.request(
                request.verb,
                self._connection.url(request.path, request.query),
                body=None if request.body is None else json.dumps(request.body),
                headers={"Accept": request.accept, "Content-Type": request.content, **self._connection.headers()},
                timeout=urllib3.Timeout(connect=self._deadline_s, read=request.silence_s or self._deadline_s),
                # Retries of urllib3 multiply a deadline by 4 (measured: 3 s took 12 s on a stopped server).
                retries=False,
                preload_content=not request.is_stream,
            )
            if response.status < 300:
                return response
            answer = response.data
        except HTTPError as error:
            raise self._unreachable(request, error) from error
        headers = dict(response.headers)
        raise kube_error(self.cluster, request.verb, request.path, response.status, answer, headers)

    def _stream(self, request: _Request) -> Iterator[bytes]:
        response = self._open(request)
        try:
            yield from _lines(response)
        except HTTPError as error:
            raise self._unreachable(request, error) from error
        finally:
            response.close()

    def _unreachable(self, request: _Request, error: Exception) -> ApiUnreachable:
        advice = (
            "Check the certificate authority and the expiry of the certificates in the kubeconfig."
            if isinstance(error, SSLError)
            else "Check the server's address, the network, and proxies on the way."
        )
        return ApiUnreachable(
            f"cluster {self.cluster} gave no answer to {request.verb} {request.path} "
            f"({type(error).__name__}: {error}). "
            f"{advice}",
            cluster=self.cluster,
            verb=request.verb,
            path=request.path,
        )


def by_label(selector: str) -> dict[str, str]:
    """Return the query for objects by label selector.

    Empty: all.
    """
    return {"labelSelector": selector} if selector else {}


def _checked(dry_run: bool) -> dict[str, object]:
    return {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(amt=65536, decode_content=True):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line)
    if rest:
        yield rest
