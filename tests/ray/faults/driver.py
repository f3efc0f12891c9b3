"""A driver in its own process: `python -m tests.ray.faults.driver ADDRESS SETTING JOURNAL`."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import ray
from tests.ray.faults.cluster import ROOT
from tests.ray.faults.trainer import Journal, train
from tests.soak.dataset import SoakSetting


class FaultDriver:
    """Trains until it receives the order to end."""

    def __init__(self, address: str, setting: SoakSetting, journal: Journal) -> None:
        path = journal.folder.with_name("setting")
        path.write_bytes(pickle.dumps(setting))
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the driver
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, address, str(path), str(journal.folder)],
            cwd=ROOT,
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def returncode(self) -> int:
        return self._process.returncode

    @property
    def said(self) -> str:
        self._said.seek(0)
        return self._said.read()[-2000:]

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait(30)
        self._said.close()


def main(address: str, setting: str, journal: str) -> None:
    ray.init(address=address, log_to_driver=False, logging_level="error")
    train(pickle.loads(Path(setting).read_bytes()), Path(journal), pause_s=0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
