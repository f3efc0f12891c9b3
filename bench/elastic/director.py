"""Director of a run: performs acts on it, each after the previous one has taken effect and training continues."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from bench.elastic.log import EventLog, changes, members, steps

POLL_S = 0.05
LIMIT_S = 60.0  # Time limit in seconds without a change of membership. The same for every system.


@dataclass(frozen=True)
class Act:
    """An act to perform after `size` workers have made `after` steps together."""

    what: str
    size: int
    do: Callable[[], object]
    after: int = 10


class Director(threading.Thread):
    """Thread that follows a log and performs acts.

    An act that raises, or gets no answer within `limit_s`, is noted there and ends the run.
    """

    def __init__(
        self, log: EventLog, acts: Sequence[Act], end: Callable[[], object], *, limit_s: float = LIMIT_S
    ) -> None:
        super().__init__(name="director", daemon=True)
        self._log, self._acts, self._end, self._limit_s = log, acts, end, limit_s
        self._acted_on = -1

    def run(self) -> None:
        try:
            for number, act in enumerate(self._acts):
                if not self._await(act):
                    self._give_up(number)
                    break
                self._log.note("asked", act=act.what)
                act.do()
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs into the log
            self._log.note("failed", error=f"{type(error).__name__}: {error}")
        finally:
            self._log.note("over")
            self._end()

    def _await(self, act: Act) -> bool:
        """Wait for a membership of `act.size`, later than the previous act's, to make its steps.

        Returns False if no change of membership comes within `limit_s`.
        """
        seen, late_at = -1, 0.0
        while True:
            lines = self._log.read()
            made, membership = steps(lines), len(changes(lines))
            if membership != seen:
                seen, late_at = membership, time.monotonic() + self._limit_s
            if made and membership > self._acted_on and made[-1]["size"] == act.size:
                runs = [list(run) for _, run in groupby(made, key=members)]
                if len(runs[-1]) >= act.after:
                    self._acted_on = membership
                    return True
            if time.monotonic() > late_at:
                return False
            time.sleep(POLL_S)

    def _give_up(self, number: int) -> None:
        """Note that act `number` is impossible because the one before it has no answer."""
        made = steps(self._log.read())
        still_s = time.time() - made[-1]["time"] if made else 0.0
        # If training continues unchanged, there is no gap to report: all that is known is that the act had no effect.
        reason = f"> {still_s:.0f} s" if still_s > self._limit_s / 2 else f"not within {self._limit_s:.0f} s"
        before = self._acts[number - 1].what if number else "start"
        self._log.note("late", act=before, reason=reason)
        for act in self._acts[number:-1]:
            self._log.note("skipped", act=act.what, reason=f"skipped: {before} {reason}")


def kill_last_rank(log: EventLog) -> None:
    """SIGKILL the worker with the highest rank of the present world."""
    lines = log.read()
    size = steps(lines)[-1]["size"]
    born = [line for line in lines if line["what"] == "born" and line["size"] == size and line["rank"] == size - 1]
    os.kill(born[-1]["pid"], signal.SIGKILL)
