"""The model that epochs on Ray nodes are compared with."""

from __future__ import annotations

import pytest
from studies.ray_nodes.model import Happened, model_of


def test_blocks_are_asked_for_where_they_are_and_shared_ones_may_be_read_twice() -> None:
    found = model_of([range(10), range(10, 20), range(19, 30)], [range(10), range(5), []])
    assert (found.block_requests, found.in_vain, found.busiest) == (0, 0, 0)
    assert (found.least_at_source, found.most_at_source) == (20, 21)
    moved = model_of([range(10, 20), range(10)], [range(10), range(10, 20)])
    assert (moved.block_requests, moved.busiest, moved.least_at_source) == (20, 10, 0)
    assert moved.filter_requests == 2 and moved.least_filter_bytes > 2 * 4 * 10
    many = model_of([range(10 * node, 10 * node + 10) for node in range(1, 9)], [range(10 * node) for node in range(8)])
    assert many.most_filter_bytes > 1.2 * many.least_filter_bytes


@pytest.mark.parametrize("epochs_before", [2, 1000])
def test_a_resize_costs_its_ranks_and_as_much_after_many_epochs(epochs_before: int) -> None:
    resized = Happened(before=8, after=7, steps=4, commits=1, looks=14, epochs_before=epochs_before, epochs=1)
    methods = resized.coordinator_cost().methods
    assert (methods["join"], methods["pause"], methods["view"]) == (7, 8, 14)
    assert methods["report"] == 4 + 2 + 2, "steps, the epoch that ends, the new world"
    assert methods["knows"] == 2, "of the newest epoch and evaluation"
