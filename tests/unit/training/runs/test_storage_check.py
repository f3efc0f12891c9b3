"""Check of the storage by the driver of a submitted attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.errors import InvalidOption, UnusableStorage
from forebay.training.runs import storage_check
from forebay.training.runs.storage_check import require_usable_storage


def test_a_usable_storage_keeps_nothing_of_the_check(tmp_path: Path) -> None:
    require_usable_storage(str(tmp_path / "runs"))
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


def test_a_storage_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableStorage, match=r"file/runs cannot be used from here.*Check that the storage answers"):
        require_usable_storage(str(tmp_path / "file" / "runs"), within_s=0)


def test_a_storage_that_ignores_the_condition_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(uri: str, content: bytes) -> bool:
        Path(uri).parent.mkdir(parents=True, exist_ok=True)
        Path(uri).write_bytes(content)
        return True

    monkeypatch.setattr(storage_check, "create_exclusively", create)
    with pytest.raises(UnusableStorage, match="created twice"):
        require_usable_storage(str(tmp_path))


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (OSError("no route to host"), 3),
        (TimeoutError("no answer"), 3),
        (PermissionError("403"), 1),
        (InvalidOption("no boto3"), 1),
    ],
)
def test_silence_is_asked_again_and_a_refusal_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, asked: int
) -> None:
    asks: list[int] = []

    def fail(_storage: str) -> None:
        asks.append(1)
        raise error

    monkeypatch.setattr(storage_check, "AGAIN_S", 0.01)
    monkeypatch.setattr(storage_check, "_probe", fail)
    with pytest.raises(UnusableStorage):
        require_usable_storage(str(tmp_path), within_s=10 if asked == 1 else 0.03)
    assert len(asks) == 1 if asked == 1 else len(asks) > 1
