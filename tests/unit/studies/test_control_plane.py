"""No place of the control plane has more calls or bytes than n log n of the ranks."""

from __future__ import annotations

import pytest
from studies.control_plane import costs, table

from forebay.training.driver.elastic import pool


@pytest.fixture(autouse=True)
def ray_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("new_placement", "placement_group_table", "remove_placement_group", "ray"):
        monkeypatch.setattr(pool, name, getattr(pool, name))


def test_calls_and_bytes_of_each_place_grow_as_n_log_n() -> None:
    few, many = costs(16), costs(128)
    for name, cost in many.items():
        assert cost.calls <= 14 * few[name].calls, f"calls: {name}"
        assert cost.num_bytes <= 14 * few[name].num_bytes, f"bytes: {name}"
    training = "coordinator: 10 s of training"
    assert many[training].calls == few[training].calls, "what happens at each step does not know the ranks"


def test_table_has_a_column_for_each_size() -> None:
    assert table([8]).splitlines()[0] == "| | 8 ranks |"
