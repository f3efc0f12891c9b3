"""Two datasets of the bench: the same bytes on every machine with the same pyarrow.

python -m bench.loader.data --kind dense --rows 1000000 --folder data/bench
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.loader.features import CITIES, KINDS, MAX_TAGS, NUM_IDS

FILES = 8
ROW_GROUPS = 64
ROWS = 1_000_000
# Row numbers are stored in a float32 column, which represents whole numbers exactly up to this one.
MOST_ROWS = 1 << 24


def make(kind: str, folder: Path, *, rows: int = ROWS, row_groups: int = ROW_GROUPS) -> Path:
    """Write the dataset of `kind` unless it exists. Returns its folder.

    Args:
        kind: "dense" (100 float32 columns) or "mixed" (13 floats, 26 int64 ids, a list of up to 32 ids, a string).
        folder: Parent folder. Datasets of other sizes and kinds are beside each other.
        rows: Rows of the whole dataset, at most 2^24.
        row_groups: Row groups of the whole dataset, in 8 files. Snappy, other options as pyarrow's defaults.
    """
    if kind not in KINDS or not row_groups <= rows <= MOST_ROWS:
        raise SystemExit(
            f"kind={kind!r}, rows={rows}, row_groups={row_groups}: give a kind of {', '.join(KINDS)} and between "
            f"row_groups and {MOST_ROWS} rows."
        )
    target = folder / f"{kind}-{rows}-{row_groups}"
    if target.exists():
        return target
    unfinished = target.with_suffix(".unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    starts = np.linspace(0, rows, row_groups + 1).astype(int)
    for number, groups in enumerate(np.array_split(np.arange(row_groups), min(FILES, row_groups))):
        path = unfinished / f"part-{number:05d}.parquet"
        with pq.ParquetWriter(path, _schema(kind), compression="snappy") as writer:
            for group in groups:
                table = _table(kind, int(starts[group]), int(starts[group + 1]))
                writer.write_table(table, row_group_size=max(len(table), 1))
    unfinished.rename(target)
    return target


def digest(folder: Path) -> str:
    """Digest of the bytes of all files, in the order of their names."""
    sha = hashlib.sha256()
    for path in sorted(folder.glob("*.parquet")):
        sha.update(path.read_bytes())
    return sha.hexdigest()


def _schema(kind: str) -> pa.Schema:
    return _table(kind, 0, 1).schema


def _table(kind: str, start: int, stop: int) -> pa.Table:
    numbers = np.arange(start, stop)
    rng = np.random.default_rng([start, stop])
    maker = _dense if kind == "dense" else _mixed
    columns = maker(numbers, rng)
    columns["label"] = rng.integers(2, size=len(numbers)).astype(np.float32)
    return pa.table(columns)


def _dense(numbers: np.ndarray, rng: np.random.Generator) -> dict[str, object]:
    names = KINDS["dense"].groups["x"]
    values = rng.standard_normal((len(names), len(numbers)), dtype=np.float32)
    values[0] = numbers
    return dict(zip(names, values, strict=True))


def _mixed(numbers: np.ndarray, rng: np.random.Generator) -> dict[str, object]:
    rows, groups = len(numbers), KINDS["mixed"].groups
    columns: dict[str, object] = {name: rng.standard_normal(rows, dtype=np.float32) for name in groups["dense"]}
    # Some columns have a handful of values, some millions, as in click logs.
    ids = [numbers, *(rng.integers(10 ** (1 + place % 7), size=rows) for place in range(1, NUM_IDS))]
    columns |= dict(zip(groups["ids"], ids, strict=True))
    ends = np.concatenate([[0], np.cumsum(rng.integers(MAX_TAGS + 1, size=rows))])
    tags = rng.integers(1, 100_000, size=ends[-1])
    columns["tags"] = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(tags, pa.int64()))
    columns["city"] = pa.array(CITIES, pa.string()).take(pa.array(rng.integers(len(CITIES), size=rows)))
    return columns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=[*KINDS], default="dense")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--row-groups", type=int, default=ROW_GROUPS)
    parser.add_argument("--folder", type=Path, default=Path("data/bench"))
    given = parser.parse_args()
    print(make(given.kind, given.folder, rows=given.rows, row_groups=given.row_groups))


if __name__ == "__main__":
    main()
