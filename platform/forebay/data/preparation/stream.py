"""`prepare_stream`: a dataset that a run trains on while it is being prepared, by a thread of this process."""

from __future__ import annotations

import atexit
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any

from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.prepared import Prepared, PreparedFile
from forebay.data.manifest.stream_files import RECORDS, StreamFiles
from forebay.data.manifest.streamed import StreamedManifest, StreamLayout
from forebay.data.preparation.fits import Fit
from forebay.data.preparation.parts import ROW_GROUPS_PER_FILE, cut, write_part
from forebay.data.preparation.progress import tell
from forebay.data.preparation.request import PreparationRequest, plan_request, preparation_options
from forebay.data.preparation.sealing import Production, prepare_once
from forebay.data.preparation.tables import Tables, function_tables
from forebay.errors import Cancelled, InvalidOption
from forebay.runtime.foreign_code import CallOutcome, outcome_of
from forebay.runtime.formatting import count_text, seconds_text
from forebay.storage.atomic import write_failed

_POLL_S = 0.05
_AT_EXIT_S = 3.0
_KEPT = (RECORDS, "part-")
"""A run may be reading the files of a stream: they are written again under the same names."""
_live: set[PreparedStream] = set()
"""Streams that are neither sealed nor waited for. Kept here, since a job file keeps only the plan."""

log = logging.getLogger(__name__)


