"""How long commits take: each way has a row."""

from __future__ import annotations

import pytest
from bench.device.commits import commits, table


@pytest.mark.variation  # what it runs is tested elsewhere
def test_each_checkpoint_but_the_last_is_measured() -> None:
    seconds = commits("local", "ddp", workers=1, width=8, rounds=3)
    assert len(seconds) == 3 and min(seconds) > 0
    lines = [{"driver": "local", "strategy": each, "workers": 1, "seconds": seconds} for each in ("ddp", "fsdp2")]
    assert [row[:3] for row in table(lines)[1:]] == [["local", "ddp", "1"], ["local", "fsdp2", "1"]]
