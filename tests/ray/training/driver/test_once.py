"""A run that is started twice on one Ray trains once, and its stopped driver is taken over with its workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest
import ray

from forebay.testing.drivers.once_suite import OnceSuite
from forebay.training.driver.driver import Driver
from forebay.training.driver.ray_train.driver import RayTrainDriver


@pytest.mark.usefixtures("ray_session")
class TestRayTrainOnce(OnceSuite):
    driver_path = "forebay.training.driver.ray_train.driver:RayTrainDriver"
    variations: ClassVar = frozenset(
        {
            "test_stopped_attempt_is_taken_over_and_ends_itself",
            "test_two_starts_at_once_train_once",
            "test_removed_folder_is_trained_by_one",
            "test_removed_folder_ends_the_run",
        }
    )

    def make_driver(self) -> Driver:
        return RayTrainDriver()

    def environment(self) -> Mapping[str, str]:
        return {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
