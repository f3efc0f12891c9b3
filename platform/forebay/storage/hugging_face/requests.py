"""HTTP requests to the Hugging Face Hub.

Each is sent once: `storage.retry` repeats them.
"""

from __future__ import annotations

import re
from typing import Any

from forebay.runtime.extras import extra_package

_TIMEOUT_S = 30
_RESET = re.compile(r";t=(\d+)")


class RateLimited(OSError):
    """Answer 429 or 503 of the Hub.

    `retry_after_s` is how long it asks to wait, 0 if it does not say.
    """

    def __init__(self, text: str, retry_after_s: float = 0.0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        return RateLimited, (str(self), self.retry_after_s)


class HubRequests:
    """Requests with one token.

    Without one, the token of HF_TOKEN or of `hf auth login` is sent, if there is one.

    Raises `MissingPackage` if huggingface_hub is missing or too old.
    """

    def __init__(self, token: str = "") -> None:
        with extra_package("huggingface_hub", "hf://"):
            from huggingface_hub import constants, get_session  # noqa: PLC0415
            from huggingface_hub.utils import build_hf_headers  # noqa: PLC0415
        self._constants, self._session, self._headers = constants, get_session, build_hf_headers
        self._token = token

    def get(self, path: str, headers: dict[str, str] | None = None, params: dict[str, str] | None = None) -> Any:
        """Answer to a GET, with status 200 or 206.

        `path` is below the endpoint, or a URL of the endpoint.

        Raises:
            FileNotFoundError: The repository, revision or file does not exist.
            PermissionError: The repository is private or gated, and the token does not open it.
            RateLimited: The Hub asks to wait.
            OSError: Any other failure.
        """
        endpoint = self._constants.ENDPOINT
        if not path.startswith(("/", f"{endpoint}/")):
            # A page of another host would be sent the token.
            raise OSError(f"the Hub named a next page that is not below {endpoint}: {path:.200}")
        url = endpoint + path if path.startswith("/") else path
        sent = self._headers(token=self._token or None) | (headers or {})
        # Its client follows redirects, and sends the token to no other host.
        # One session for each process: a forked child opens its own.
        answer = self._session().get(url, headers=sent, params=params, timeout=_TIMEOUT_S)
        if answer.status_code not in (200, 206):
            raise _error_of(answer, path)
        return answer


def _error_of(answer: Any, path: str) -> OSError:
    status, headers = answer.status_code, answer.headers
    reason = headers.get("X-Error-Message") or headers.get("X-Error-Code") or ""
    text = f"HTTP {status} for {path.partition('?')[0]}" + (f" ({reason})" if reason else "")
    if status in (429, 503):
        return RateLimited(text, _retry_after_s(headers))
    if status in (401, 403):
        return PermissionError(
            f"{text}: the repository does not exist, is private, or is gated. Set HF_TOKEN to a token that may read "
            "it, on every node"
        )
    return FileNotFoundError(text) if status in (404, 410) else OSError(text)


def _retry_after_s(headers: Any) -> float:
    """Seconds to wait before a retry, by an answer's headers.

    `RateLimit: "api";r=0;t=55` is the Hub's own form.
    """
    text = headers.get("Retry-After", "")
    if text.isdecimal():
        return float(text)
    match = _RESET.search(headers.get("RateLimit", ""))
    return float(match[1]) if match else 0.0
