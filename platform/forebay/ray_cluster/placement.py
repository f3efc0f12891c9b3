"""Placement groups of workers. Their names hold the run's name, by which they are found again."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

PREFIX = "forebay-run-"


def new_place(run: str, bundle: Mapping[str, float]) -> PlacementGroup:
    """Request a place for one worker of `run`. If the cluster has no room, the request stays open."""
    # Ray requires a unique name.
    return placement_group([dict(bundle)], name=f"{PREFIX}{run}:{uuid.uuid4().hex}")


def remove_places(is_meant: Callable[[str], bool]) -> None:
    """Remove the remaining places of runs: Ray keeps them when only the process that requested them dies.

    `is_meant` is called with the name of a run.
    """
    for number, facts in placement_group_table().items():
        run, colon, _ = facts["name"].removeprefix(PREFIX).rpartition(":")
        if colon and facts["name"].startswith(PREFIX) and facts["state"] != "REMOVED" and is_meant(run):
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number))))
