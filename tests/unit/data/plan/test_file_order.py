"""The first epoch over a stream: each position is a row of the file that is finished by then."""

from __future__ import annotations

from itertools import pairwise

import pytest

from forebay.data.manifest.manifest import Field
from forebay.data.manifest.streamed import StreamedManifest, StreamLayout
from forebay.data.plan.digest import order_digest
from forebay.data.plan.plan import Plan, build_plan
from forebay.errors import InvalidOption


def stream(rows: int = 1050, fingerprint: str = "f", column: str = "a") -> StreamedManifest:
    layout = StreamLayout(
        rows=rows, row_group_rows=64, row_groups_per_file=4, row_group_bytes=(512, 100), fingerprint=fingerprint
    )
    return layout.manifest("/data", [Field(name=column, type="int64")])


def numbers(plan: Plan, epoch: int) -> list[int]:
    _, block, row = plan.positioned_rows(epoch, 0, plan.num_rows, range(plan.lanes))
    return [int(block) * 64 + int(row) for block, row in zip(block, row, strict=True)]


@pytest.mark.parametrize("rows", [1, 64, 255, 256, 257, 1050, 2048])
@pytest.mark.parametrize("shuffle", [True, False])
def test_files_come_in_order_and_each_is_shuffled_on_its_own(rows: int, shuffle: bool) -> None:
    plan = build_plan(stream(rows), seed=3, lanes=5, shuffle=shuffle)
    order = numbers(plan, 0)
    for start, stop in pairwise([*range(0, rows, 256), rows]):
        assert sorted(order[start:stop]) == list(range(start, stop))
    assert (order == list(range(rows))) is (not shuffle or rows == 1)
    assert sorted(numbers(plan, 1)) == list(range(rows))


def test_golden_first_epoch() -> None:
    assert (
        order_digest(build_plan(stream(), seed=3, lanes=4), epoch=0, global_batch=100)
        == "792ba328d37e2a4f6267280bf1205634b282a96dc193c1859819a28c97b2e824"
    )


def test_a_block_is_used_while_its_file_is() -> None:
    plan = build_plan(stream(), seed=3, lanes=5)
    spans = list(plan.block_spans(0, 300, [0]))
    assert [span.block for span in spans] == list(range(4, 17))
    assert {(span.need, span.release) for span in spans} == {(256, 512), (512, 768), (768, 1024), (1024, 1050)}


def test_the_id_covers_the_origin_the_columns_and_the_layout() -> None:
    others = [stream(1051), stream(fingerprint="g"), stream(column="b")]
    ids = {each.id for each in [stream(), stream(), *others]}
    assert len(ids) == 4
    assert len({build_plan(each, seed=3).id for each in [stream(), stream(), *others]}) == 4


def test_a_stream_cannot_be_split() -> None:
    with pytest.raises(InvalidOption, match=r"cannot be chosen or split.*dataset of their own, with fb\.prepare"):
        stream().split(0.2)
