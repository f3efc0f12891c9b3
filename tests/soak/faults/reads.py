"""Storage that fails, throttles, is slow, hangs or sends too little."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pyarrow as pa
from tests.soak.case import CaseOutcome, Pace, fault, patience, promised
from tests.soak.dataset import SoakSetting, draw
from tests.soak.epoch import Seen, check, compare, epoch
from tests.soak.guards import check_cache
from tests.soak.strikes import Dice, Hang, Strike, reads

from forebay.errors import ForebayError, LoaderClosed, ReadFailed
from forebay.storage.retry import ReadPolicy

_OUTLASTS_S = 60.0
"""An epoch of a case takes less than this, unless it waits."""
PASSING = (
    lambda: ConnectionResetError(104, "Connection reset by peer"),
    lambda: OSError(5, "Input/output error"),
    lambda: TimeoutError("timed out"),
    lambda: OSError("When reading information for key 'a' in bucket 'b': AWS Error NETWORK_CONNECTION"),
)
# The wording of pyarrow 26.
SLOW_DOWN = (
    "AWS Error SLOW_DOWN during GetObject operation: Please reduce your request rate. (HTTP status 503, retry-after)"
)


def run(setting: SoakSetting, strike: Strike, *errors: type[ForebayError], names: str = ".parquet") -> CaseOutcome:
    """Run one epoch while `strike` is active, then check the cache without it."""
    with reads(strike):
        outcome = compare(setting, lambda: epoch(setting), *errors, names=names)
    check_cache(setting)
    return outcome


@fault("read-error", expected="equal, after retries; `ReadFailed` when every attempt fails", quick=2)
def read_error(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    dice, error = Dice(rng, rng.choice([0.05, 0.3])), rng.choice(PASSING)

    def strike(uri: str) -> None:
        if dice.hit():
            raise error()

    return run(setting, strike, ReadFailed)


@fault("read-error-for-good", expected="`ReadFailed` naming the file; equal if the cache has its blocks")
def read_error_for_good(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    doomed, error = str(rng.choice(setting.files())), rng.choice(PASSING)

    def strike(uri: str) -> None:
        if uri == doomed:
            raise error()

    outcome = run(setting, strike, ReadFailed, names=doomed)
    cached = setting.cache.disk is not None and setting.warmth == "warm" and setting.quota == "enough"
    assert (outcome.kind == "equal") <= (setting.cache.disk is not None), "a file that cannot be read was not missed"
    assert outcome.kind == "equal" or not cached, "an epoch from the cache needed the source"
    return outcome


@fault("no-permission", expected="`ReadFailed` that asks for read access; equal if the cache has the blocks", share=0.5)
def no_permission(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    doomed = str(rng.choice(setting.files()))

    def strike(uri: str) -> None:
        if uri == doomed:
            raise PermissionError(13, "Permission denied", uri)

    return run(setting, strike, ReadFailed, names=doomed)


@fault("throttled", expected="equal, after retries with growing waits; `ReadFailed` when it never ends")
def throttled(rng: random.Random, folder: Path) -> CaseOutcome:
    """A store that accepts a few requests, then refuses all for a while."""
    setting = draw(rng, folder)
    lock, count, burst = threading.Lock(), [0], rng.randint(1, 3)
    pause = rng.randint(4, 12)

    def strike(uri: str) -> None:
        with lock:
            count[0] += 1
            refused = count[0] % (pause + burst) >= pause
        if refused:
            raise OSError(SLOW_DOWN)

    return run(setting, strike, ReadFailed)


@fault("slow-read", expected="equal: a read past its deadline is abandoned and replaced", quick=2)
def slow_read(rng: random.Random, folder: Path) -> CaseOutcome:
    return _slow(rng, folder, slow_s=0.6, deadline_s=0.15, most=3)


@fault("slow-read-12s", expected="equal: as above, with reads of 12 s and a deadline of 1 s", share=0.02, quick=0)
def slow_read_12s(rng: random.Random, folder: Path) -> CaseOutcome:
    return _slow(rng, folder, slow_s=12, deadline_s=1.0, most=1, outlasts=True)


def _slow(
    rng: random.Random, folder: Path, *, slow_s: float, deadline_s: float, most: int, outlasts: bool = False
) -> CaseOutcome:
    """With `outlasts`, a slow read takes longer than the epoch, however long that is on this machine."""
    policy = ReadPolicy(attempts=100, deadline_s=deadline_s, first_wait_s=0.005, max_wait_s=0.02)
    setting = draw(rng, folder, policy=policy, warmth="cold")
    left, lock, ended = [rng.randint(1, most)], threading.Lock(), threading.Event()
    dice, held_up = Dice(rng, 0.5), list[str]()

    def strike(uri: str) -> None:
        with lock:
            struck = left[0] > 0 and dice.hit()
            left[0] -= struck
        if struck and not ended.wait(max(slow_s, patience(_OUTLASTS_S)) if outlasts else slow_s):
            held_up.append(uri)

    with reads(strike):
        seen = epoch(setting)
        ended.set()
    check(setting, seen)
    assert left[0] == 0 or not seen.counters["retries"]
    assert not (outlasts and held_up), f"the epoch waited for the slow read of {held_up[0]}"
    check_cache(setting)
    return CaseOutcome("equal")


@fault("read-never-returns", expected="equal if an attempt returns; else `ReadFailed` after the deadlines")
def read_never_returns(rng: random.Random, folder: Path) -> CaseOutcome:
    policy = ReadPolicy(attempts=3, deadline_s=0.2, first_wait_s=0.005, max_wait_s=0.02)
    setting = draw(rng, folder)
    dice = Dice(rng, rng.choice([0.03, 0.03, 0.03, 1.0]))

    with Hang() as hang:

        def strike(uri: str) -> None:
            if dice.hit():
                hang.wait()

        with reads(strike):
            outcome = compare(setting, lambda: epoch(setting.with_policy(policy)), ReadFailed, names=".parquet")
    check_cache(setting)
    return outcome


@fault("close-with-stuck-read", expected="`close(5)` returns within 5 s; the epoch continues from the cursor", quick=2)
def close_with_stuck_read(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder, ranks=1, warmth=rng.choice(["cold", "partial"]))
    lucky = Dice(rng, 0.15)
    seen, loader = Seen(), setting.loader()
    with Hang() as hang, reads(lambda uri: hang.wait() if lucky.hit() else None):
        ended: list[BaseException | None] = []

        def train() -> None:
            try:
                for batch in loader:
                    seen.steps.append((batch.position, batch.size, [{name: a.copy() for name, a in batch.items()}]))
                ended.append(None)
            except LoaderClosed as error:
                ended.append(error)

        trainer = threading.Thread(target=train)
        trainer.start()
        while not hang.stuck.wait(0.02) and not ended:
            pass
        time.sleep(rng.random() * 0.1)
        start = time.monotonic()
        with Pace() as pace:
            loader.close(5)
            took_s = time.monotonic() - start
            trainer.join(patience(60))
        assert took_s < promised(5.5, pace) and not trainer.is_alive(), f"close(5) took {took_s:.1f} s"
    cursor = loader.cursor()
    if ended == [None]:
        check(setting, seen)
    else:
        with setting.loader() as again:
            again.seek(cursor)
            for batch in again:
                seen.steps.append((batch.position, batch.size, [{name: a.copy() for name, a in batch.items()}]))
        check(setting, seen)
    check_cache(setting)
    return CaseOutcome("equal")


@fault("short-read", expected="equal, after retries: fewer bytes than requested are never taken for all")
def short_read(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    dice, keep = Dice(rng, 0.2), rng.random()

    def alter(uri: str, found: object) -> object:
        if not dice.hit():
            return found
        size = found.size if isinstance(found, pa.Buffer) else len(found)
        return found[: int(size * keep)]

    with reads(alter=alter):
        outcome = compare(setting, lambda: epoch(setting), ForebayError, names=".parquet")
    check_cache(setting)
    return outcome


@fault("damaged-in-flight", expected="equal: a page whose checksum is wrong is fetched again; else `CorruptFile`")
def damaged_in_flight(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    dice, lock, bits = Dice(rng, 0.15), threading.Lock(), random.Random(rng.random())

    def alter(uri: str, found: object) -> object:
        if not dice.hit() or not isinstance(found, pa.Buffer):
            return found
        damaged = bytearray(found.to_pybytes())
        with lock:
            # The second half holds pages' data. No checksum covers the minimum and maximum in a header.
            damaged[bits.randrange(len(damaged) // 2, len(damaged))] ^= 1 << bits.randrange(8)
        return pa.py_buffer(bytes(damaged))

    with reads(alter=alter):
        outcome = compare(setting, lambda: epoch(setting), ForebayError, names=".parquet")
    check_cache(setting)
    return outcome
