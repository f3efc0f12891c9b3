"""A run on S3 that is started twice trains once."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from tests.storage.conftest import ObjectStore
from tests.unit.training.runs.attempts.gone_laws import GoneClaimLaws
from tests.unit.training.runs.attempts.late_laws import LateWriteLaws

from forebay.testing.drivers.once_suite import OnceSuite
from forebay.training.driver.driver import Driver
from forebay.training.driver.local.driver import LocalDriver


class TestOnceOnS3(OnceSuite):
    driver_path = "forebay.training.driver.local.driver:LocalDriver"
    variations: ClassVar = frozenset(
        {
            "test_stopped_attempt_is_taken_over_and_ends_itself",
            "test_two_starts_at_once_train_once",
            "test_removed_folder_is_trained_by_one",
            "test_removed_folder_ends_the_run",
        }
    )

    @pytest.fixture(autouse=True)
    def _storage(self, s3: ObjectStore) -> None:
        self._uri = s3.uri("runs")

    def make_driver(self) -> Driver:
        return LocalDriver()

    def options(self) -> Mapping[str, Any]:
        return {"storage": self._uri}


class TestLateWritesOnS3(LateWriteLaws):
    @pytest.fixture
    def run(self, s3: ObjectStore) -> str:
        return s3.uri(f"late-{uuid.uuid4().hex}/ctr")


class TestGoneClaimsOnS3(GoneClaimLaws):
    variations: ClassVar = frozenset(
        {"test_a_claim_that_is_back_lets_the_attempt_go_on", "test_a_folder_that_looks_empty_is_no_beginning"}
    )

    @pytest.fixture
    def storage(self, s3: ObjectStore) -> str:
        return s3.uri(f"gone-{uuid.uuid4().hex}")
