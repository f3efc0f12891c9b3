"""Health and metrics of the capacity agent and the controller, over HTTP.

`/livez` and `/readyz` are for the probes of Kubernetes, `/metrics` for Prometheus.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from forebay.errors import InvalidOption
from forebay.runtime.foreign_code import begin

FLEET_METRICS: dict[str, tuple[str, str]] = {
    "capacity_writes_total": ("counter", "writes of the figures that the API server took"),
    "capacity_failed_writes_total": ("counter", "writes of the figures that it did not take"),
    "capacity_written_timestamp_seconds": ("gauge", "time of the newest figures, 0 before the first"),
    "capacity_free_gpus": ("gauge", "free GPUs of a pool, `SKU/MARKET`"),
    "capacity_pending_gpus": ("gauge", "GPUs that waiting pods ask for"),
    "controller_rounds_total": ("counter", "rounds over all jobs"),
    "controller_failed_rounds_total": ("counter", "rounds in which a storage, or the folder of a job, gave no answer"),
    "controller_round_timestamp_seconds": (
        "gauge",
        "end of the newest round in which a storage answered, 0 before it",
    ),
    "controller_round_seconds": ("gauge", "length of the newest round"),
    "attempts_failed_total": ("counter", "attempts that failed, seen by this process"),
    "jobs": ("gauge", "jobs that have not ended, by their `state`"),
    "job_longest_wait_seconds": ("gauge", "longest time for which a job has been held back by its clusters"),
}
"""Name -> kind and meaning. Exported with `forebay_` in front."""
STALLED_S = 300.0
"""Silence after which a thread counts as hung: the longest request, with all its repetitions, is over then."""
_IDLE_S = 10.0


class LivenessTimer:
    """Time of a thread's last sign of life.

    Args:
        limit_s: Age at which it is no longer fresh.
        is_beating: Whether it starts fresh.
    """

    def __init__(self, limit_s: float, *, is_beating: bool = True) -> None:
        self._limit_s = limit_s
        self._at = time.monotonic() if is_beating else float("-inf")

    def beat(self) -> None:
        """Give a sign of life."""
        self._at = time.monotonic()

    @property
    def is_fresh(self) -> bool:
        """Whether the last one is younger than the limit."""
        return time.monotonic() - self._at < self._limit_s


@dataclass(slots=True)
class Status:
    """Health and metrics of one process.

    Attributes:
        live: Threads that must not hang. A silent server does not hang them: their requests have deadlines.
        ready: Beats when a round has succeeded.
        metrics: Name and label -> value. A metric without labels has the label "".
    """

    live: Mapping[str, LivenessTimer]
    ready: LivenessTimer
    metrics: dict[tuple[str, str], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def set(self, name: str, value: float) -> None:
        """Set a metric without labels."""
        with self._lock:
            self.metrics[name, ""] = value

    def add(self, name: str, amount: float = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self.metrics[name, ""] = self.metrics.get((name, ""), 0) + amount

    def replace(self, name: str, label: str, values: Mapping[str, float]) -> None:
        """Set a metric for all values of its label.

        Values of the label that are no longer there are left out.
        """
        with self._lock:
            self.metrics = {key: value for key, value in self.metrics.items() if key[0] != name}
            # Quotes and backslashes are escaped in Prometheus' text as in JSON.
            texts = {json.dumps(each, ensure_ascii=False): value for each, value in values.items()}
            self.metrics |= {(name, f"{label}={text}"): value for text, value in texts.items()}

    def hung(self) -> list[str]:
        """Return the threads that gave no sign of life for too long."""
        return [name for name, each in self.live.items() if not each.is_fresh]

    def exposition(self) -> str:
        """Metrics in the text format of Prometheus.

        https://prometheus.io/docs/instrumenting/exposition_formats/
        """
        with self._lock:
            found = dict(self.metrics)
        return "".join(
            _family(name, [(key[1], found[key]) for key in found if key[0] == name]) for name in FLEET_METRICS
        )


def _family(name: str, samples: Iterable[tuple[str, float]]) -> str:
    kind, meaning = FLEET_METRICS[name]
    lines = [f"forebay_{name}{f'{{{label}}}' if label else ''} {value}\n" for label, value in sorted(samples)]
    return f"# HELP forebay_{name} {meaning}\n# TYPE forebay_{name} {kind}\n{''.join(lines)}" if lines else ""


class StatusServer(ThreadingHTTPServer):
    """Serves a status on all addresses of a machine, as kubelet and Prometheus ask for it.

    `port` 0 takes a free one. Raises `InvalidOption` if it cannot be used.
    """

    daemon_threads = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def __init__(self, status: Status, port: int) -> None:
        self.status = status
        try:
            super().__init__(("", port), _StatusAnswer)
        except OSError as error:
            raise InvalidOption(
                f"--status-port {port} cannot be used ({error.strerror}). Give another one.", port=port
            ) from error

    def server_bind(self) -> None:
        """Accept IPv4 as well."""
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def start(self) -> None:
        """Answer in a thread, which ends with the process."""
        begin(threading.Thread(target=self.serve_forever, name="forebay-status", daemon=True))


class _StatusAnswer(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: StatusServer
    timeout = _IDLE_S

    def do_GET(self) -> None:
        """Answer a probe, or send the metrics."""
        answers: dict[str, Callable[[], tuple[HTTPStatus, str]]] = {
            "/livez": self._live,
            "/readyz": self._ready,
            "/metrics": lambda: (HTTPStatus.OK, self.server.status.exposition()),
        }
        found = answers.get(self.path.partition("?")[0])
        code, text = found() if found else (HTTPStatus.NOT_FOUND, "ask for /livez, /readyz or /metrics\n")
        content = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _live(self) -> tuple[HTTPStatus, str]:
        hung = self.server.status.hung()
        return (HTTPStatus.SERVICE_UNAVAILABLE, f"hung: {', '.join(hung)}\n") if hung else (HTTPStatus.OK, "ok\n")

    def _ready(self) -> tuple[HTTPStatus, str]:
        is_ready = self.server.status.ready.is_fresh
        return (HTTPStatus.OK, "ok\n") if is_ready else (HTTPStatus.SERVICE_UNAVAILABLE, "no round succeeded lately\n")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the standard library
        """Print nothing: a probe comes every few seconds."""
