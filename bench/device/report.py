"""Tables of the GPU's benches, made of their lines, and the page with these tables.

    python -m bench.device.report FEED CORES

writes both tables, and the needs of a larger machine, between the marks of docs/benchmarks/gpu.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from bench.processes import REPOSITORY
from bench.turns import Line, markdown_table, read_lines

PAGE = REPOSITORY / "docs" / "benchmarks" / "gpu.md"
BEGIN, END = "<!-- now: begin -->", "<!-- now: end -->"
NUM_GPUS, NUM_CORES = 8, 96
_FEED_HEAD = (
    "way", "batch", "M rows/s", "busy", "in steps", "waits", "cores", "CPU s / M rows", "private MB", "shared MB",
)  # fmt: skip
_CORES_HEAD = (
    "way", "cores", "M rows/s", "of pyarrow", "of DataLoader", "cores at work", "CPU s / M rows", "private MB",
    "shared MB",
)  # fmt: skip
_MODEL_HEAD = (
    "epoch, batch", "ceiling, M rows/s", "reached", "CPU s / M rows of data", "cores a GPU",
    f"cores for {NUM_GPUS} GPUs", f"{NUM_CORES} are enough", f"GB/s for {NUM_GPUS} GPUs",
)  # fmt: skip


def feed_rows(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    """One row for each way and size of a batch. The ceiling is the median of all processes."""
    found = [_FEED_HEAD]
    batches = sorted({line["batch"] for line in lines if "batch" in line})
    for batch in batches:
        here = [line for line in lines if line.get("batch") == batch]
        tops = [line["mrows_s"] for line in here if line["phase"] == "ceiling"]
        found.append(("ceiling: batches stay on the device", f"{batch:,}", f"{median(tops):.2f}", *["-"] * 7))
        found += [_feed_row(line) for line in here if line["phase"] != "ceiling"]
    return found + [(f"{_way(line)}: {line['failed']}", *["-"] * 9) for line in lines if "failed" in line]


def _feed_row(line: Line) -> tuple[str, ...]:
    busy = f"{line['busy']:.2f}" if line["busy"] is not None else f"no GPU ({line['of_ceiling']:.2f} of the ceiling)"
    return (
        f"{_way(line)}, {line['phase']}",
        f"{line['batch']:,}",
        f"{line['mrows_s']:.2f}",
        busy,
        "-" if line["in_steps"] is None else f"{line['in_steps']:.2f}",
        f"{line['wait_share']:.2f}",
        f"{line['cores']:.1f}",
        f"{line['cpu_s_per_mrow']:.2f}",
        f"{line['private_mb']:,}",
        f"{line['shared_mb']:,}",
    )


def cores_rows(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    """One row for each system, way and number of cores, with ratios to the peers on as many cores."""
    found = [_CORES_HEAD]
    measured = [line for line in lines if "mrows_s" in line]
    for count in sorted({line["cores"] for line in measured}):
        here = [line for line in measured if line["cores"] == count]
        peers = {name: _rate(here, name) for name in ("pyarrow, decode", "torch DataLoader, every epoch")}
        for name in dict.fromkeys(f"{_way(line)}, {line['phase']}" for line in here):
            rate = _rate(here, name)
            own = [line for line in here if f"{_way(line)}, {line['phase']}" == name]
            ratios = [f"{rate / peer:.2f}" if peer and rate else "-" for peer in peers.values()]
            rest = [f"{median(line[key] for line in own):{form}}" for key, form in _REST.items()]
            at_work = median(line["mrows_s"] * line["cpu_s_per_mrow"] for line in own)
            found.append((name, str(count), f"{rate:.2f}", *ratios, f"{at_work:.1f}", *rest))
    return found + [
        (f"{_way(line)}: {line['failed']}", str(line["cores"]), *["-"] * 7) for line in lines if "failed" in line
    ]


_REST = {"cpu_s_per_mrow": ".2f", "private_mb": ",.0f", "shared_mb": ",.0f"}


def _rate(lines: Sequence[Line], name: str) -> float:
    """Median rate of a system's phase. Of a peer the highest."""
    rates = [line["mrows_s"] for line in lines if f"{_way(line)}, {line['phase']}" == name]
    choose = median if name.startswith("forebay") else max
    return choose(rates) if rates else 0.0


def model_rows(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    """Needs of `NUM_GPUS` GPUs, each with a trainer and a loader of its own, at the rate of the ceiling.

    A GPU takes the cores of its steps, and the rows/s of the ceiling times the CPU seconds of a row beside the steps.
    GB/s count the files in a cold epoch, and the blocks in a cached one.
    """
    found = [_MODEL_HEAD]
    facts = next((line for line in lines if "bench" in line), {})
    tops = {(line.get("data_workers"), line["batch"]): line for line in lines if line.get("phase") == "ceiling"}
    for line in lines:
        if line.get("system") != "forebay" or line.get("phase") not in ("cold", "cached"):
            continue
        top = tops[line.get("data_workers"), line["batch"]]
        data_s = max(line["cpu_s_per_mrow"] - top["cpu_s_per_mrow"], 0.0)
        per_gpu = top["mrows_s"] * data_s + top["cores"]
        read = facts["source_bytes_per_row" if line["phase"] == "cold" else "row_bytes"]
        found.append(
            (
                f"{_way(line)}, {line['phase']}, {line['batch']:,}",
                f"{top['mrows_s']:.2f}",
                f"{line['of_ceiling']:.2f}",
                f"{data_s:.2f}",
                f"{per_gpu:.1f}",
                f"{NUM_GPUS * per_gpu:.0f}",
                "yes" if NUM_GPUS * per_gpu <= NUM_CORES else f"no: {NUM_GPUS * per_gpu / NUM_CORES:.1f} times as many",
                f"{NUM_GPUS * top['mrows_s'] * read / 1e3:.1f}",
            )
        )
    return found


def page_with(page: str, feed: Sequence[Line], cores: Sequence[Line]) -> str:
    """Return the page with these results between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{chr(10).join(_now(feed, cores))}\n{END}{after}"


def _now(feed: Sequence[Line], cores: Sequence[Line]) -> Iterator[str]:
    for lines, rows in ((feed, feed_rows(feed)), (cores, cores_rows(cores))):
        facts = next((line for line in lines if "bench" in line), None)
        if facts is not None:
            yield f"{_ran_on(facts)}\n\n{markdown_table(rows)}\n"
    if feed:
        yield f"Needs of a machine with {NUM_CORES} cores and {NUM_GPUS} GPUs, by the first of these tables:\n"
        yield markdown_table(model_rows(feed))


def _ran_on(facts: Line) -> str:
    """Sentence of machine, date and commit."""
    parts = [
        facts["cpu"],
        f"{facts['usable_cores']:g} cores",
        f"{facts['memory_bytes'] / 2**30:.0f} GiB",
        ", ".join(facts["gpus"]) or "no GPU",
        *(f"{name} {facts[name]}" for name in ("python", "torch", "pyarrow")),
        f"{facts['rows']:,} rows of {facts['row_bytes']} bytes in {facts['folder']}",
    ]
    return f"`{facts['bench']}`, {facts['date']}, commit {facts['commit']}: {', '.join(parts)}."


def _way(line: Line) -> str:
    words = {"data_workers": "{} as data workers", "processes_given": "processes: {}"}
    given = [text.format(line[name]) for name, text in words.items() if name in line]
    return ", ".join([line["system"], *given])


if __name__ == "__main__":
    paths = [Path(each) for each in sys.argv[1:3]]
    PAGE.write_text(page_with(PAGE.read_text(), *map(read_lines, paths)))
