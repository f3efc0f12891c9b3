"""Objects that are cut, replaced, removed or damaged after the scan."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from tests.soak.case import CaseOutcome, fault
from tests.soak.dataset import SoakSetting, draw, write_file
from tests.soak.epoch import compare, epoch
from tests.soak.guards import check_cache

from forebay.errors import CorruptFile, ForebayError, SourceChanged


def strike_at(rng: random.Random, setting: SoakSetting, strike: object) -> object:
    """An `on_step` that calls `strike` once: before the first step, or before one in the middle."""
    when = rng.choice([0, rng.randrange(setting.plan.num_batches(setting.global_batch) + 1)])
    return lambda step: strike() if step == when else None


def run(
    rng: random.Random, setting: SoakSetting, path: Path, strike: object, *errors: type[ForebayError]
) -> CaseOutcome:
    """Run one epoch during which the object `path` suffers `strike`. Then restores it and checks the cache."""
    good, stat = path.read_bytes(), path.stat()
    outcome = compare(setting, lambda: epoch(setting, strike_at(rng, setting, strike)), *errors, names=str(path))
    path.unlink(missing_ok=True)
    path.write_bytes(good)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    check_cache(setting)
    return outcome


def _put(path: Path, content: bytes, how: str) -> None:
    """Replace an object: under its name at once, as stores do, or in place."""
    if how == "rename":
        new = path.with_suffix(".new")
        new.write_bytes(content)
        new.rename(path)
    else:
        path.write_bytes(content)


@fault("truncated-object", expected="`SourceChanged` naming the object; equal if all was read before or is cached")
def truncated_object(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    path = rng.choice(setting.files())
    stat, content = path.stat(), path.read_bytes()
    size, how, keep_time = rng.randrange(len(content)), rng.choice(["rename", "in place"]), rng.random() < 0.5

    def strike() -> None:
        _put(path, content[:size], how)
        if keep_time:
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    return run(rng, setting, path, strike, SourceChanged)


@fault("replaced-object", expected="`SourceChanged` naming the object and both versions; equal as above", quick=2)
def replaced_object(rng: random.Random, folder: Path) -> CaseOutcome:
    """Other rows under the same name: none of them may ever be delivered."""
    setting = draw(rng, folder)
    path, how = rng.choice(setting.files()), rng.choice(["rename", "in place"])
    other = folder / "other.parquet"
    index = setting.files().index(path)
    groups = [row_group.rows for row_group in setting.plan.manifest if row_group.uri == str(path)]
    write_file(other, groups, 1_000_000 * (index + 1))
    return run(rng, setting, path, lambda: _put(path, other.read_bytes(), how), SourceChanged)


@fault("removed-object", expected="`SourceChanged` naming the object; equal as above")
def removed_object(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    path = rng.choice(setting.files())
    return run(rng, setting, path, path.unlink, SourceChanged)


@fault("corrupt-page", expected="`CorruptFile` naming object and row group; equal if the bit carries no data", quick=2)
def corrupt_page(rng: random.Random, folder: Path) -> CaseOutcome:
    """Flip one bit of a page on the store's disk. Size and time of the object stay the same."""
    setting = draw(rng, folder)
    path = rng.choice(setting.files())
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[rng.randrange(4, _end_of_pages(content))] ^= 1 << rng.randrange(8)

    def strike() -> None:
        # Written in place, it would have another time for a moment.
        new = path.with_suffix(".new")
        new.write_bytes(content)
        os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        new.rename(path)

    return run(rng, setting, path, strike, CorruptFile)


@fault("corrupt-footer", expected="`CorruptFile` or `SourceChanged` naming the object; equal if nothing depends on it")
def corrupt_footer(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    path = rng.choice(setting.files())
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[rng.choice([len(content) - 1, len(content) - 6, 0 - rng.randint(1, 8)])] ^= 1 << rng.randrange(8)

    def strike() -> None:
        path.write_bytes(content)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    return run(rng, setting, path, strike, CorruptFile, SourceChanged)


@fault("data-folder-gone", expected="`SourceChanged` naming the object; equal if the cache has all blocks", share=0.5)
def data_folder_gone(rng: random.Random, folder: Path) -> CaseOutcome:
    setting = draw(rng, folder)
    hidden = folder / "elsewhere"
    strike = strike_at(rng, setting, lambda: setting.data.rename(hidden))
    outcome = compare(setting, lambda: epoch(setting, strike), SourceChanged, names=str(setting.data))
    if hidden.exists():
        shutil.move(hidden, setting.data)
    check_cache(setting)
    return outcome


def _end_of_pages(content: bytes) -> int:
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")
