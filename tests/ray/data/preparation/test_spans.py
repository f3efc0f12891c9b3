"""Spans prepared by tasks of a cluster: the files equal local processes', also after faults."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
from tests.waiting import until

import forebay as fb
from forebay.data.manifest.prepared import PreparedOrigin
from forebay.errors import InvalidOption, PreparationFailed
from forebay.llm.source import text_files
from forebay.testing.data.chats import unique_chats
from forebay.testing.drivers.nodes import SmallNodes


@dataclass
class Cubes:
    """Source whose span `n` has the cubes from `10 n` on. Each read leaves a note with the node and its process."""

    notes: str
    num_spans: int = 12
    pause_s: float = 0.0
    fails_at: int = -1
    error: Exception | None = None
    row_group_rows: int = 4

    def origin(self) -> PreparedOrigin:
        return PreparedOrigin(name="cubes", function="1", arguments={"spans": str(self.num_spans)})

    def open(self) -> Cubes:
        return self

    def spans(self) -> Sequence[int]:
        return range(self.num_spans)

    def read(self, span: int) -> tuple[pa.Table, Mapping[str, int]]:
        node = ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"
        Path(self.notes, f"{span}-{node}-{os.getpid()}-{os.environ.get('OMP_NUM_THREADS')}-{time.time_ns()}").touch()
        time.sleep(self.pause_s)
        if span == self.fails_at and self.error is not None:
            raise self.error
        return pa.table({"cube": pa.array([(10 * span + each) ** 3 for each in range(10)], pa.int64())}), {"spans": 1}

    def facts(self, counts: Sequence[Mapping[str, int]]) -> Mapping[str, Any]:
        return {"spans": sum(each["spans"] for each in counts)}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def contents(prepared: fb.Prepared) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(prepared.folder).glob("part-*")}


def spans_read(notes: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[0]) for path in notes.iterdir())


def test_files_are_those_of_local_processes_and_finished_spans_stay(
    ray_session: None, notes: Path, tmp_path: Path
) -> None:
    expected = fb.prepare(Cubes(str(notes)), into=str(tmp_path / "local"), processes=1)
    into = str(tmp_path / "ray")
    for error, kind, text in (
        (ValueError("no cube today"), PreparationFailed, "no cube today"),
        (InvalidOption("give another cube"), InvalidOption, "^give another cube$"),
    ):
        with pytest.raises(kind, match=text):
            fb.preparation.prepare_on_ray(Cubes(str(notes), fails_at=11, error=error), into=into)
    before = spans_read(notes)
    made = fb.preparation.prepare_on_ray(Cubes(str(notes)), into=into)
    assert contents(made) == contents(expected)
    assert made.manifest.id == expected.manifest.id
    assert made.facts == expected.facts == {"spans": 12}
    # The other spans were finished by then.
    assert len(spans_read(notes)) - len(before) < 12
    assert not (Path(made.folder) / "_spans").exists()
    fb.preparation.prepare_on_ray(Cubes(str(notes), fails_at=0, error=ValueError("read again")), into=into)


@pytest.mark.variation
def test_token_rows_are_the_same_on_ray(ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(json.dumps({"messages": each}) + "\n" for each in unique_chats(120, 0)))
    monkeypatch.setattr(text_files, "SPAN_BYTES", 4000)
    source = fb.llm.TokenSource(str(chats), fb.llm.tokenizer("tiny"), seq_len=128)
    made = fb.preparation.prepare_on_ray(source, into=str(tmp_path / "ray"))
    assert len(made.files) > 4
    assert contents(made) == contents(fb.prepare(source, into=str(tmp_path / "local"), processes=1))


@pytest.fixture
def nodes(ray_off: None) -> Iterator[SmallNodes]:
    found = SmallNodes(others=1, cpus=1, head_cpus=1)
    yield found
    found.close()


@pytest.mark.variation
def test_spans_of_a_lost_node_are_prepared_again_and_no_others(nodes: SmallNodes, notes: Path, tmp_path: Path) -> None:
    (doomed,) = nodes.others

    def lose() -> None:
        until(lambda: len([path for path in notes.iterdir() if doomed in path.name]) > 0)
        nodes.kill(doomed)

    losing = threading.Thread(target=lose)
    losing.start()
    made = fb.preparation.prepare_on_ray(Cubes(str(notes), pause_s=0.5), into=str(tmp_path / "ray"))
    losing.join()
    read = [path.name.split("-") for path in notes.iterdir()]
    assert {threads for _, _, _, threads, _ in read} == {"1"}
    assert len({node for _, node, _, _, _ in read}) == 2
    # At most the span that the lost node worked on was read twice.
    assert len(read) <= 13
    (notes / "other").mkdir()
    expected = fb.prepare(Cubes(str(notes / "other")), into=str(tmp_path / "local"), processes=1)
    assert contents(made) == contents(expected)
