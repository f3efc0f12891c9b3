"""A pickle that would leave a mark, planted wherever something is read: no read may run code."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash

from forebay.data.manifest.saved import load_manifest
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.plan.cursor import Cursor
from forebay.data.sources.scan import scan
from forebay.errors import CursorMismatch, ForebayError, InvalidOption
from forebay.training.checkpoint.checkpoint import Checkpoint, DirectoryStore
from forebay.training.runs.result import load_result
from forebay.world import World

CURSOR = Cursor(plan_id="9c02", epoch=0, position=8, global_batch=4)


class PlantedMark:
    """Object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mknod, (str(self.path),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """File that a planted pickle creates when it is loaded. The fixture proves first that it would."""
    pickle.loads(pickle.dumps(PlantedMark(tmp_path / "tried")))
    assert (tmp_path / "tried").exists()
    return tmp_path / "ran"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one checkpoint, of step 2."""
    DirectoryStore(tmp_path / "run").save(
        Checkpoint(step=2, cursor=CURSOR, world=World(), shards={0: {"w": torch.arange(4.0), "n": 1}})
    )
    return tmp_path / "run"


def update_checksums(folder: Path) -> None:
    """Recompute the checksums of the state, as an attacker would."""
    state = (folder / "shard-00000.pt").read_bytes()
    metadata = json.loads((folder / "checkpoint.json").read_text())
    del metadata["xxh3_128"]
    metadata["shards"] = {"0": {"bytes": len(state), "xxh3_128": xxhash.xxh3_128(state).hexdigest()}}
    digest = xxhash.xxh3_128(json.dumps(metadata, sort_keys=True).encode())
    (folder / "checkpoint.json").write_text(json.dumps(metadata | {"xxh3_128": digest.hexdigest()}))


def as_saved_by_torch(value: object) -> bytes:
    sink = io.BytesIO()
    torch.save(value, sink)
    return sink.getvalue()


def with_another_pickle(state: bytes, pickled: bytes) -> bytes:
    """A state in today's form, with another pickle inside."""
    sink = io.BytesIO()
    # Written again: checkpoints are saved without the checksums that `zipfile` looks at.
    state = as_saved_by_torch(torch.load(io.BytesIO(state), weights_only=True))
    with zipfile.ZipFile(io.BytesIO(state)) as source, zipfile.ZipFile(sink, "w") as target:
        for name in source.namelist():
            target.writestr(name, pickled if name.endswith("data.pkl") else source.read(name))
    return sink.getvalue()


FORMS: dict[str, Callable[[bytes, PlantedMark], bytes]] = {
    "a bare pickle": lambda state, mark: pickle.dumps(mark),
    "an old protocol": lambda state, mark: pickle.dumps(mark, protocol=0),
    "saved by torch": lambda state, mark: as_saved_by_torch({"w": mark}),
    "within a state": lambda state, mark: with_another_pickle(state, pickle.dumps({"w": mark}, protocol=2)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_pickle_in_a_commit_does_not_run(run: Path, mark: Path, form: str) -> None:
    folder = run / "step-000000002"
    update_checksums(folder)
    assert DirectoryStore(run).newest() is not None, "it is the pickle that is refused"
    state = (folder / "shard-00000.pt").read_bytes()
    (folder / "shard-00000.pt").write_bytes(FORMS[form](state, PlantedMark(mark)))
    assert DirectoryStore(run).newest() is None, "without the right checksum it is not even looked at"
    update_checksums(folder)
    with pytest.raises(CursorMismatch, match=r"step-000000002 is complete, but this release cannot read it.*new name"):
        DirectoryStore(run).newest()
    assert not mark.exists()


def test_a_commit_that_cannot_be_read_is_not_passed_over(run: Path, mark: Path) -> None:
    """Training on from an older checkpoint would delete it, and a later PyTorch may refuse all checkpoints."""
    DirectoryStore(run).save(Checkpoint(step=3, cursor=CURSOR, world=World(), shards={0: {"n": 2}}))
    folder = run / "step-000000003"
    (folder / "shard-00000.pt").write_bytes(pickle.dumps(PlantedMark(mark)))
    update_checksums(folder)
    with pytest.raises(CursorMismatch, match="step-000000003"):
        DirectoryStore(run).newest()


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_in_place_of_any_small_file_does_not_run(tmp_path: Path, mark: Path, protocol: int) -> None:
    bomb = pickle.dumps(PlantedMark(mark), protocol=protocol)
    for name in ("manifest.json", "manifest.parquet", "manifest.pkl", "result.json"):
        (tmp_path / name).write_bytes(bomb)
    for name in ("manifest.json", "manifest.parquet", "manifest.pkl"):
        with pytest.raises(InvalidOption, match="is not a manifest"):
            load_manifest(tmp_path / name)
    with pytest.raises(InvalidOption, match="not the result.json of a Forebay run"):
        load_result(str(tmp_path))
    with pytest.raises(CursorMismatch):
        Cursor.from_json(bomb.decode("latin-1"))
    assert not mark.exists()


def test_a_pickle_in_place_of_a_parquet_file_does_not_run(tmp_path: Path, mark: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + pickle.dumps(PlantedMark(mark)) + b"PAR1")
    with pytest.raises(ForebayError, match=r"a\.parquet is corrupt"):
        scan(tmp_path / "a.parquet")
    assert not mark.exists()


def test_a_pickled_type_in_a_parquet_file_does_not_run(tmp_path: Path, mark: Path) -> None:
    """Arrow before 14.0.1 unpickled it when the file was opened (CVE-2023-47248)."""
    bomb = pickle.dumps(PlantedMark(mark))
    fields = [
        pa.field(f"x{number}", pa.int64(), metadata={"ARROW:extension:name": name, "ARROW:extension:metadata": bomb})
        for number, name in enumerate(["arrow.py_extension_type", "pandas.period"])
    ]
    schema = pa.schema(fields, metadata={"pandas": bomb, "forebay": bomb, "ray": base64.b64encode(bomb)})
    pq.write_table(pa.table([[1, 2]] * len(fields), schema=schema), tmp_path / "a.parquet")
    manifest = scan(tmp_path / "a.parquet")
    assert RowGroupReader(manifest).read(0)["x0"].to_pylist() == [1, 2]
    with pytest.raises(InvalidOption, match="is not a manifest"):
        load_manifest(tmp_path / "a.parquet")
    assert not mark.exists()


def test_an_extension_type_that_makes_no_sense_is_a_corrupt_file(tmp_path: Path, mark: Path) -> None:
    """Ray Data's types, once imported, inspect every footer that names them."""
    facts = {
        "ARROW:extension:name": "ray.data.arrow_tensor_v2",
        "ARROW:extension:metadata": pickle.dumps(PlantedMark(mark)),
    }
    schema = pa.schema([pa.field("x", pa.int64(), metadata=facts)])
    pq.write_table(pa.table([[1, 2]], schema=schema), tmp_path / "a.parquet")
    script = f"import ray.data, forebay; forebay.scan({str(tmp_path / 'a.parquet')!r})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    assert "CorruptFile" in done.stderr and "its footer cannot be decoded" in done.stderr
    assert not mark.exists()
