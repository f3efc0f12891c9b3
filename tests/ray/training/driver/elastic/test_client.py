"""Choice of the cluster when no address is given."""

from __future__ import annotations

import pytest
import ray

from forebay.errors import InvalidOption
from forebay.training.driver.elastic import client as remote_control
from forebay.training.driver.elastic.client import find_gcs_addresses, reach_cluster


def test_ray_that_a_run_has_started_for_itself_is_found(ray_session: None) -> None:
    assert ray.get_runtime_context().gcs_address in find_gcs_addresses()


def test_none_and_several_are_refused(ray_off: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(remote_control, "find_gcs_addresses", set)
    with pytest.raises(InvalidOption, match="no Ray runs on this machine"), reach_cluster():
        pass
    monkeypatch.setattr(remote_control, "find_gcs_addresses", lambda: {"10.0.0.1:6379", "10.0.0.1:6380"})
    with (
        pytest.raises(InvalidOption, match=r"2 Rays run .*: 10.0.0.1:6379, 10.0.0.1:6380"),
        reach_cluster(),
    ):
        pass
