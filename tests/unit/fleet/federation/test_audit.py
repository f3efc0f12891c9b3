"""Lines of the audit: safe, whole, by day, and never written again."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.errors import WriteFailed
from forebay.fleet.federation.audit import LONGEST_TEXT, AuditLine, AuditLog
from forebay.storage.atomic import find_small
from forebay.storage.credentials import without_credentials
from forebay.storage.filesystem import below, resolve

DAY = 86_400.0
STARTED = AuditLine(action="started", job="ctr", submitter="anna", cluster="west", object="fb-ctr-0a-1")


def lines_of(folder: Path) -> dict[str, list[dict[str, object]]]:
    found = sorted(folder.rglob("*.jsonl"))
    return {path.parent.name: [json.loads(line) for line in path.read_text().splitlines()] for path in found}


def test_a_day_of_a_controller_is_one_file(tmp_path: Path) -> None:
    now, shown = 0.0, list[str]()
    log = AuditLog(str(tmp_path), shown.append, lambda: now)
    for now in (1.0, DAY - 0.001, DAY, 2 * DAY):
        log.note(AuditLine(action="accepted", job="ctr", submission=int(now)))
    found = lines_of(tmp_path)
    assert [len(found[day]) for day in ("1970-01-01", "1970-01-02", "1970-01-03")] == [2, 1, 1]
    assert found["1970-01-01"][1]["at"] == "1970-01-01T23:59:59.999+00:00"
    assert [json.loads(text) for text in shown] == [line for lines in found.values() for line in lines]


def test_the_same_request_has_one_line_and_another_one_has_its_own(tmp_path: Path) -> None:
    shown: list[str] = []
    log = AuditLog(str(tmp_path), shown.append, lambda: 0.0)
    for line in (STARTED, STARTED, replace(STARTED, why="again"), replace(STARTED, action="deleted")):
        log.note(line)
    log.note(replace(STARTED, cluster="east"))
    assert [(json.loads(text)["action"], json.loads(text)["cluster"]) for text in shown] == [
        ("started", "west"),
        ("deleted", "west"),
        ("started", "east"),
    ]


def test_a_line_that_was_not_stored_is_stored_by_the_next_try(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("")
    shown: list[str] = []
    log = AuditLog(str(tmp_path / "audit"), shown.append, lambda: 0.0)
    with pytest.raises(WriteFailed, match="a line of the audit could not be written"):
        log.note(STARTED)
    (tmp_path / "audit").unlink()
    log.note(STARTED)
    assert len(shown) == 1


def test_any_text_is_one_safe_line_of_bounded_length(tmp_path: Path) -> None:
    made = random.Random(0)
    log = AuditLog(str(tmp_path), lambda _: None, lambda: 0.0)
    letters = [chr(code) for code in (*range(0x20), 0x7F, 0x85, 0x9B, 0x202E, 0x2028, 0xD800, 0x1F4A7)] + list('"\\ab')
    texts = ["".join(made.choices(letters, k=made.randint(0, 60))) for _ in range(50)] + ["\x1b" * 5000]
    for text in texts:
        log.note(AuditLine(action="refused", job=text, why=text, says=text))
    (path,) = tmp_path.rglob("*.jsonl")
    content = path.read_bytes()
    assert content.count(b"\n") == len(texts)
    for line in content.decode("ascii").splitlines():
        facts = json.loads(line)
        assert all(value.isprintable() and len(value) <= LONGEST_TEXT for value in facts.values())


def test_secrets_of_the_process_are_in_no_line(tmp_path: Path) -> None:
    assert without_credentials("s3://AKIAIOSFODNN7EXAMPLE:wJalrXUtnFEMIK7MDENGbPx@lake/runs") == "s3://lake/runs"
    shown: list[str] = []
    AuditLog(str(tmp_path), shown.append, lambda: 0.0).note(
        replace(STARTED, why="key wJalrXUtnFEMIK7MDENGbPx is wrong")
    )
    assert "wJalrXUtnFEMIK7MDENGbPx" not in shown[0]


def test_on_an_object_store_each_line_is_an_object_of_its_own() -> None:
    folder = "memory://audit-of-tests"
    shown: list[str] = []
    log = AuditLog(folder, shown.append, lambda: 0.0)
    log.note(STARTED)
    log.note(replace(STARTED, action="deleted"))
    for number, text in enumerate(shown, start=1):
        content = find_small(resolve(below(folder, f"1970-01-01/{log.controller}/{number:06d}.json")))
        assert content == f"{text}\n".encode()
