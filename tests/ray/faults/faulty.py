"""A `NodeCache` in whose process things go wrong on request. Production code knows nothing of it."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.data.cache.disk import disk_cache as disk
from forebay.data.cache.node.actor import NodeCache
from forebay.data.parquet import reading
from forebay.storage.retry import ReadPolicy

SHORT = ReadPolicy(attempts=4, deadline_s=2.0, first_wait_s=0.01, max_wait_s=0.05)


@dataclass(frozen=True)
class FaultOrders:
    """Faults to cause, as files in a folder. Each order is taken once, by one thread of one process."""

    folder: Path

    def give(self, name: str, times: int = 1, value: object = "") -> None:
        for number in range(times):
            (self.folder / f"{name}.{number:03d}").write_text(str(value))

    def take(self, name: str) -> str | None:
        """Value that was given with the order. None if there is no such order, or none any more."""
        for path in sorted(self.folder.glob(f"{name}.*")):
            try:
                value = path.read_text()
                path.unlink()
            except FileNotFoundError:
                continue
            return value
        return None

    def left(self, name: str) -> int:
        return len(list(self.folder.glob(f"{name}.*")))

    def always(self, name: str, value: object = "") -> None:
        (self.folder / f"always-{name}").write_text(str(value))

    def standing(self, name: str) -> str | None:
        """The value of an order that holds until `call_off`."""
        try:
            return (self.folder / f"always-{name}").read_text()
        except FileNotFoundError:
            return None

    def call_off(self, name: str) -> None:
        (self.folder / f"always-{name}").unlink(missing_ok=True)

    def pids(self) -> list[int]:
        """The processes of the actors that were started, the newest last."""
        found = (self.folder / "pids").iterdir()
        return [int(path.name) for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]


def faulty_class(folder: Path) -> type[NodeCache]:
    """A `NodeCache` that executes the orders in `folder`."""
    (folder / "pids").mkdir(parents=True, exist_ok=True)

    class FaultyNodeCache(NodeCache):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            install(FaultOrders(folder))
            super().__init__(*arguments, **options)

    return FaultyNodeCache


def install(orders: FaultOrders) -> None:
    """Put the faults between this process and its storage, and between it and its disk.

    Single orders are "slow" (seconds) and "never" for one opening of a Parquet file, and "die-writing" in the
    middle of a block's file. Standing orders are "drag" (seconds) and "never" for every opening.
    """
    (orders.folder / "pids" / str(os.getpid())).touch()
    open_input, read, write_block = reading.open_input, reading.read, disk.write_block

    def faulty_open(uri: str) -> Any:
        time.sleep(float(orders.standing("drag") or 0))
        if orders.standing("never") is not None or orders.take("never") is not None:
            (orders.folder / "stuck").touch()
            threading.Event().wait()
        time.sleep(float(orders.take("slow") or 0))
        return open_input(uri)

    def impatient_read(what: str, fn: Any, policy: ReadPolicy, *rest: Any) -> Any:
        return read(what, fn, SHORT if orders.standing("impatient") is not None else policy, *rest)

    def torn_write(file: Any, *arguments: Any) -> None:
        if orders.take("die-writing") is None:
            write_block(file, *arguments)
            return
        whole = io.BytesIO()
        write_block(whole, *arguments)
        file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    reading.open_input, reading.read, disk.write_block = faulty_open, impatient_read, torn_write
