"""Growing waits until the next workers are warm, shrinking and failures wait for nobody, and bounds are kept."""

from __future__ import annotations

import pytest

from forebay.driver.ray_train.scaling import RayDecision, RayPoolView, first_world, next_world


def standing(**counts: object) -> RayPoolView:
    return RayPoolView(**({"target": 4, "least": 1, "size": 2, "staying": 2} | counts))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counts", "workers"),
    [
        ({"target": 2}, None),
        ({"target": 1}, 1),
        ({"target": 1, "ready": 1}, 1),
        ({}, None),
        ({"nearing": 2}, None),
        ({"ready": 1, "nearing": 1}, None),
        ({"ready": 1}, 3),
        ({"ready": 2}, 4),
        ({"ready": 5}, 4),
    ],
    ids=[
        "as wanted",
        "shrink",
        "shrink, though more are ready",
        "nobody to grow with",
        "growth is coming",
        "one of two is warm, the other will be",
        "one of two is warm, the other has no place",
        "all warm",
        "more than wanted",
    ],
)
def test_world_at_work(counts: dict[str, object], workers: int | None) -> None:
    change = next_world(standing(**counts))
    assert change == (None if workers is None else RayDecision(workers=workers))


@pytest.mark.parametrize(
    ("counts", "workers"),
    [
        ({"staying": 1}, 1),
        ({"staying": 1, "least": 2}, None),
        ({"staying": 1, "least": 2, "ready": 1}, 2),
        ({"staying": 1, "ready": 1}, 2),
        ({"staying": 1, "ready": 1, "target": 2}, 2),
        ({"staying": 1, "nearing": 1}, None),
        ({"staying": 1, "nearing": 1, "hurry": True}, 1),
        ({"staying": 0, "ready": 0, "hurry": True}, None),
        ({"staying": 0, "ready": 1, "hurry": True}, 1),
    ],
    ids=[
        "nobody follows",
        "too few would be left",
        "just enough",
        "one for one",
        "moved at the same size",
        "there is time for a successor",
        "there is none",
        "nowhere to go",
        "all moved",
    ],
)
def test_world_that_leaves_a_node(counts: dict[str, object], workers: int | None) -> None:
    change = next_world(standing(**counts))
    assert change == (None if workers is None else RayDecision(workers=workers))


@pytest.mark.parametrize(
    ("counts", "survivors", "workers"),
    [
        ({"ready": 0, "nearing": 4}, 0, None),
        ({"ready": 1, "nearing": 3}, 0, None),
        ({"ready": 2, "nearing": 0}, 0, 2),
        ({"ready": 4, "nearing": 0}, 0, 4),
        ({"ready": 5, "nearing": 0}, 0, 4),
        ({"ready": 1, "least": 2}, 0, None),
        ({"ready": 1, "nearing": 1}, 1, 1),
        ({"ready": 1, "nearing": 1, "least": 2}, 1, None),
    ],
    ids=[
        "nobody is warm",
        "others will be within seconds",
        "the cluster has no more room",
        "all",
        "more than wanted",
        "too few",
        "survivors go on at once",
        "too few survived",
    ],
)
def test_first_world(counts: dict[str, object], survivors: int, workers: int | None) -> None:
    assert first_world(standing(size=0, staying=0, **counts), survivors) == workers
