"""Requests, bytes and CPU of epochs from S3, for Forebay, MosaicML Streaming and litData.

python -m bench.storage.s3_epoch                                        # narrow rows, small shards: 5 minutes
python -m bench.storage.s3_epoch --columns 1000 --rows 64000 --files 4 --shard-mb 64 --short --scale
python -m bench.storage.s3_epoch --systems forebay

Every system reads from one stand-in of S3 on this machine. Prints a JSON line per turn, then tables. `--scale` adds the
price for a lake of 1 TB whose files and shards have the measured size.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.loader.peers import OWN
from bench.processes import command, environment, last_line, run_child
from bench.storage.s3_epoch.costs import STORED_GB_MONTH, dollars, requests, scaled
from bench.storage.s3_epoch.setting import CREDENTIALS, S3Setting, fill
from bench.storage.s3_epoch.store import counts_of, serving, since
from bench.turns import Line, markdown_table, say
from bench.venvs import interpreters


@dataclass(frozen=True)
class S3Entry:
    """One row of the table: its name, its file in `systems/`, its environment and variant."""

    name: str
    system: str
    venv: str = OWN
    variant: str = ""


ENTRIES = (
    S3Entry("Forebay", "forebay_scan"),
    S3Entry("MosaicML Streaming", "streaming_mds", "streaming"),
    S3Entry("litData, optimized", "litdata_chunks", "litdata"),
    S3Entry("litData, ParquetLoader", "litdata_chunks", "litdata", "parquet"),
)


class S3Turns:
    """All turns against one server."""

    def __init__(self, setting: S3Setting, limit_s: float, *, short: bool) -> None:
        self._setting, self._limit_s, self._short = setting, limit_s, short
        self.lines: list[Line] = []

    def add(self, entry: S3Entry, turn: str, parts: Mapping[str, Any]) -> None:
        """Keep and print the result of a turn."""
        line = {"system": entry.name, "turn": turn} | parts
        self.lines.append(line)
        say(**line)

    def measure(self, entry: S3Entry, python: Path) -> None:
        """Run all turns of one system."""
        base = replace(
            self._setting, work=self._setting.work / entry.system, variant=entry.variant, converted=entry.system
        )
        if entry.venv != OWN:
            self._turn(entry, ("convert",), python, replace(base, work=base.work / "convert"), 0)
        node = replace(base, work=base.work / f"node{entry.variant}")
        self._turn(entry, ("first", "cached"), python, node, 2)
        if self._short:
            return
        self._turn(entry, ("restart",), python, node, 1)
        self._two_jobs(entry, python, replace(base, work=base.work / f"two{entry.variant}"))
        half = base.rows * base.columns * 4 // 2
        small = replace(base, work=base.work / f"small{entry.variant}", cache_bytes=half)
        self._turn(entry, ("", "small cache"), python, small, 2)
        shutil.rmtree(base.work, ignore_errors=True)

    def _turn(self, entry: S3Entry, names: Sequence[str], python: Path, setting: S3Setting, epochs: int) -> None:
        answer = self._child(entry, python, setting, epochs)
        if "error" in answer:
            self.add(entry, names[-1], {"failed": answer["error"]})
            return
        for name, part in zip(names, answer["parts"], strict=True):
            if name:
                self.add(entry, name, part | {"version": answer["version"]})

    def _two_jobs(self, entry: S3Entry, python: Path, setting: S3Setting) -> None:
        """Two jobs that begin at once with an empty cache, each with an order of its own."""
        before = counts_of(setting.endpoint)
        with ThreadPoolExecutor(2) as pool:
            settings = [replace(setting, seed=seed) for seed in (7, 8)]
            answers = list(pool.map(lambda each: self._child(entry, python, each, 1), settings))
        failed = [answer["error"] for answer in answers if "error" in answer]
        if failed:
            self.add(entry, "two jobs", {"failed": failed[0]})
            return
        parts = [answer["parts"][0] for answer in answers]
        totals = {name: sum(part[name] for part in parts) for name in ("rows", "cpu_s")}
        self.add(entry, "two jobs", totals | {"counts": since(counts_of(setting.endpoint), before)})

    def _child(self, entry: S3Entry, python: Path, setting: S3Setting, epochs: int) -> dict[str, Any]:
        request = {"system": entry.system, "setting": asdict(setting) | {"work": str(setting.work)}, "epochs": epochs}
        with tempfile.TemporaryDirectory(prefix="fb-") as folder:
            files = {what: Path(folder) / what for what in ("request", "answer", "output")}
            files["request"].write_text(json.dumps(request))
            line = command("bench.storage.s3_epoch.child", files["request"], files["answer"], python=python)
            variables = environment("AWS_") | CREDENTIALS | {"AWS_DEFAULT_REGION": "us-east-1", "HOME": folder}
            how = run_child(line, files["output"], variables, self._limit_s)
            if not files["answer"].exists():
                return {"error": f"{how}; last words: {last_line(files['output'])}"}
            answer: dict[str, Any] = json.loads(files["answer"].read_text())
        return answer


def table(lines: Iterable[Line], data_bytes: int, rows: int) -> str:
    """Table of turns: requests, bytes read and written as times the data, CPU seconds per million rows."""
    found = [["system", "turn", "GET", "HEAD", "LIST", "PUT, POST", "read", "written", "CPU s per million rows"]]
    for line in lines:
        name = [line["system"], line["turn"]]
        if "failed" in line:
            found.append([*name, f"failed: {line['failed']}", *[""] * 6])
            continue
        counts = Counter(line["counts"])
        kinds = [f"{counts[kind]:,}" for kind in ("GET", "HEAD", "LIST")]
        written = f"{counts['PUT'] + counts['POST']:,}"
        moved = [f"{counts[way] / data_bytes:.2f}" for way in ("sent", "received")]
        found.append([*name, *kinds, written, *moved, f"{line['cpu_s'] / (line['rows'] or rows) * 1e6:.0f}"])
    return markdown_table(found)


def lake_table(lines: Iterable[Line], data_bytes: int, num_files: int) -> str:
    """Price of each turn for a lake of 1 TB of Parquet, in the region of the bucket and from another one."""
    found = [
        ["system", "turn", "requests", "TB read", "$ of requests", "$ with bytes, other region", "$ a month, copy"]
    ]
    for line in lines:
        if "failed" in line:
            continue
        counts = scaled(line["counts"], data_bytes, num_files)
        paid = [f"{dollars(counts):.2f}", f"{dollars(counts, other_region=True):.2f}"]
        kept = counts.get("received", 0) / 1e9 * STORED_GB_MONTH
        read = f"{counts.get('sent', 0) / 1e12:.2f}"
        found.append([line["system"], line["turn"], f"{requests(counts):,.0f}", read, *paid, f"{kept:.2f}"])
    return markdown_table(found)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--row-groups", type=int, default=4, help="of each file")
    parser.add_argument("--shard-mb", type=float, default=1.0, help="MB of a shard or chunk of the peers")
    parser.add_argument("--systems", default="", help="only those with one of these in their name, lower case")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds after which a turn has failed")
    parser.add_argument("--short", action="store_true", help="only convert, first and cached")
    parser.add_argument("--scale", action="store_true", help="also the price for 1 TB")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/forebay-bench").expanduser())
    options: Any = parser.parse_args(given)
    words = options.systems.split(",")
    entries = [entry for entry in ENTRIES if any(word in entry.name.lower() for word in words)]
    pythons, failed = interpreters([entry.venv for entry in entries], options.cache / "venvs")
    os.environ |= CREDENTIALS
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder, serving() as endpoint:
        setting = S3Setting(
            endpoint=endpoint,
            work=Path(folder),
            rows=options.rows,
            columns=options.columns,
            files=options.files,
            row_groups=options.row_groups,
            shard_bytes=int(options.shard_mb * 1e6),
            converted="",
        )
        data_bytes = fill(setting)
        say(data_bytes=data_bytes, rows=options.rows, files=options.files, row_groups=options.row_groups)
        turns = S3Turns(setting, options.limit, short=options.short)
        for entry in entries:
            if entry.venv in failed:
                turns.add(entry, "all", {"failed": failed[entry.venv]})
            else:
                turns.measure(entry, pythons[entry.venv])
    print(table(turns.lines, data_bytes, options.rows))
    if options.scale:
        print(lake_table(turns.lines, data_bytes, options.files))


if __name__ == "__main__":
    main()
