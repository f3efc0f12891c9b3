from __future__ import annotations

from pathlib import Path

import pytest

from forebay.errors import InvalidOption
from forebay.llm.hf_folder.sealed_folder import SealedFolder


def test_a_kill_before_the_first_file_leaves_an_empty_folder(tmp_path: Path) -> None:
    # What `write_atomically` leaves.
    (tmp_path / ".forebay.json.k3x9_a1b").write_text("{")
    folder = SealedFolder(str(tmp_path), {"run": "a"}, "config.json")
    assert folder.start() and folder.start()
    folder.seal(b"{}")
    assert not folder.start()
    with pytest.raises(InvalidOption, match="Give another folder"):
        SealedFolder(str(tmp_path), {"run": "b"}, "config.json").start()
