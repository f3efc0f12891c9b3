"""Stand-in for S3: moto, in which one of several conditional requests at once wins, as in S3."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto import server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication


class AtomicConditions(DomainDispatcherApplication):
    """Moto looks whether an object is there, and writes it later: two of 16 racers have won."""

    _lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT" or not environ.keys() & {"HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"}:
            return super().__call__(environ, start_response)
        with self._lock:
            return list(super().__call__(environ, start_response))


if __name__ == "__main__":
    server.DomainDispatcherApplication = AtomicConditions
    server.main(sys.argv[1:])
