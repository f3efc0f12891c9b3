"""Damaged files of a run: manifests, cursors, results and checkpoints."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import bytewise
import files
import hostile
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import structural
import torch

from forebay.data.manifest.saved import load_manifest, save_manifest
from forebay.data.plan.cursor import Cursor
from forebay.data.sources.scan import scan
from forebay.errors import ForebayError
from forebay.events import EpochEnded, Reported
from forebay.training.checkpoint.checkpoint import Checkpoint, DirectoryStore
from forebay.training.checkpoint.encoded import METADATA, EncodedCheckpoint, metadata_checksum
from forebay.training.checkpoint.files.names import shard_file
from forebay.training.runs.result import Result, load_result, save_result
from forebay.world import World

CURSOR = Cursor(plan_id="9c02", epoch=1, position=640, global_batch=32)


class Saved:
    """Complete files, written once. Each case damages one of them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._mark = folder, folder / "mark"
        self._mark.unlink(missing_ok=True)
        data = folder / "data"
        data.mkdir(exist_ok=True)
        for name in "abc":
            pq.write_table(
                pa.table({"id": range(10), "x": np.ones(10, np.float32)}), data / f"{name}.parquet", row_group_size=4
            )
        self._manifest = scan(data)
        self._manifests = [folder / "manifest.json", folder / "manifest.parquet"]
        for path in self._manifests:
            save_manifest(self._manifest, path)
        self._whole = {path: path.read_bytes() for path in self._manifests}
        self._save_commits()
        self._save_result()

    def _save_commits(self) -> None:
        self._runs = self._folder / "run"
        shutil.rmtree(self._runs, ignore_errors=True)
        commits = DirectoryStore(self._runs)
        for step in (10, 20):
            state = {
                "model": {"w": torch.arange(50.0) + step, "n": step},
                "rng": [torch.get_rng_state()[:64], None, "x"],
            }
            commits.save(Checkpoint(step=step, cursor=CURSOR, world=World(), shards={0: state}))
        self._commit_files = {path: path.read_bytes() for path in self._runs.rglob("*") if path.is_file()}

    def _save_result(self) -> None:
        self._result_folder = self._folder / "result"
        epochs = tuple(
            _fill(EpochEnded, epoch=number, metrics={"auc": 0.7})
            for number in range(2)
        )  # fmt: skip
        steps = tuple(_fill(Reported, step=number, metrics={"loss": float("nan")}) for number in range(3))
        self._result = Result(
            name="r", path=str(self._result_folder), plan_id="9c02", num_epochs=2, epochs=epochs, steps=steps
        )
        save_result(self._result)
        self._result_file = self._result_folder / "result.json"
        self._result_text = self._result_file.read_bytes()

    def run(self, rng: np.random.Generator) -> tuple[str, str]:
        kinds: tuple[Callable[[np.random.Generator], tuple[str, str]], ...] = (
            self._manifest_case, self._manifest_case, self._cursor_case, self._result_case, self._commit_case,
            self._commit_case,
        )  # fmt: skip
        name, outcome = kinds[int(rng.integers(len(kinds)))](rng)
        assert not self._mark.exists(), "something that was read has run"
        return name, outcome

    def _manifest_case(self, rng: np.random.Generator) -> tuple[str, str]:
        path = self._manifests[int(rng.integers(2))]
        name, content = self._damaged(rng, path)
        (self._folder / "damaged").write_bytes(content)
        name = f"manifest{path.suffix}: {name}"
        try:
            found = load_manifest(self._folder / "damaged")
        except ForebayError as error:
            return name, f"refused: {type(error).__name__}"
        assert found.id == self._manifest.id, "another manifest"
        assert list(found.rows) == list(self._manifest.rows)
        assert found.columns == self._manifest.columns
        assert isinstance(found.root, str) and min(*found.bytes, *found.source_bytes) >= 0
        return name, "same data"

    def _damaged(self, rng: np.random.Generator, path: Path) -> tuple[str, bytes]:
        whole = self._whole[path]
        if rng.random() < 0.05:
            return "a pickle", hostile.bomb(self._mark, int(rng.integers(6)))
        if path.suffix == ".parquet" and rng.random() < 0.6:
            original = files.Original("manifest", False, path)
            damage = structural.ALL[int(rng.integers(len(structural.ALL)))]
            if damage is not structural.swap_row_groups:  # there is only one
                return damage.__name__, damage(rng, original, original)
        if path.suffix == ".json" and rng.random() < 0.5:
            return "other JSON", hostile.change_json(rng, whole)
        any_damage = bytewise.ALL[int(rng.integers(len(bytewise.ALL)))]
        return any_damage.__name__, any_damage(rng, whole)

    def _cursor_case(self, rng: np.random.Generator) -> tuple[str, str]:
        text = CURSOR.to_json().encode()
        damage = [hostile.change_json, *bytewise.ALL][int(rng.integers(1 + len(bytewise.ALL)))]
        name = f"cursor: {damage.__name__}"
        try:
            found = Cursor.from_json(damage(rng, text).decode(errors="replace"))
        except ForebayError as error:
            return name, f"refused: {type(error).__name__}"
        assert isinstance(found.plan_id, str)
        assert all(type(number) is int and number >= 0 for number in (found.epoch, found.position, found.global_batch))
        return name, "same data" if found == CURSOR else "another cursor"

    def _result_case(self, rng: np.random.Generator) -> tuple[str, str]:
        damage = [hostile.change_json, *bytewise.ALL][int(rng.integers(1 + len(bytewise.ALL)))]
        name = f"result: {damage.__name__}"
        self._result_file.write_bytes(damage(rng, self._result_text))
        try:
            found = load_result(str(self._result_folder))
        except ForebayError as error:
            return name, f"refused: {type(error).__name__}"
        assert found is not None
        return name, "same data" if repr(found) == repr(self._result) else "another result"

    def _commit_case(self, rng: np.random.Generator) -> tuple[str, str]:
        for path, content in self._commit_files.items():
            path.write_bytes(content)
        folder = self._runs / "step-000000020"
        sealed = rng.random() < 0.4
        name = self._forge(rng, folder) if sealed else self._tear(rng, folder)
        try:
            found = DirectoryStore(self._runs).newest()
        except ForebayError as error:
            return name, f"refused: {type(error).__name__}"
        if sealed:
            return name, "the one before" if found and found.step == 10 else "taken"
        assert found is not None, "the commit before it is whole"
        assert found.cursor == CURSOR
        assert torch.equal(found.shards[0]["model"]["w"], torch.arange(50.0) + found.step)
        return name, "the one before" if found.step == 10 else "same data"

    def _tear(self, rng: np.random.Generator, folder: Path) -> str:
        path = folder / (METADATA if rng.random() < 0.5 else shard_file(0))
        damages = [hostile.change_json, *bytewise.ALL] if path.name == METADATA else bytewise.ALL
        damage = damages[int(rng.integers(len(damages)))]
        path.write_bytes(damage(rng, self._commit_files[path]))
        return f"commit {path.name}: {damage.__name__}"

    def _forge(self, rng: np.random.Generator, folder: Path) -> str:
        """Change a part, and update the checksums."""
        state = self._commit_files[folder / shard_file(0)]
        metadata = self._commit_files[folder / METADATA]
        kind = int(rng.integers(3))
        if kind == 0:
            state = hostile.bomb(self._mark, int(rng.integers(6)))
        elif kind == 1:
            state = bytewise.ALL[int(rng.integers(len(bytewise.ALL)))](rng, state)
        else:
            metadata = hostile.change_json(rng, metadata)
        try:
            described = dict(json.loads(metadata))
        except (ValueError, RecursionError, TypeError):
            described = {}
        described.pop("xxh3_128", None)
        if kind != 2:
            described["shards"] = EncodedCheckpoint.build({}, {0: state}).metadata["shards"]
        (folder / shard_file(0)).write_bytes(state)
        (folder / METADATA).write_text(json.dumps(described | {"xxh3_128": metadata_checksum(described)}))
        return f"checkpoint, with new checksums: {('a pickle', 'another state', 'other metadata')[kind]}"


def _fill(kind: type, **given: object) -> object:
    """An event whose other fields are the zeros of their types."""
    zeros = {"int": 0, "float": 0.0, "str": "", "bool": False}
    rest = {
        field.name: zeros.get(str(field.type), {})
        for field in dataclasses.fields(kind)
        if field.name not in given
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    }
    return kind(**given, **rest)
