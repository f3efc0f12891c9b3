"""Diagnosis as text of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from statistics import median

from forebay.doctor.diagnose import Diagnosis
from forebay.doctor.findings.bottleneck import CORES, LOCK, Bottleneck, step_s_of
from forebay.doctor.findings.gains import Gain
from forebay.doctor.findings.loop_parts import BATCH
from forebay.doctor.findings.measurements import Measurements
from forebay.doctor.findings.ways import MEANINGS, RoundKind, Way
from forebay.runtime.formatting import bytes_text, count_text

COLUMNS = 80
_TITLES = {
    BATCH: "batch (a cost of each step, whatever its rows)",
    LOCK: "lock (a lock, or the GIL, in the transform)",
    CORES: "cores (too few of them decode and make features)",
}


def lines_of(diagnosis: Diagnosis) -> list[str]:
    """Return all lines: bottleneck, ways, changes and notes."""
    found = diagnosis.measurements
    parts = [
        *textwrap.wrap(sentence_of(diagnosis), COLUMNS),
        "",
        f"{'way':<10} {'ms a step':>9} {'rows/s':>7} {'spread':>6}  batches",
        *(
            f"{way:<10} {1e3 * step_s:>9.3g} {count_text(rate):>7} {spread:>5.0%}   {MEANINGS[way]}"
            for way, step_s, rate, spread in way_rows(found)
        ),
        "",
        f"{'gain':>6}  change, in the first epoch",
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
    where = title_of(bottleneck.name)
    if bottleneck.tied_with is not None:
        where = f"{where} and {title_of(bottleneck.tied_with)}, within {bottleneck.tied_within:.0%}"
    epoch = "first epoch" if found.facts.epochs > 1 else "epoch"
    text = f"The bottleneck of the {epoch} is {where}: {_step_text(bottleneck, found)}"
    if after is not None:
        text += f"; next is {title_of(after.name)}, at {1e3 * after.step_s:.3g} ms"
    text += "."
    cached = verdict.cached
    if found.facts.epochs > 1 and cached.name != bottleneck.name:
        verb = "is" if found.facts.quota_bytes is not None else "would be"
        text += f" For later epochs from a cache it {verb} {title_of(cached.name)}: {_step_text(cached, found)}."
    return text if found.cut_off is None else f"{text} {found.cut_off}"


def title_of(name: str) -> str:
    """Return the name of a bottleneck for people."""
    return _TITLES.get(name, name)


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
        f"the job can use {found.usable_data_workers} data workers for each; it has {facts.data_cores}."
    )
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found.making.items() if share >= 0.005)
    notes.append(f"Time of data workers, of pages in the page cache: {shares}.")
    if found.contention is None:
        notes.append("This system does not count the time that threads wait for cores, so no lock can be found.")
    else:
        seen = found.contention
        notes.append(
            f"The transform was blocked for {seen.alone:.0%} of its time alone, {seen.together:.0%} beside itself, and "
            f"{seen.beside:.0%} beside the train function, which was blocked for {seen.training:.0%} alone and "
            f"{seen.training_beside:.0%} beside it."
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
