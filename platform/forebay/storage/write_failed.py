"""The error for storage that refuses a write."""

from __future__ import annotations

from forebay.errors import WriteFailed
from forebay.storage.credentials import redact

ADVICE = "Check that the storage answers, has room, and that this user may write to it."


def write_failed(what: str, uri: str, error: BaseException, advice: str = ADVICE, **facts: object) -> WriteFailed:
    """Build the error for `what` (e.g. "the result of run 'a'"), which `error` kept from being written to `uri`.

    It names the first line of `error`, without secrets. `facts` are added to `uri` as attributes of the error.
    """
    reason = redact(f"{type(error).__name__}: {error}".partition("\n")[0])
    return WriteFailed(f"{what} could not be written to {uri} ({reason}). {advice}", uri=uri, **facts)
