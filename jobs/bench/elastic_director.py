"""Makes things happen to a run, each once the one before has been carried out and training goes on."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from elastic_log import Log, changes, members, steps

POLL_S = 0.05


@dataclass(frozen=True)
class Act:
    """To be done once `size` workers have made `after` steps together."""

    what: str
    size: int
    do: Callable[[], object]
    after: int = 10


class Director(threading.Thread):
    """Follows a log; what an act raises is noted there, and ends the run."""

    def __init__(self, log: Log, acts: Sequence[Act], end: Callable[[], object]) -> None:
        super().__init__(name="director", daemon=True)
        self._log, self._acts, self._end = log, acts, end
        self._acted_on = -1

    def run(self) -> None:
        try:
            for act in self._acts:
                self._await(act)
                self._log.note("asked", act=act.what)
                act.do()
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the log
            self._log.note("failed", error=f"{type(error).__name__}: {error}")
        finally:
            self._end()

    def _await(self, act: Act) -> None:
        """Until a membership of `act.size`, later than the one that was acted on last, has made its steps."""
        while True:
            lines = self._log.read()
            made, membership = steps(lines), len(changes(lines))
            if made and membership > self._acted_on and made[-1]["size"] == act.size:
                runs = [list(run) for _, run in groupby(made, key=members)]
                if len(runs[-1]) >= act.after:
                    self._acted_on = membership
                    return
            time.sleep(POLL_S)


def kill_last_rank(log: Log) -> None:
    """SIGKILL the worker with the highest rank of the present world."""
    lines = log.read()
    size = steps(lines)[-1]["size"]
    born = [line for line in lines if line["what"] == "born" and line["size"] == size and line["rank"] == size - 1]
    os.kill(born[-1]["pid"], signal.SIGKILL)
