"""Diagnosis as text of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from statistics import median

from forebay.doctor.diagnose import Diagnosis
from forebay.doctor.findings.bottleneck import CORES, LOCK, Bottleneck, step_s_of
from forebay.doctor.findings.gains import CACHED, Gain
from forebay.doctor.findings.loop_parts import BATCH
from forebay.doctor.findings.measurements import Measurements
from forebay.doctor.findings.ways import MEANINGS, RoundKind, Way
from forebay.runtime.formatting import bytes_text, count_text

COLUMNS = 80
IN_FIRST_EPOCH = "in the first epoch"
"""Epoch that gains are of: later ones, from a cache, may have another bottleneck."""
WORTH = 1.05
"""Least gain that is worth a change."""
_TITLES = {
    BATCH: "batch (a cost of each step, whatever its rows)",
    LOCK: "lock (a lock, or the GIL, in the transform)",
    CORES: "cores (too few of them decode and make features)",
}

_PLAIN = {
    Way.COMPUTE: "speed up the model (a faster device, lower precision, torch.compile). The loader keeps up with it.",
    Way.COPY: "make batches smaller (fewer columns, smaller types), or use a device with a faster bus.",
    Way.GATHER: "use a larger batch or fewer columns: copying rows into batches is what takes the time.",
    Way.TRANSFORM: "make the transform cheaper, or use a cache, so that later epochs skip it.",
    Way.NETWORK: "bring the data nearer, or use a cache, so that later epochs do not read it.",
}
"""Next step where no change that was measured helps."""


def lines_of(diagnosis: Diagnosis) -> list[str]:
    """Return all lines: bottleneck, ways, changes and notes."""
    found = diagnosis.measurements
    parts = [
        *textwrap.wrap(sentence_of(diagnosis), COLUMNS),
        *textwrap.wrap(next_step_of(diagnosis), COLUMNS),
        "",
        f"{'way':<10} {'ms a step':>9} {'rows/s':>7} {'spread':>6}  batches",
        *(
            f"{way_name(way, found):<10} {1e3 * step_s:>9.3g} {count_text(rate):>7} {spread:>5.0%}   {MEANINGS[way]}"
            for way, step_s, rate, spread in way_rows(found)
        ),
        "",
        f"{'gain':>6}  change, {IN_FIRST_EPOCH}",
        *(line for gain in diagnosis.gains for line in _gain_lines(gain)),
        "",
        *(line for note in notes_of(found) for line in textwrap.wrap(note, COLUMNS)),
    ]
    return [line.rstrip() for line in parts]


def sentence_of(diagnosis: Diagnosis) -> str:
    """Return the bottleneck as a sentence.

    Another one follows if later epochs have another bottleneck.
    """
    found, verdict = diagnosis.measurements, diagnosis.verdict
    bottleneck, after = verdict.bottleneck, verdict.next_bottleneck
    where = title_of(bottleneck.name, found)
    if bottleneck.tied_with is not None:
        where = f"{where} and {title_of(bottleneck.tied_with, found)}, within {bottleneck.tied_within:.0%}"
    epoch = "first epoch" if found.facts.epochs > 1 else "epoch"
    text = f"The bottleneck of the {epoch} is {where}: {_step_text(bottleneck, found)}"
    if after is not None:
        text += f"; next is {title_of(after.name, found)}, at {1e3 * after.step_s:.3g} ms"
    text += "."
    cached = verdict.cached
    if found.facts.epochs > 1 and cached.name != bottleneck.name:
        verb = "is" if found.facts.quota_bytes is not None else "would be"
        text += f" For later epochs from a cache it {verb} {title_of(cached.name, found)}: {_step_text(cached, found)}."
    return text if found.cut_off is None else f"{text} {found.cut_off}"


def next_step_of(diagnosis: Diagnosis) -> str:
    """Return the one change to try next, in plain words."""
    found, bottleneck = diagnosis.measurements, diagnosis.verdict.bottleneck
    gains = [gain for gain in diagnosis.gains if gain.change != CACHED or _cache_step(found) is not None]
    best = max(gains, key=lambda gain: gain.factor, default=None)
    if best is not None and best.factor >= WORTH:
        if best.change == CACHED:
            return f"Next step: {_cache_step(found)} about {best.factor:.1f} times as fast."
        return f"Next step: {best.change}. It makes the first epoch about {best.factor:.1f} times as fast."
    if bottleneck.way in _PLAIN:
        return f"Next step: {_PLAIN[bottleneck.way]}"
    return (
        f"Next step: none of the changes below makes the {title_of(bottleneck.name, found)} faster; see its function."
    )


def _cache_step(found: Measurements) -> str | None:
    """Return what a cache does for the job, up to the factor.

    None if it has no epoch to read from one.
    """
    facts, later = found.facts, "Each epoch after the first is then"
    if facts.quota_bytes is None:
        return f"give the job a cache: fb.Job(cache=fb.CacheSpec(...)). {later}" if facts.epochs > 1 else None
    if facts.block_bytes > facts.quota_bytes:
        room = bytes_text(facts.block_bytes)
        return f"give the cache a quota of {room}, which its blocks need. {later}" if facts.epochs > 1 else None
    return "fill the cache before the run, with `forebay warm`. The first epoch is then, as the later ones,"


def title_of(name: str, found: Measurements) -> str:
    """Return the name of a bottleneck for people."""
    return _TITLES.get(name, way_name(name, found))


def way_name(way: str, found: Measurements) -> str:
    """Return the name of a way for people: files of this machine come from no network."""
    return "disk" if way == Way.NETWORK and found.facts.is_local else str(way)


def way_rows(found: Measurements) -> Iterator[tuple[Way, float, float, float]]:
    """Yield a row for each way that was run.

    The way, seconds of a step, rows per second, and spread of the rounds.
    """
    for way in Way:
        rounds = list(found.step_s(RoundKind(way=way)).values())
        if rounds:
            middle = median(rounds)
            spread = median(abs(value - middle) for value in rounds) / middle
            yield way, step_s_of(found, way), found.facts.rows / step_s_of(found, way), spread


def notes_of(found: Measurements) -> list[str]:
    """Sentences about how the numbers were measured."""
    facts = found.facts
    steps = f"A step has {facts.rows:,} rows ({bytes_text(facts.batch_bytes)}) on 1 of {facts.workers} workers"
    notes = [
        f"{steps}, on {_device_text(facts.device)}. Gradients are not exchanged, and nothing is saved or evaluated."
    ]
    if facts.device == "cpu" and not found.of(RoundKind(way=Way.COPY)):
        notes.append("The model is on the CPU, so there is no copy.")
    notes.append(
        f"Training keeps {found.training_cores:.1f} of {facts.cores:g} cores busy for each worker of this machine. So "
        f"the most data workers that it can use for each is {found.usable_data_workers}; it has {facts.data_cores}."
    )
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found.making.items() if share >= 0.005)
    notes.append(f"Time of data workers, of pages in the page cache: {shares}.")
    if found.contention is None:
        notes.append("This system does not count the time that threads wait for cores, so no lock can be found.")
    else:
        seen = found.contention
        notes.append(
            f"Time that threads waited for a lock or for another thread: the transform {seen.alone:.0%} alone, "
            f"{seen.together:.0%} with a second one, {seen.beside:.0%} during training; training {seen.training:.0%} "
            f"alone, {seen.training_beside:.0%} with a transform."
        )
    if facts.device.startswith("cuda"):
        idle = ", ".join(f"{way} {share:.0%}" for way, share in found.gpu_idle.items())
        notes.append(
            f"GPU idle: {idle}." if idle else "GPU idle time: install NVML's package, pip install nvidia-ml-py."
        )
    return notes


def _device_text(device: str) -> str:
    kind, _, number = device.partition(":")
    if kind == "cuda":
        return f"GPU {number}" if number else "a GPU"
    return "the CPU" if kind == "cpu" else device


def _step_text(bottleneck: Bottleneck, found: Measurements) -> str:
    return f"{1e3 * bottleneck.step_s:.3g} ms a step, {count_text(found.facts.rows / bottleneck.step_s)} rows/s"


def _gain_lines(gain: Gain) -> list[str]:
    head, indent = f"{gain.factor:>5.2f}x  ", " " * 8
    return textwrap.wrap(f"{gain.change}: {gain.why}", COLUMNS, initial_indent=head, subsequent_indent=indent)
