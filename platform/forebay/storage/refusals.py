"""Which errors of a store mean no, and not later: the same request would be refused again."""

from __future__ import annotations

import re

# As the clients of pyarrow and fsspec word them: S3, Google Cloud, Azure, HTTP.
_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_SIGNATURE|"
    r"UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION_TOKEN|EXPIRED_TOKEN|ExpiredToken|InvalidAccessKeyId|InvalidToken|"
    r"AuthenticationFailed|AuthorizationFailure|AuthorizationPermissionMismatch|AuthorizationProtocolMismatch|"
    r"PERMISSION_DENIED|UNAUTHENTICATED|HTTP (?:status code:? |response code |error )?40[13]\b|\b40[13] Client Error|"
    r"\b40[13], message=|\(403\) Forbidden|No response body.*HTTP status 403"
)
REMEDY = "Ask for read access, or check the credentials: those of the environment, or those in the URI."
"""What to do about a refusal."""


def as_refusal(error: BaseException) -> PermissionError | None:
    """`error` as a `PermissionError`, if the store refused the caller and its client words that as any other error."""
    if isinstance(error, OSError) and not isinstance(error, PermissionError) and _REFUSED.search(str(error)):
        return PermissionError(str(error))
    return None
