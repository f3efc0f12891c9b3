"""Errors of a Kubernetes API server, by remedy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forebay.errors import ExitCode, ForebayError

_NO_KIND = "This cluster does not know the kind: install KubeRay 1.7 or newer, with its CRDs."


class KubeError(ForebayError):
    """An API server refused a request, or did not respond.

    Facts: `cluster`, `verb`, `path`, `status`.
    """


class ApiUnreachable(KubeError):
    """The API server did not respond, returned a 5xx, or returned invalid JSON.

    The request may have been carried out.
    """

    exit_status = ExitCode.FAILED


class AccessRefused(KubeError):
    """Unknown credentials, or no permission (401, 403)."""


class QuotaExceeded(KubeError):
    """The quota of the namespace is exceeded (403)."""


class NamespaceEnds(KubeError):
    """The namespace is being deleted (403)."""


class ObjectMissing(KubeError):
    """The object, or its kind, does not exist (404)."""


class ObjectExists(KubeError):
    """There is an object of this name (409)."""


class ObjectChanged(KubeError):
    """Conflict: the object was changed since, or by another manager (409)."""

    exit_status = ExitCode.FAILED


class VersionExpired(KubeError):
    """The version of a watch is too old (410).

    List again.
    """

    exit_status = ExitCode.FAILED


class ObjectInvalid(KubeError):
    """The object is invalid (400, 422).

    It has an unknown field or a wrong type, or breaks a rule.
    """


class TooManyRequests(KubeError):
    """The server refuses requests for a while (429).

    Fact: `retry_after_s`.
    """

    exit_status = ExitCode.FAILED


def kube_error(cluster: str, verb: str, path: str, status: int, body: bytes, headers: Mapping[str, str]) -> KubeError:
    """Return the error of an answer without success."""
    answer = _parsed(body)
    text = str(answer.get("message") or body[:200].decode(errors="replace").strip() or "no text")
    kind, advice = _kind(status, text)
    causes = (answer.get("details") or {}).get("causes") or ()
    listed = "".join(f"\n  {each.get('field', '?')}: {each.get('message', '')}" for each in causes)
    return kind(
        f"cluster {cluster} answered {status} to {verb} {path}: {text}{listed}\n{advice}",
        cluster=cluster,
        verb=verb,
        path=path,
        status=status,
        retry_after_s=_seconds(headers.get("Retry-After")),
    )


_RULES: tuple[tuple[int, str, type[KubeError], str], ...] = (
    (401, "", AccessRefused, "Log in to the cluster again, or renew its kubeconfig."),
    (403, "exceeded quota", QuotaExceeded, "Free some of the namespace's quota, or choose another cluster."),
    (403, "because it is being terminated", NamespaceEnds, "Choose another cluster or namespace."),
    (403, "", AccessRefused, "Bind the account to the Role `forebay-submitter` of the chart deploy/helm/forebay."),
    (404, "could not find the requested resource", ObjectMissing, _NO_KIND),
    (404, "404 page not found", ObjectMissing, _NO_KIND),
    (404, "", ObjectMissing, "Look whether its name and namespace are right."),
    (
        400,
        "unknown field",
        ObjectInvalid,
        "Install KubeRay 1.7 or newer, with its CRDs: this cluster has older ones.",
    ),
    (409, "already exists", ObjectExists, "Choose another name, or delete the object first."),
    (409, "", ObjectChanged, "Read the object again, and repeat the change."),
    (410, "", VersionExpired, "List the objects again."),
    (429, "", TooManyRequests, "Wait, and repeat the request."),
)
"""Status, part of the server's text, error, advice. The first that fits."""


def _kind(status: int, text: str) -> tuple[type[KubeError], str]:
    for code, part, kind, advice in _RULES:
        if status == code and part in text:
            return kind, advice
    if 400 <= status < 500:
        return ObjectInvalid, "Correct the object: the server's text names the field."
    return ApiUnreachable, "Look at the API server's health."


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _seconds(value: str | None) -> float | None:
    # A server may also send a date, which is not read: the clocks of two machines differ.
    return float(value) if value is not None and value.isdigit() else None
