"""A run that is started twice on this machine trains once."""

from __future__ import annotations

from typing import ClassVar

from forebay.driver.driver import Driver
from forebay.driver.local.driver import LocalDriver
from forebay.testing.drivers.once_suite import OnceSuite


class TestLocalOnce(OnceSuite):
    driver_path = "forebay.driver.local.driver:LocalDriver"
    variations: ClassVar = frozenset({"test_two_starts_at_once_train_once"})

    def make_driver(self) -> Driver:
        return LocalDriver()
