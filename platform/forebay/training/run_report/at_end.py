"""Callback that writes the report of a run when it ends, however it ends."""

from __future__ import annotations

import logging

from forebay.errors import ForebayError
from forebay.events import Event, Failed, Finished, Started
from forebay.storage.filesystem import below, resolve
from forebay.training.run_report.recorded_run import load_run
from forebay.training.run_report.report_page import write_report
from forebay.training.runs.control import Control

log = logging.getLogger(__name__)


class ReportAtEnd:
    """Writes `report.html` into the folder of a run below `storage`. A report that cannot be written is logged."""

    def __init__(self, storage: str) -> None:
        self._storage, self._name = storage, ""

    def __call__(self, event: Event, control: Control) -> None:  # noqa: ARG002 - form of a callback
        match event:
            case Started():
                self._name = event.name
            case Finished():
                self._write(event.path)
            case Failed(will_retry=False) if self._name:
                self._write(below(resolve(self._storage).uri, self._name))

    def _write(self, path: str) -> None:
        try:
            write_report(load_run(path))
        except (OSError, ForebayError) as error:
            log.warning("The report of the run in %s could not be written: %s", path, error)
