"""Stacks of ranks whose interpreter does not run.

A call that holds the interpreter's lock, such as a long match of a regular expression, lets no thread of its process
run, so none of them could say where it is. The C thread of `faulthandler` needs no lock: it writes all stacks into
memory that other processes of the same user read below /proc. The memory ends with the process.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from traceback import FrameSummary

_OURS = re.compile(re.escape(str(Path(__file__).parents[2])) + "/(?!testing/)")
"""Files of Forebay, but for the train functions of its tests."""
_LIBRARIES = re.compile(r"/site-packages/|/lib/python|^<frozen ")
MOST_FRAMES = 4
MOST_OTHERS = 2
_MEMORY, _HEAD_BYTES = "forebay-rank", 4096
_THREAD = re.compile(r"^(?:Current t|T)hread (0x[0-9a-f]+)[^\n]*:\n((?:  [^\n]*\n)+)", re.MULTILINE)
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?+) in (.*)$', re.MULTILINE)
_STOPPED = "Tt"
"""States of a process in /proc that a signal or a debugger has stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentRank:
    """A rank whose process has run no Python for `seconds`.

    `does` says what it does instead.
    """

    rank: int
    step: int
    seconds: float
    does: str

    @property
    def text(self) -> str:
        """Clause for people."""
        return f"rank {self.rank} has taken no step for {self.seconds:.0f} s and {self.does}"


@contextmanager
def kept_stack(run: str, rank: int, limit_s: float) -> Iterator[Callable[[int], None]]:
    """Keep the stacks of a process that runs no Python.

    Once none has run in it for `limit_s` seconds. Yields a function for another thread to call all the while, with the
    step. The calling thread is the one that trains. A process has one such timer: `faulthandler.dump_traceback_later`
    of the train function is replaced.
    """
    if not hasattr(os, "memfd_create"):  # Linux has it
        yield lambda _: None
        return
    memory, lock, is_over = os.memfd_create(_MEMORY), threading.Lock(), False
    os.write(memory, bytes(_HEAD_BYTES))  # stacks follow
    head = mmap.mmap(memory, _HEAD_BYTES)
    facts = {"run": run, "rank": rank, "pid": os.getpid(), "thread": threading.get_ident(), "limit_s": limit_s}

    def alive(step: int) -> None:
        with lock:
            if is_over:  # its number may be another file's by now
                return
            # Another thread may take the interpreter's lock for good at each system call. Before the first one, the
            # head is whole and the timer runs.
            head[:] = json.dumps(facts | {"step": step, "at": time.monotonic()}).encode().ljust(_HEAD_BYTES)
            faulthandler.dump_traceback_later(limit_s, file=memory)
            if os.fstat(memory).st_size > _HEAD_BYTES:  # it was silent, and runs again
                os.ftruncate(memory, _HEAD_BYTES)
                os.lseek(memory, _HEAD_BYTES, os.SEEK_SET)

    try:
        yield alive
    finally:
        with lock:
            is_over = True
            faulthandler.cancel_dump_traceback_later()
            head.close()
            os.close(memory)


def silent_ranks(run: str, pids: Iterable[int] | None = None) -> list[SilentRank]:
    """Ranks of `run` here that run no Python.

    Looks at the processes `pids`, by default at all of this user.
    """
    every = [int(each.name) for each in Path("/proc").glob("[0-9]*")] if pids is None else pids
    return sorted((found for pid in every if (found := _silent(run, pid))), key=lambda each: each.rank)


def _silent(run: str, pid: int) -> SilentRank | None:
    # It may end meanwhile. For root, another user's memory is open too, and may hold anything.
    with suppress(OSError, ValueError, KeyError, TypeError):
        if Path(f"/proc/{pid}").stat().st_uid != os.geteuid():
            return None
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            if str(descriptor.readlink()).startswith(f"/memfd:{_MEMORY} "):
                held = descriptor.read_bytes()
                facts, dump = json.loads(held[:_HEAD_BYTES]), held[_HEAD_BYTES:].decode(errors="replace")
                # A child that the rank has forked holds the memory, too.
                if (facts["run"], facts["pid"]) == (run, pid) and (does := _does(facts, dump)):
                    seconds = time.monotonic() - facts["at"]
                    return SilentRank(rank=int(facts["rank"]), step=int(facts["step"]), seconds=seconds, does=does)
    return None


def _does(facts: Mapping[str, float], dump: str) -> str | None:
    """Return what keeps a rank from running Python, or None."""
    if stacks := stacks_of(dump):
        here = stacks.pop(int(facts["thread"]), [])
        place = f" in {place_of(here)}" if here else ""
        others = [place_of(each) for each in stacks.values() if _own(each)][:MOST_OTHERS]
        beside = f"; of its other threads one is in {' and one in '.join(others)}" if others else ""
        return f"holds the interpreter's lock{place}{beside}"
    pid = int(facts["pid"])
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    if state in _STOPPED and time.monotonic() - facts["at"] > facts["limit_s"]:
        return f"its process {pid} is stopped, by a signal or a debugger (`kill -CONT {pid}` continues it)"
    return None


def stacks_of(dump: str) -> dict[int, list[FrameSummary]]:
    r"""Stacks in the output of `faulthandler`, by thread.

    The innermost frame is the last.

    >>> dump = 'Timeout!\nThread 0x2a (most recent call first):\n  File "a.py", line 7 in f\n'
    >>> place_of(stacks_of(dump)[42])
    'a.py:7 in f'
    """
    return {
        int(thread, 16): [
            FrameSummary(file, int(line) if line.isdigit() else 0, name, lookup_line=False, line="")
            for file, line, name in reversed(_FRAME.findall(lines))
        ]
        for thread, lines in _THREAD.findall(dump)
    }


def place_of(frames: Sequence[FrameSummary]) -> str:
    """Return the innermost frames of a stack, the user's first.

    >>> place_of([FrameSummary("/home/me/job.py", 24, "train", line="lock.acquire()")])
    'job.py:24 in train: lock.acquire()'
    """
    known = [each for each in frames if not _OURS.match(each.filename)] or list(frames)
    own = _own(known)
    # The user's last frame, and what it called.
    first = known.index(own[-1]) if own else 0
    shown = [known[first], *known[first + 1 :][-MOST_FRAMES:]]
    places = [f"{Path(each.filename).name}:{each.lineno} in {each.name}" for each in shown]
    line = known[first].line
    return " > ".join(places) + (f": {line}" if line and len(places) == 1 else "")


def _own(frames: Sequence[FrameSummary]) -> list[FrameSummary]:
    """Frames of the user's files."""
    return [each for each in frames if not _OURS.match(each.filename) and not _LIBRARIES.search(each.filename)]
