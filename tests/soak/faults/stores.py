"""Drivers of a run on S3, whose store is slow, throttles, cuts answers short and lists what was."""

from __future__ import annotations

import json
import os
import random
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.soak import mounts
from tests.soak.case import AT_END, CaseOutcome, fault
from tests.soak.faults.caches import fill
from tests.soak.faults.processes import Child
from tests.soak.faults.runs import NAME, DriverSiege, drive, job_of, judge, kept_server, own_folders

from forebay.storage.filesystem import below, resolve
from forebay.testing.drivers.bench import DriverBench
from forebay.training.job.start_policy import StartPolicy

SERVERS = Path(__file__).parents[2] / "storage" / "servers"
LIMIT_S = 150.0
_ports: list[int] = []


def proxy_port() -> int:
    """Port of a proxy before a server of S3. Both end with this process."""
    from tests.storage.conftest import free_port, serving

    if not _ports:
        os.environ |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull}
        stack, logs = ExitStack(), Path(os.environ.get("TMPDIR", "/tmp"))
        server, port = free_port(), free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(server)]
        stack.enter_context(serving(command, server, logs / f"moto-{os.getpid()}.log"))
        command = [sys.executable, str(SERVERS / "proxy.py"), str(port), str(server)]
        stack.enter_context(serving(command, port, logs / f"proxy-{os.getpid()}.log"))
        AT_END.append(stack.close)
        _ports.append(port)
    return _ports[0]


def misbehave(*faults: Mapping[str, Any]) -> None:
    """Let the proxy do these, instead of those before."""
    request = urllib.request.Request(f"http://127.0.0.1:{proxy_port()}/-/faults", json.dumps(faults).encode())
    urllib.request.urlopen(request, timeout=20).close()


@dataclass
class StoreSiege(DriverSiege):
    """Drivers of one run on S3. Its folder is in the bucket."""

    title: str = "S3 driver"
    spools: Path = Path()

    def harms(self) -> list[Callable[[], bool]]:
        kinds = [self.kill, self.stop, self.race, self.interrupt, self.cache_gone, self.spool_full]
        return [*kinds, self.throttled, self.throttled, self.failing, self.slow, self.silent, self.cut, self.stale]

    def throttled(self) -> bool:
        return self._for({"kind": "status", "status": 503, "code": "SlowDown", "times": self.rng.choice([3, 20, -1])})

    def failing(self) -> bool:
        return self._for({"kind": "status", "status": 500, "code": "InternalError", "times": self.rng.choice([2, 9])})

    def slow(self) -> bool:
        return self._for({"kind": "delay", "seconds": self.rng.uniform(0.05, 0.4)})

    def silent(self) -> bool:
        return self._for({"kind": "delay", "seconds": 4.0, "times": self.rng.choice([1, 3])})

    def cut(self) -> bool:
        return self._for({"kind": "cut", "method": "GET", "times": self.rng.choice([1, 5, 30])})

    def stale(self) -> bool:
        """Lists of objects are a moment old."""
        return self._for({"kind": "stale", "method": "GET"})

    def spool_full(self) -> bool:
        """The disk between the workers and the store."""
        if mounts.problem():
            return False
        filler = self.spools / "somebody-elses"
        fill(filler)
        self._later(lambda: filler.unlink(missing_ok=True), 0.6)
        return True

    def _for(self, harm: Mapping[str, Any]) -> bool:
        with suppress(OSError):
            misbehave(harm)
        self._later(misbehave, 1.0)
        return True


@fault(
    "s3-drivers-struck",
    expected="equal, by the driver that ends last",
    group="s3",
    deadline_s=LIMIT_S,
    share=0.5,
    quick=0,
)
def s3_drivers_struck(rng: random.Random, folder: Path) -> CaseOutcome:
    if find_spec("moto") is None:
        return CaseOutcome("skipped", "moto is not installed: pip install '.[test]'")
    kept_server()
    port = proxy_port()
    misbehave()
    with own_folders(folder):
        spools = folder / "home" / ".cache"
        spools.mkdir()
        if not mounts.problem():
            mounts.mount_tmpfs(spools, 4 << 20)
        options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1&allow_bucket_creation=true"
        bucket = f"bucket-{rng.randrange(1 << 30)}-{time.monotonic_ns()}"
        uri = f"s3://AKIATESTTEST:secret@{bucket}/runs?{options}"
        assert Child(lambda: resolve(uri).fs.create_dir(bucket)).join() == 0
        bench = DriverBench(folder, rng.choice(["rows", "mixture"]))
        make = partial(
            job_of,
            bench,
            step_s=rng.choice([0.0, 0.02]),
            workers=1,
            storage=uri,
            start=StartPolicy(follow=True),
            storage_every_s=rng.choice([0.1, 1.0]),
            epochs=rng.randint(2, 5),
            checkpoint_every=rng.randint(1, 4),
        )
        least = rng.choice([1 << 14, 16 << 20])
        start = partial(drive, make, machines=False, least_bytes=least, home=folder / "home")
        siege = StoreSiege(
            random.Random(rng.random()), start, folder, folder, 1.0, cache=folder / "cache", spools=spools
        )
        try:
            siege.endure(rng.randint(2, 7), 1.0, LIMIT_S * 0.6)
        finally:
            siege.close()
            misbehave()

        def check() -> None:
            judge(bench, below(resolve(uri).uri, NAME))

        assert Child(check).join() == 0, "the final state is not an undisturbed run's"
    return CaseOutcome("equal", faults=siege.struck)
