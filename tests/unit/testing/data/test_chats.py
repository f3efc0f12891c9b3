from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from forebay.errors import InvalidOption
from forebay.testing.data.chats import answer, made_up_chats, write_chats


def test_files_are_written_once_and_share_no_row(tmp_path: Path) -> None:
    files = write_chats(tmp_path, chats=300, held_out=20)
    rows = [[json.loads(line) for line in file.read_text().splitlines()] for file in (files.training, files.held_out)]
    assert [len(each) for each in rows] == [300, 20]
    chats = [json.dumps(row["messages"]) for each in rows for row in each]
    assert len(set(chats)) == 320
    before = files.training.stat().st_mtime_ns
    assert write_chats(tmp_path, chats=300, held_out=20) == files
    assert files.training.stat().st_mtime_ns == before


def test_every_answer_is_the_right_one() -> None:
    kinds = set()
    for messages in itertools.islice(made_up_chats(3), 200):
        turns = [each for each in messages if each["role"] != "system"]
        for question, given in zip(turns[::2], turns[1::2], strict=True):
            assert given == {"role": "assistant", "content": answer(question["content"])}
            kinds.add(question["content"].split()[0])
    assert kinds == {"Copy", "Reverse", "Add", "In"}


def test_the_seed_decides(tmp_path: Path) -> None:
    first = write_chats(tmp_path / "a", chats=20, held_out=2, seed=1).training.read_bytes()
    assert write_chats(tmp_path / "b", chats=20, held_out=2, seed=1).training.read_bytes() == first
    assert write_chats(tmp_path / "c", chats=20, held_out=2, seed=2).training.read_bytes() != first


def test_other_questions_and_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="is not a question"):
        answer("Why?")
    with pytest.raises(InvalidOption, match=r"held_out=0\): give at least 1"):
        write_chats(tmp_path, held_out=0)
