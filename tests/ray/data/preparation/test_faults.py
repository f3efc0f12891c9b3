"""Preparation with Ray Data under faults: the sealed files equal an undisturbed run's."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import ray
from ray.exceptions import RayError
from tests.waiting import until

import forebay as fb
from forebay.data.manifest.prepared import list_prepared
from forebay.testing.drivers.nodes import SmallNodes

ROWS, FILES, WAIT_S = 6000, 12, 120.0
FITS = (fb.Vocabulary("city"), fb.preparation.Moments(["price"]))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    row = rng.permutation(ROWS)
    table = pa.table({"row": row, "city": [f"c{number % 7}" for number in row.tolist()]})
    (tmp_path / "lake").mkdir()
    size = ROWS // FILES
    for number in range(FILES):
        pq.write_table(table.slice(number * size, size), tmp_path / "lake" / f"c{number:02d}.parquet")
    return tmp_path / "lake"


def priced(table: pa.Table, pause_s: float, notes: str) -> pa.Table:
    """Notes the node that works on a block, and takes its time."""
    if notes:
        Path(notes, f"{ray.get_runtime_context().get_node_id()}-{os.getpid()}-{time.time_ns()}").touch()
        time.sleep(pause_s)
    return table.append_column("price", pc.multiply(pc.cast(table["row"], pa.float64()), 0.5))


def features(root: Path, pause_s: float = 0.0, notes: str = "") -> ray.data.Dataset:
    # Small files are read by one task, whatever their number.
    rows = ray.data.read_parquet(str(root)).repartition(FILES)
    return rows.map_batches(partial(priced, pause_s=pause_s, notes=notes), batch_format="pyarrow")


def by_hand(root: Path) -> Iterator[pa.Table]:
    yield priced(pq.read_table(root), 0.0, "")


def make(root: Path, into: Path, pause_s: float = 0.0, notes: str = "") -> fb.Prepared:
    return fb.preparation.from_ray_data(
        features,
        root=root,
        pause_s=pause_s,
        notes=notes,
        into=str(into),
        key="row",
        row_group_rows=256,
        fit=FITS,
        inputs=[root],
    )


def undisturbed(root: Path, into: Path) -> fb.Prepared:
    return fb.prepare(by_hand, root=root, into=str(into), key="row", row_group_rows=256, fit=FITS, inputs=[root])


@pytest.fixture
def nodes(ray_off: None) -> Iterator[SmallNodes]:
    found = SmallNodes(others=1, cpus=2, head_cpus=2)
    yield found
    found.close()


@pytest.mark.variation
def test_a_node_that_is_lost_changes_nothing(nodes: SmallNodes, lake: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    doomed = nodes.others[0]

    def lose() -> None:
        until(lambda: any(path.name.startswith(doomed) for path in notes.iterdir()))
        nodes.kill(doomed)

    losing = threading.Thread(target=lose)
    losing.start()
    try:
        made = make(lake, tmp_path / "into", 0.5, str(notes))
    except RayError:  # Ray may give up. The next call starts over.
        made = make(lake, tmp_path / "into", 0.5, str(notes))
    finally:
        losing.join()
    expected = undisturbed(lake, tmp_path / "expected")
    assert made.files == expected.files
    assert (made.statistics, made.vocabularies) == (expected.statistics, expected.vocabularies)


@pytest.mark.variation
def test_files_are_the_same_for_any_number_of_cpus(ray_off: None, lake: Path, tmp_path: Path) -> None:
    expected = undisturbed(lake, tmp_path / "expected")
    for cpus in (1, 2, 5):
        ray.init(
            address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
        )
        made = make(lake, tmp_path / f"into-{cpus}")
        ray.shutdown()
        assert made.files == expected.files
        for file in made.files:
            assert Path(made.folder, file.path).read_bytes() == Path(expected.folder, file.path).read_bytes()


DRIVER = """
import sys
from pathlib import Path
from tests.ray.preparation.test_faults import make

made = make(Path(sys.argv[1]), Path(sys.argv[2]), 0.3, sys.argv[3])
print(made.manifest.id, flush=True)
"""


def driver(lake: Path, into: Path, notes: Path) -> subprocess.Popen[str]:
    """A driver with a Ray of its own, which ends with it."""
    line = [sys.executable, "-c", DRIVER, str(lake), str(into), str(notes)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[4]), os.getenv("PYTHONPATH")]))
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment)


def working_nodes(notes: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in notes.iterdir()}


@pytest.mark.variation
def test_a_killed_driver_is_succeeded_by_the_next_two_of_which_one_prepares(
    ray_off: None, lake: Path, tmp_path: Path
) -> None:
    notes, into = tmp_path / "notes", tmp_path / "into"
    notes.mkdir()
    killed = driver(lake, into, notes)
    until(lambda: any(notes.iterdir()))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert [found for _, found in list_prepared(str(into))] == [None]
    first = working_nodes(notes)
    both = [driver(lake, into, notes) for _ in range(2)]
    said = {process.communicate(timeout=WAIT_S)[0].splitlines()[-1] for process in both}
    assert said == {undisturbed(lake, tmp_path / "expected").manifest.id}
    (second,) = working_nodes(notes) - first
    assert len(list(notes.glob(f"{second}-*"))) == FILES
