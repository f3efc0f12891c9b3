"""A cursor survives JSON exactly. Anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.data.plan.cursor import Cursor
from forebay.errors import CursorMismatch


@given(st.text(), st.integers(0), st.integers(0), st.integers(1))
def test_round_trip(plan_id: str, epoch: int, position: int, global_batch: int) -> None:
    cursor = Cursor(plan_id=plan_id, epoch=epoch, position=position, global_batch=global_batch)
    assert Cursor.from_json(cursor.to_json()) == cursor


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "7",
        '{"version": 2, "plan_id": "a", "epoch": 0, "position": 0, "global_batch": 1}',
        '{"version": 1, "plan_id": "a", "epoch": 0, "position": 0}',
        '{"version": 1, "plan_id": "a", "epoch": "0", "position": 0, "global_batch": 1}',
        '{"version": 1, "plan_id": "a", "epoch": 0, "position": 0, "global_batch": 1, "rank": 3}',
    ],
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(CursorMismatch):
        Cursor.from_json(text)
