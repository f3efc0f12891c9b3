"""Blocks of a dataset whose files are still being written: a request waits until its file is finished."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from forebay.data.manifest.prepared import PreparedFile
from forebay.data.manifest.stream_files import StreamFiles
from forebay.data.manifest.streamed import StreamedManifest
from forebay.data.transform.block import Block
from forebay.data.transform.dataset import Dataset
from forebay.errors import LoaderClosed
from forebay.runtime.foreign_code import outcome_of

_POLL_S = 0.1


class _Source(Protocol):
    def request(self, index: int) -> Future[Block]: ...
    def close(self, timeout_s: float = 5.0) -> None: ...


class StreamedSource:
    """`BlockSource` of a `StreamedManifest`.

    Blocks are numbered from the first file on. So a source of the files that are finished serves them under the same
    numbers, and is replaced by one of more files when a later one is requested. One thread looks for new files while
    requests wait, every 0.1 s.

    Args:
        dataset: The dataset.
        manifest: Its manifest.
        open_source: Opens the blocks of a dataset whose files are all finished.
    """

    def __init__(self, dataset: Dataset, manifest: StreamedManifest, open_source: Callable[[Dataset], _Source]) -> None:
        self._dataset, self._open_source = dataset, open_source
        self._files = StreamFiles(manifest.root, attempt=manifest.attempt)
        self._known: Sequence[PreparedFile] = ()
        self._num_blocks = 0
        self._sources: list[_Source] = []
        self._open_requests: dict[int, int] = {}
        """Requests that are not answered, by number of the source."""
        self._waiting: deque[tuple[int, Future[Block]]] = deque()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def request(self, index: int) -> Future[Block]:
        """Request block `index`. The future also raises `PreparationFailed`. Raises `LoaderClosed` after `close`."""
        future: Future[Block] = Future()
        with self._lock:
            if self._closed.is_set():
                raise LoaderClosed("This source is closed.")
            # Behind those that wait: requests start in the order in which they are made.
            self._waiting.append((index, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="forebay-stream", daemon=True)
                self._thread.start()
        return future

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel pending requests and return within `timeout_s` seconds."""
        give_up = time.monotonic() + timeout_s
        self._closed.set()
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_s)
        for source in self._sources:
            source.close(max(give_up - time.monotonic(), 0.0))
        while self._waiting:
            self._waiting.popleft()[1].set_exception(CancelledError())

    def _serve(self) -> None:
        """Answer requests until none waits or the source is closed."""
        while not self._closed.is_set():
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                index = self._waiting[0][0]
            if index >= self._num_blocks:
                error = outcome_of(self._grow).error
                if error is not None:
                    self._fail(error)
                    continue
            if index < self._num_blocks:
                self._pass_on(*self._waiting.popleft())
            else:
                self._closed.wait(_POLL_S)

    def _grow(self) -> None:
        """Open a source of all files that are finished, if there are more than before."""
        found = self._files.finished(self._known)
        if len(found) == len(self._known):
            return
        manifest = self._files.prefix(self._dataset.manifest.fields, found)
        self._sources.append(self._open_source(replace(self._dataset, manifest=manifest)))
        self._known, self._num_blocks = found, len(manifest)
        for number, source in enumerate(self._sources[:-1]):
            if not self._open_requests.get(number):
                source.close(0.0)

    def _pass_on(self, index: int, future: Future[Block]) -> None:
        number = len(self._sources) - 1
        self._open_requests[number] = self._open_requests.get(number, 0) + 1

        def answer(done: Future[Block]) -> None:
            with self._lock:
                self._open_requests[number] -= 1
            with suppress(Exception):  # the loader may have cancelled it
                if done.cancelled():
                    future.set_exception(CancelledError())
                elif (error := done.exception()) is not None:
                    future.set_exception(error)
                else:
                    future.set_result(done.result())

        passed = outcome_of(lambda: self._sources[number].request(index))
        if passed.value is None:
            future.set_exception(passed.error)
        else:
            passed.value.add_done_callback(answer)

    def _fail(self, error: BaseException) -> None:
        while self._waiting:
            self._waiting.popleft()[1].set_exception(error)
