"""Runs, their checkpoints and claims in HDFS."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.storage.conftest import ObjectStore
from tests.unit.training.checkpoint.store_laws import CheckpointStoreLaws
from tests.unit.training.runs.attempts.gone_laws import GoneClaimLaws
from tests.unit.training.runs.attempts.late_laws import LateWriteLaws

from forebay.testing.drivers.once_suite import OnceSuite
from forebay.training.checkpoint.checkpoint import CheckpointStore
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.local_store import SpooledStore
from forebay.training.driver.driver import Driver
from forebay.training.driver.local.driver import LocalDriver

pytestmark = pytest.mark.variation("two JVMs")


class TestOnceOnHdfs(OnceSuite):
    driver_path = "forebay.training.driver.local.driver:LocalDriver"

    @pytest.fixture(autouse=True)
    def _storage(self, hdfs: ObjectStore) -> None:
        self._uri = hdfs.uri("runs")

    def make_driver(self) -> Driver:
        return LocalDriver()

    def options(self) -> Mapping[str, Any]:
        return {"storage": self._uri}


class TestLateWritesOnHdfs(LateWriteLaws):
    @pytest.fixture
    def run(self, hdfs: ObjectStore) -> str:
        return hdfs.uri(f"late-{uuid.uuid4().hex}/ctr")


class TestGoneClaimsOnHdfs(GoneClaimLaws):
    @pytest.fixture
    def storage(self, hdfs: ObjectStore) -> str:
        return hdfs.uri(f"gone-{uuid.uuid4().hex}")


class TestCheckpointsOnHdfs(CheckpointStoreLaws):
    @pytest.fixture
    def config(self, hdfs: ObjectStore) -> CheckpointConfig:
        return CheckpointConfig(uri=hdfs.uri(f"{uuid.uuid4().hex}/checkpoints"), keep_every=5)

    @pytest.fixture(autouse=True)
    def spools_are_here(self, tmp_path: Path) -> None:
        self._spools = str(tmp_path / "spools")

    def open(self, config: CheckpointConfig) -> CheckpointStore:
        return SpooledStore(config, self._spools)