class PreparedStream:
    """Dataset under preparation. Returned by `fb.prepare_stream`.

    Attributes:
        folder: Folder of the dataset.
        manifest: For `fb.build_plan`. The first epoch of such a plan is in the order of the files, shuffled within
            each; later epochs are ordered as those of any dataset.
    """

    def __init__(self, request: PreparationRequest) -> None:
        self.folder = request.folder
        self._request, self._files = request, StreamFiles(request.folder, attempt=secrets.token_hex(8))
        self._stopped = threading.Event()
        self._outcome: CallOutcome[Prepared] | None = None
        context = copy_context()  # messages go to the listener of the thread that called
        self._thread = threading.Thread(
            target=lambda: context.run(self._prepare), name="forebay-prepare-stream", daemon=True
        )
        _live.add(self)
        self._thread.start()
        self.manifest = self._wait_for_manifest()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.manifest.num_rows

    def wait(self) -> Prepared:
        """Wait until the dataset is sealed. Returns it with its statistics and vocabularies.

        Raises the error that ended the preparation, and `Cancelled` after `close`.
        """
        self._thread.join()
        _live.discard(self)
        assert self._outcome is not None, "the thread has ended"
        return self._outcome.result()

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop after the file that is being written. Finished files stay, and a later call continues behind them.

        A run that waits for a further file ends with `PreparationFailed`.
        """
        self._stopped.set()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            _live.discard(self)

    def _wait_for_manifest(self) -> StreamedManifest:
        began = time.monotonic()
        while (found := self._files.find_manifest()) is None:
            self._thread.join(_POLL_S)
            if self._outcome is not None:
                _live.discard(self)
                prepared = self._outcome.result()
                # The records are not there if a sealed folder was copied without its hidden files.
                found = self._files.manifest(self._layout(prepared.files[0]), prepared.fields)
                break
        name, rows = self._request.origin.name, count_text(found.num_rows)
        seconds = seconds_text(time.monotonic() - began)
        tell(f"{name}: training can begin on {rows} rows after {seconds} s; files follow while it runs")
        return found

    def _prepare(self) -> None:
        self._outcome = outcome = outcome_of(lambda: prepare_once(self._request, self._produce, kept=_KEPT))
        if outcome.error is None:
            _live.discard(self)
            return
        if not isinstance(outcome.error, Cancelled):
            log.error("%s was not prepared to the end: %s", self._request.origin.name, outcome.error)
        # A run that waits for the next file must end too. If the storage fails, that is the error already.
        outcome_of(lambda: self._files.write_failure(f"{type(outcome.error).__name__}: {outcome.error}"))

    def _produce(self, folder: str, production: Production) -> None:
        options = self._request.options
        row_groups = cut(function_tables(self._request), options.row_group_rows)
        for number in itertools.count():
            groups = list(itertools.islice(row_groups, ROW_GROUPS_PER_FILE))
            if not groups:
                break
            if self._stopped.is_set():
                raise Cancelled(f"the preparation of {self._request.origin.name} was closed")
            self._check_rows(production.rows + sum(group.num_rows for group in groups), number)
            file, fields = write_part(folder, number, groups)
            production.add(file, fields, options.fits.part(groups))
            try:
                self._files.write(number, file)
                if number == 0:
                    self._files.write_layout(self._layout(file), fields)
            except OSError as error:
                raise write_failed(f"File {number} of the prepared dataset", folder, error) from error
        self._check_rows(production.rows, None)

    def _layout(self, first: PreparedFile) -> StreamLayout:
        options = self._request.options
        return StreamLayout(
            rows=options.stream_rows or 0,
            row_group_rows=options.row_group_rows,
            row_groups_per_file=ROW_GROUPS_PER_FILE,
            row_group_bytes=(first.bytes[0], first.source_bytes[0]),
            fingerprint=self._request.fingerprint,
        )

    def _check_rows(self, rows: int, number: int | None) -> None:
        """Raise `InvalidOption` if the function cannot give the rows that the layout was made for."""
        options = self._request.options
        expected = options.stream_rows or 0
        whole = ROW_GROUPS_PER_FILE * options.row_group_rows
        is_short = rows < (expected if number is None else min((number + 1) * whole, expected))
        if is_short or rows > expected:
            raise InvalidOption(
                f"{self._request.origin.name} gave {'only ' if is_short else 'more than '}{min(rows, expected)} rows, "
                f"and rows={expected} were announced. Give the number of rows that the function yields."
            )


def prepare_stream(  # noqa: PLR0913 - public options, all keyword-only
    function: Tables,
    /,
    *,
    into: str,
    rows: int | None = None,
    row_group_rows: int = 65_536,
    fit: Fit | Sequence[Fit] = (),
    fit_on: Any = None,
    inputs: Sequence[str] | None = None,
    version: str | None = None,
    **arguments: Any,
) -> PreparedStream:
    """Prepare a dataset as `fb.prepare` does, and return when its first file is finished.

    A thread of this process writes the others while a run trains on those that are there. Rows stay in the order of the
    tables: nothing is sorted. The function must give the same rows each time. After a kill it starts over, and a run
    continues at once on the files that were finished before.

    Args:
        function: Yields tables, all of one schema. Called with `arguments`, in a thread, and only if needed.
        into: Folder or URI, which every node can read.
        rows: Number of rows that the function yields. May be left out if one argument is a `Manifest` or a `Prepared`
            whose rows it keeps.
        row_group_rows: Rows per row group. Training begins after four of them.
        fit: Values to fit on the rows. They are known after `wait()`, and so not during the first epoch.
        fit_on: As for `fb.prepare`.
        inputs: As for `fb.prepare`.
        version: As for `fb.prepare`.
        arguments: Arguments of the function: plain data, paths, manifests.

    Raises as `fb.prepare`. Errors after the first file end the run that waits for the next one (`PreparationFailed`).
    """
    options = preparation_options(
        into=into,
        key=(),
        row_group_rows=row_group_rows,
        fit=fit,
        fit_on=fit_on,
        inputs=inputs,
        version=version,
        stream_rows=_number_of_rows(rows, arguments),
    )
    return PreparedStream(plan_request(function, arguments, options))


def wait_for_streams() -> None:
    """Wait until all streams of this process are sealed. Raises the error of one that was not."""
    for stream in list(_live):
        stream.wait()


def _number_of_rows(rows: int | None, arguments: dict[str, Any]) -> int:
    if rows is not None:
        return rows
    found = [each for each in arguments.values() if isinstance(each, Manifest | Prepared)]
    if len(found) != 1:
        raise InvalidOption(
            "prepare_stream needs rows=, the number of rows that the function yields: batches and epochs are cut "
            "before all of them are there. It is known only if exactly one argument is a manifest."
        )
    return found[0].num_rows if isinstance(found[0], Manifest) else found[0].rows


def _close_all() -> None:
    give_up = time.monotonic() + _AT_EXIT_S
    for stream in list(_live):
        stream.close(max(give_up - time.monotonic(), 0.0))


# A daemon thread that returns from C++ into an ended interpreter aborts the whole process (SIGABRT).
atexit.register(_close_all)
