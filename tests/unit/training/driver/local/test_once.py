"""A run that is started twice on this machine trains once."""

from __future__ import annotations

from typing import ClassVar

from forebay.testing.drivers.once_suite import OnceSuite
from forebay.training.driver.driver import Driver
from forebay.training.driver.local.driver import LocalDriver


class TestLocalOnce(OnceSuite):
    driver_path = "forebay.training.driver.local.driver:LocalDriver"
    variations: ClassVar = frozenset(
        {
            "test_two_starts_at_once_train_once",
            "test_removed_folder_is_trained_by_one",
            "test_removed_folder_ends_the_run",
        }
    )

    def make_driver(self) -> Driver:
        return LocalDriver()
