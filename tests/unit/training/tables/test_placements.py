"""Every placement keeps the laws of `PlacementSuite`."""

from __future__ import annotations

from typing import ClassVar

from tests.tables.suite import IDS, OPTIMIZERS, PlacementSuite

LAWS = frozenset(name for name in dir(PlacementSuite) if name.startswith("test_"))


class TestRows(PlacementSuite):
    placement = "rows"
    variations: ClassVar = {"test_short_numbers_on_the_wire_change_little", "test_resumed_run_repeats_every_bit"}
    varied_cases: ClassVar = (OPTIMIZERS.keys() - {"decayed adam"}) | (IDS.keys() - {"two rows"})


class TestReplicate(PlacementSuite):
    placement = "replicate"
    variations: ClassVar = LAWS - {"test_tables_train_as_in_one_process"}
    varied_cases: ClassVar = OPTIMIZERS.keys() - {"adagrad"}


class TestWholeTable(PlacementSuite):
    placement = "table"
    variations: ClassVar = LAWS


class TestAuto(PlacementSuite):
    placement = "auto"
    variations: ClassVar = LAWS - {"test_resumed_run_repeats_every_bit"}
