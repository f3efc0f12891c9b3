"""Placement: order, reasons, and laws on generated fleets."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forebay as fb
from forebay.errors import InvalidOption
from forebay.fleet.cluster import CacheVolume, Cluster, Market, Sku
from forebay.fleet.placement.capacity import Capacity, Gang, NodeGroup, Shape, grouped
from forebay.fleet.placement.history import PlacementHistory
from forebay.fleet.placement.place import CapacityReservation, Fit, FleetView, gang_of, place, too_large

GIB = 1 << 30
NOW = 1000.0
NOTHING = PlacementHistory()
QUICK = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))


def job(workers: dict[str, Any] | None = None, **scheduling: Any) -> fb.JobSpec:
    given = {"cpu": 8, "memory": "64Gi", "gpus": 1, "spot": "prefer", **(workers or {})}
    task = fb.fleet.Task(run="a.py", workers=given)  # type: ignore[arg-type]
    return fb.JobSpec(name="ctr", storage="s3://a/b", task=(task,), scheduling=scheduling)  # type: ignore[arg-type]


def cluster(name: str, **changes: Any) -> Cluster:
    sku = Sku(cpu="64", memory="512Gi", gpus=8, price_per_hour=8, spot_price_per_hour=2, markets=("spot", "on-demand"))
    given = {"name": name, "context": name, "sku": {"h100": sku}, "image": "i", "queues": ("ads",), **changes}
    return Cluster(**given)


def capacity(name: str, gpus: int = 8, count: int = 2, market: str = "spot", **changes: Any) -> Capacity:
    nodes = (
        NodeGroup(Shape(64_000, 512 * GIB, gpus), (f"h100/{market}",), count),
        NodeGroup(Shape(8000, 32 * GIB), ("head",)),
    )
    return Capacity(**{"cluster": name, "observed_at": NOW, "nodes": nodes, **changes})


def view(*pairs: tuple[Cluster, Capacity], **changes: Any) -> FleetView:
    return FleetView(
        clusters=tuple(each for each, _ in pairs), capacities={each.name: found for each, found in pairs}, **changes
    )


def best(spec: fb.JobSpec, seen: FleetView, history: PlacementHistory = NOTHING) -> Any:
    return place(spec, spec.task[0], seen, history, NOW).best


def test_more_room_comes_first() -> None:
    spec = job({"min": 2, "max": 16})
    seen = view(
        (cluster("never"), capacity("never", count=0)),
        (cluster("grows"), capacity("grows", count=0, can_add={"h100/spot": 4})),
        (cluster("some"), capacity("some", count=1)),
        (cluster("most"), capacity("most", count=2)),
    )
    placement = place(spec, spec.task[0], seen, NOTHING, NOW)
    assert [(each.cluster, each.fit, each.workers) for each in placement.choices] == [
        ("most", Fit.LARGEST_NOW, 16),
        ("some", Fit.SMALLEST_NOW, 8),
        ("grows", Fit.AFTER_GROWTH, 2),
    ]
    (refused,) = placement.refusals
    assert refused.cluster == "never" and "h100 spot has room for 0 workers now, and 2 are needed" in refused.reason
    assert placement.choices[1].reason == "8 of at most 16 workers fit on h100 spot now, 0.50/h"


def test_within_a_class_sku_then_data_then_spot_then_price_then_the_queue() -> None:
    local = CacheVolume(mode="hostPath")
    dear = Sku(cpu="64", memory="512Gi", gpus=8, price_per_hour=9, spot_price_per_hour=9, markets=("spot", "on-demand"))
    spec = job()
    plain, other = (cluster("a"), capacity("a")), (cluster("b"), capacity("b"))
    history = PlacementHistory(ran={"b": NOW - 60})
    assert best(spec, view(plain, (cluster("b", cache=local), other[1])), history).cluster == "b"
    assert (
        best(spec, view(plain, (cluster("b", cache=local), other[1]))).cluster == best(spec, view(plain, other)).cluster
    )
    on_demand = (cluster("b"), capacity("b", market="on-demand"))
    assert best(spec, view((cluster("a", sku={"h100": dear}), plain[1]), on_demand)).market == "spot"
    assert best(spec, view((cluster("a", sku={"h100": dear}), plain[1]), other)).cluster == "b"
    busy = dataclasses.replace(capacity("a"), pending_gpus=8)
    assert best(spec, view((cluster("a"), busy), other)).cluster == "b"
    named = job({"sku": ["a100", "h100"]})
    both = cluster("b", sku={"a100": dear, "h100": dear})
    nodes = (*capacity("b").nodes, NodeGroup(Shape(64_000, 512 * GIB, 8), ("a100/spot",)))
    assert best(named, view((both, dataclasses.replace(capacity("b"), nodes=nodes)))).sku == "a100"


def test_the_place_that_stays_most_whole_comes_first_at_like_prices() -> None:
    def at(name: str, price: float, *free: int) -> tuple[Cluster, Capacity]:
        sku = Sku(cpu="64", memory="512Gi", gpus=8, price_per_hour=price, markets=("on-demand",))
        nodes = [NodeGroup(Shape(8000 * gpus, 64 * GIB * gpus, gpus), ("h100/on-demand",)) for gpus in free]
        head = NodeGroup(Shape(8000, 32 * GIB), ("head",))
        return cluster(name, sku={"h100": sku}), capacity(name, count=0, nodes=(*nodes, head))

    begun, empty, large = at("begun", 12, 8, 3), at("empty", 10, 8), at("large", 10, 8, 8, 8)
    part, whole = job({"gpus": 1, "min": 3}), job({"gpus": 8, "cpu": 32, "memory": "64Gi"})
    assert best(part, view(empty, begun, large)).cluster == "begun"
    assert best(whole, view(empty, begun, large)).cluster == "empty"
    # A quarter more is not a like price.
    assert best(part, view(empty, at("begun", 12.5, 8, 3), large)).cluster == "empty"


@pytest.mark.parametrize(
    ("spec", "one", "reason"),
    [
        (job(deny=["a*"]), {}, "denied by scheduling.deny"),
        (job(clusters={"region": "eu"}), {}, "no label region=eu"),
        (job(queue="ml"), {}, "it has no queue ml"),
        (job(priority="high"), {}, "it has no priority class high"),
        (job(cluster="shared"), {}, "it has no shared Ray cluster"),
        (job(max_price_per_hour=0.1), {}, "h100 spot costs 0.25/h, more than 0.1"),
        (job({"sku": ["a100"]}), {}, "it has h100, and none of a100"),
        (job(), {"observed_at": NOW - 91}, "its figures are 91 s old"),
        (job(), {"fault": "the API server gives no answer"}, "the API server gives no answer"),
    ],
)
def test_a_refusal_has_its_reason(spec: fb.JobSpec, one: dict[str, Any], reason: str) -> None:
    placement = place(spec, spec.task[0], view((cluster("a"), capacity("a", **one))), NOTHING, NOW)
    assert placement.best is None
    assert reason in placement.refusals[0].reason


def test_a_cluster_that_turned_an_attempt_away_rests() -> None:
    market: Market = "spot"
    for age, rests in ((599, True), (601, False)):
        history = PlacementHistory(turned_away={("a", "h100", market): NOW - age})
        assert (best(job(), view((cluster("a"), capacity("a"))), history) is None) == rests


def test_a_pool_where_thousands_of_attempts_failed_is_asked_again() -> None:
    """15 s, doubled 1,021 times, overflows a float."""
    history = PlacementHistory(failed={("a", "h100", "spot"): (NOW - 700.0,) * 5000})
    assert history.refusal(("a", "h100", "spot"), NOW) is None
    assert history.refusal(("a", "h100", "spot"), NOW - 500) == "had an attempt that failed 200 s ago"


def test_a_retry_goes_elsewhere_and_without_another_place_back_to_the_same_one() -> None:
    market: Market = "spot"
    alone, both = (
        view((cluster("a"), capacity("a"))),
        view((cluster("a"), capacity("a")), (cluster("b"), capacity("b"))),
    )
    for age, failures, rests in ((14, 1, True), (16, 1, False), (16, 2, True), (31, 2, False), (599, 9, True)):
        times = tuple(NOW - age - number for number in reversed(range(failures)))
        history = PlacementHistory(failed={("a", "h100", market): times})
        assert (best(job(), alone, history) is None) == rests
        assert best(job(), both, history).cluster == "b"
    full = view((cluster("a"), capacity("a")), (cluster("b"), capacity("b", nodes=())))
    history = NOTHING.with_failure(("a", "h100", market), NOW - 20)
    assert best(job(), full, history).cluster == "a"
    assert (
        "failed 3 s ago"
        in place(job(), job().task[0], alone, NOTHING.with_failure(("a", "h100", market), NOW - 3), NOW)
        .refusals[0]
        .reason
    )


def test_reserved_room_is_not_given_twice() -> None:
    spec = job({"min": 8})
    seen = view((cluster("a"), capacity("a")))
    placed: list[CapacityReservation] = []
    for number in range(3):
        found = best(spec, dataclasses.replace(seen, reservations=tuple(placed)))
        if number == 2:
            assert found is None
        else:
            gang = dataclasses.replace(found.gang, head=None)
            placed.append(CapacityReservation(attempt=f"fb-{number}", cluster="a", gang=gang))


def test_a_gang_that_no_empty_cluster_holds_is_named() -> None:
    spec = job({"min": 17})
    seen = view((cluster("a"), capacity("a")))
    reason = too_large(spec, spec.task[0], seen, NOW)
    assert reason == (
        "17 workers are more than any cluster holds when it is empty: a h100 spot holds 16, a h100 on-demand holds 0"
    )
    assert too_large(job({"min": 16}), job({"min": 16}).task[0], seen, NOW) is None
    grows = view((cluster("a"), capacity("a", can_add={"h100/spot": 1})))
    assert too_large(spec, spec.task[0], grows, NOW) is None
    unknown = view((cluster("a"), capacity("a", fault="no answer")))
    assert too_large(spec, spec.task[0], unknown, NOW) is None


def test_a_capacity_is_one_small_document() -> None:
    found = capacity("a", can_add={"h100/spot": 3}, pending_gpus=4)
    assert Capacity.from_json(found.to_json(), NOW) == found
    assert len(found.to_json()) < 1000
    with pytest.raises(InvalidOption, match="Install the same version"):
        Capacity.from_json("{}", NOW)


# Laws

SHAPES = st.builds(
    Shape,
    st.sampled_from([4000, 8000, 12_000, 24_000, 64_000]),
    st.integers(1, 64).map(lambda n: n * 8 * GIB),
    st.integers(0, 8),
)
POOLS = st.sampled_from([("h100/spot",), ("h100/on-demand",), ("head",), ("h100/spot", "head")])
GROUPS = st.lists(st.builds(NodeGroup, SHAPES, POOLS, st.integers(1, 3)), max_size=5).map(grouped)
TASKS = st.builds(
    lambda least, more, cpu, memory, gpus, spot: job(
        {
            "min": least,
            "max": least + more,
            "cpu": cpu,
            "memory": f"{memory}Gi",
            "gpus": gpus,
            "spot": spot,
            "sku": ["h100"],
        }
    ),
    *(st.integers(1, 6), st.integers(0, 6), st.integers(1, 24), st.integers(8, 128), st.integers(0, 8)),
    st.sampled_from(["never", "prefer", "only"]),
)
FLEETS = st.lists(GROUPS, min_size=1, max_size=4)


def fleet_of(groups: list[tuple[NodeGroup, ...]], **changes: Any) -> FleetView:
    names = [f"c{number}" for number in range(len(groups))]
    found = [
        (cluster(name), Capacity(cluster=name, observed_at=NOW, nodes=nodes))
        for name, nodes in zip(names, groups, strict=True)
    ]
    return view(*found, **changes)


def room(nodes: tuple[NodeGroup, ...]) -> tuple[int, int, int]:
    totals = [
        (each.count * each.free.cpu, each.count * each.free.memory, each.count * each.free.gpus) for each in nodes
    ]
    cpu, memory, gpus = (sum(column) for column in zip(*totals, strict=True)) if totals else (0, 0, 0)
    return cpu, memory, gpus


def check_laws(spec: fb.JobSpec, groups: list[tuple[NodeGroup, ...]], more: NodeGroup) -> None:
    seen = fleet_of(groups)
    placement = place(spec, spec.task[0], seen, NOTHING, NOW)
    for choice in placement.choices:
        if choice.fit in (Fit.LARGEST_NOW, Fit.SMALLEST_NOW):
            before = seen.capacities[choice.cluster].nodes
            after = choice.gang.pack(before)
            assert after is not None
            assert all(min(each.free.cpu, each.free.memory, each.free.gpus) >= 0 for each in after)
            pod, head = choice.gang.worker, choice.gang.head or Shape(0, 0)
            used = [was - now for was, now in zip(room(before), room(after), strict=True)]
            count = choice.workers
            assert used == [count * pod.cpu + head.cpu, count * pod.memory + head.memory, count * pod.gpus + head.gpus]
    turned = dataclasses.replace(seen, clusters=tuple(reversed(seen.clusters)))
    assert place(spec, spec.task[0], turned, NOTHING, NOW) == placement
    larger = fleet_of([grouped((*nodes, more)) for nodes in groups])
    grown = {(each.cluster, each.market): each for each in place(spec, spec.task[0], larger, NOTHING, NOW).choices}
    for choice in placement.choices:
        after_growth = grown[choice.cluster, choice.market]
        assert after_growth.fit <= choice.fit and after_growth.workers >= choice.workers
    assert {each.cluster for each in placement.choices} | {each.cluster for each in placement.refusals} == set(
        seen.capacities
    )


@QUICK
@given(TASKS, FLEETS, st.builds(NodeGroup, SHAPES, POOLS))
def test_the_laws_hold(spec: fb.JobSpec, groups: list[tuple[NodeGroup, ...]], more: NodeGroup) -> None:
    check_laws(spec, groups, more)


@pytest.mark.variation("more examples of the test above")
@LONG
@given(TASKS, FLEETS, st.builds(NodeGroup, SHAPES, POOLS))
def test_the_laws_hold_for_ten_thousand_fleets(spec: fb.JobSpec, groups: Any, more: NodeGroup) -> None:
    check_laws(spec, groups, more)


@QUICK
@given(TASKS, st.lists(st.builds(NodeGroup, SHAPES, POOLS), max_size=4))
def test_packing_is_exact(spec: fb.JobSpec, nodes: list[NodeGroup]) -> None:
    """Compare with all nodes for the head.

    Workers are equal, so their slots add up.
    """
    gang = gang_of(spec, spec.task[0], cluster("a"), "h100", "spot")
    assert gang.head is not None

    def slots(at: int) -> int:
        left = [each.free.less(gang.head) if number == at else each.free for number, each in enumerate(nodes)]
        return sum(one.slots(gang.worker) for one, each in zip(left, nodes, strict=True) if gang.pool in each.pools)

    heads = [n for n, each in enumerate(nodes) if "head" in each.pools and each.free.holds(gang.head)]
    fits = any(slots(at) >= gang.workers for at in heads)
    assert (gang.pack(nodes) is not None) == fits
    most = max((slots(at) for at in heads), default=0)
    assert gang.most(nodes) == most


def test_a_head_that_labels_can_tell_apart_goes_where_no_worker_can() -> None:
    labelled = dataclasses.replace(cluster("a").sku["h100"], node_selector={"sku": "h100"})
    tolerant = {"head_tolerations": ({"key": "gpu", "operator": "Exists"},)}
    both = Capacity(
        cluster="a",
        observed_at=NOW,
        nodes=(
            NodeGroup(Shape(64_000, 512 * GIB, 8), ("h100/spot", "head"), 2),
            NodeGroup(Shape(4000, 16 * GIB), ("head",)),
        ),
    )
    only_workers = dataclasses.replace(both, nodes=both.nodes[:1])
    for one, room, is_apart in (
        (cluster("a", sku={"h100": labelled}), both, True),
        (cluster("a", sku={"h100": labelled}), only_workers, False),
        (cluster("a", sku={"h100": labelled}, **tolerant), both, False),
        (cluster("a"), both, False),
    ):
        assert best(job({"min": 1}), view((one, room))).is_head_apart is is_apart


def test_whole_nodes_stay_for_later_gangs() -> None:
    nodes = (NodeGroup(Shape(64_000, 512 * GIB, 8), ("p",), 2), NodeGroup(Shape(64_000, 512 * GIB, 4), ("p",)))
    left = Gang(pool="p", worker=Shape(1000, GIB, 1), workers=4).pack(nodes)
    assert left is not None and sorted((each.free.gpus, each.count) for each in left) == [(0, 1), (8, 2)]
