"""Turns of a bench: child processes that answer with JSON lines, of which a table or a page is made."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.processes import command, environment, last_line, run_child

DATA_WORKERS = "FOREBAY_DATA_WORKERS"
"""Variable that chooses how a child makes its blocks: in threads or in processes."""
_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - a file system in memory
Line = Mapping[str, Any]
"""One result, as printed."""


def say(**facts: Any) -> None:
    """Print one line of results."""
    print(json.dumps(facts), flush=True)


class Turns:
    """All turns of a run, within a limit of time. `lines` has their results, which are printed as they come."""

    def __init__(self, module: str, folder: Path, *, limit_s: float) -> None:
        self._module, self._folder, self._ends = module, folder, time.monotonic() + limit_s
        self.lines: list[Line] = []

    def add(self, line: Line) -> None:
        """Keep and print a line."""
        self.lines.append(line)
        print(json.dumps(line), flush=True)

    def run(self, setting: Mapping[str, Any], *, data_workers: str = "") -> list[Line]:
        """Results of one child, each with `setting["facts"]`. A failure, or no time left, is a line too."""
        facts = dict(setting["facts"])
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            self.add(facts | {"failed": "left out: no time was left (--limit)"})
            return []
        output = self._folder / "output"
        variables = environment(DATA_WORKERS) | ({DATA_WORKERS: data_workers} if data_workers else {})
        line = command(self._module, "--child", json.dumps(setting, default=str))
        ended = run_child(line, output, variables, max(left_s, 10.0))
        found: list[Line] = [
            facts | json.loads(line) for line in output.read_text(errors="replace").splitlines() if line[:1] == "{"
        ]
        if ended != "ended with code 0":
            print(output.read_text(errors="replace")[-3000:], file=sys.stderr, flush=True)
            found.append(facts | {"failed": f"{ended}; its last line: {last_line(output)}"})
        for each in found:
            self.add(each)
        return found


def touched(folder: Path, num_bytes: int) -> Line:
    """Seconds and GB/s of a file of `num_bytes` that is written into a folder twice, and removed each time.

    On a virtual machine the first touch of its memory is slow, and would be measured as a slow first epoch.
    """
    piece, seconds = bytes(min(num_bytes, 8 << 20)), []
    num_bytes = max(1, min(num_bytes, shutil.disk_usage(folder).free // 2))
    for _ in range(2):
        began = time.perf_counter()
        with (folder / "touched").open("wb", buffering=0) as file:
            for start in range(0, num_bytes, len(piece)):
                file.write(piece[: num_bytes - start])
        seconds.append(time.perf_counter() - began)
        (folder / "touched").unlink()
    rates = [round(num_bytes / each / 1e9, 3) for each in seconds]
    return {"phase": "touch", "bytes": num_bytes, "seconds": [round(each, 3) for each in seconds], "gb_s": rates}


def end_turn() -> None:
    """End this child at once: a peer's threads may not end by themselves."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@contextmanager
def working_folder(needed_bytes: int, given: Path | None) -> Iterator[Path]:
    """Folder for data and caches, in memory if there is room for twice of what is needed, else on the disk."""
    if given is None and _MEMORY_FOLDER.is_dir() and os.access(_MEMORY_FOLDER, os.W_OK):
        free = min(shutil.disk_usage(_MEMORY_FOLDER).free, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
        given = _MEMORY_FOLDER if free > 2 * needed_bytes else None
    with TemporaryDirectory(prefix="forebay-bench-", dir=given) as folder:
        yield Path(folder)


def read_lines(path: Path) -> list[Line]:
    """Results of an earlier run: its output, with other text in between."""
    return [json.loads(line) for line in path.read_text(errors="replace").splitlines() if line[:1] == "{"]


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Table for a terminal. The first row is its head."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def markdown_table(rows: Iterable[Sequence[str]]) -> str:
    """Table for a page. The first row is its head."""
    head, *others = rows
    lines = (head, ["---"] * len(head), *others)
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def spread(values: Sequence[float], form: str) -> str:
    """Median in `form`, such as `{:.2f}`, with the range in brackets if there is one."""
    if not values:
        return "-"
    low, middle, high = (form.format(value) for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} [{low} to {high}]"


def words_of(text: str) -> list[str]:
    """Words of an option, separated by commas."""
    return [each for each in text.split(",") if each]


def numbers_of(text: str) -> list[int]:
    """Numbers of an option, such as `1,65_536`."""
    return [int(each.replace("_", "")) for each in words_of(text)]
