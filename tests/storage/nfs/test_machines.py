"""Promises for a shared folder, on a real server of NFS with clients of the kernel (`guest.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripts.fetch_nfs import problem
from tests.storage.nfs import virtual_machine

Cases = dict[str, dict[str, Any]]


def _one_of_two_machines_wins_each_race(cases: Cases) -> None:
    race = cases["one_wins"]
    assert race["both"] == 0
    assert race["any"] == race["rounds"]


def _a_plain_look_is_late(cases: Cases) -> None:
    """Else the other tests would show nothing: the client answers from its cache."""
    assert cases["plain_look"]["late_s"] > 5


def _a_later_claim_is_seen_by_the_next_question(cases: Cases) -> None:
    assert cases["claim_is_seen"] == {"before": "alive", "created": True, "after": "fenced"}


def _what_another_machine_wrote_is_read(cases: Cases) -> None:
    assert cases["heartbeats_are_heard"]["wrong"] == []
    assert cases["files_are_read"] == {"missing": True, "wrong": []}


def _only_a_silent_attempt_is_taken_over(cases: Cases) -> None:
    taken = cases["alive_is_not_taken"]
    assert taken["taken"] is False
    assert taken["then"] == "attempt 2"
    assert taken["first"] == "fenced"


def _locks_reach_the_other_machine_unless_the_mount_keeps_them(cases: Cases) -> None:
    locks = cases["locks_reach"]
    assert locks["first"]
    assert locks["second"] is locks["has_own_locks"]


def _caches_and_journals_are_refused(cases: Cases) -> None:
    assert "is on nfs" in cases["cache_is_refused"]["said"]


def _an_attempt_goes_on_after_its_server_was_away(cases: Cases) -> None:
    away = cases["server_restarts"]
    assert (away["hung"], away["answer"], away["second"]) == (True, "alive", False)


def _a_folder_that_was_removed_or_made_again_is_noticed(cases: Cases) -> None:
    assert cases["folder_is_remade"] == {"removed": "gone", "remade": "fenced"}


def _nothing_is_written_where_a_share_was(cases: Cases) -> None:
    gone = cases["share_is_unmounted"]
    assert (gone["before"], gone["after"], gone["left"]) == ("alive", "gone", [])
    assert gone["beat"].startswith("FileNotFoundError")


def _soft_mounts_are_silent_until_the_server_is_back(cases: Cases) -> None:
    soft = cases["soft_is_silent"]
    assert soft["answer"].startswith("silent")
    # A claim that was refused may still be made, and then ends the attempt: never both in doubt.
    assert soft["is_there"] or soft["claimed"] is not True
    assert soft["then"] == ("fenced" if soft["is_there"] else "alive")


def _nocto_needs_a_longer_limit(cases: Cases) -> None:
    assert "mounted with `nocto`" in cases["nocto_is_refused"]["said"]


LAWS = (
    _one_of_two_machines_wins_each_race,
    _a_plain_look_is_late,
    _a_later_claim_is_seen_by_the_next_question,
    _what_another_machine_wrote_is_read,
    _only_a_silent_attempt_is_taken_over,
    _locks_reach_the_other_machine_unless_the_mount_keeps_them,
    _caches_and_journals_are_refused,
    _an_attempt_goes_on_after_its_server_was_away,
    _a_folder_that_was_removed_or_made_again_is_noticed,
    _nothing_is_written_where_a_share_was,
    _soft_mounts_are_silent_until_the_server_is_back,
    _nocto_needs_a_longer_limit,
)


@pytest.mark.variation
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("version", ["4.2", "3"])
def test_promises_hold(tmp_path: Path, version: str) -> None:
    """In one test, because the virtual machine takes minutes."""
    if why := problem():
        pytest.skip(f"no virtual machine with NFS here: {why}")
    cases = virtual_machine.run(tmp_path, within_s=1200, VERSION=version)
    for law in LAWS:
        law(cases)
