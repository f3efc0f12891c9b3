"""Generated jobs and clusters, and a good attempt to change."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import strategies as st

import forebay as fb
from forebay.fleet.cluster import CacheVolume, Cluster, Hdfs, Sku
from forebay.fleet.rayjob.attempt import PlacedAttempt

IMAGE = "registry.example/forebay@sha256:" + "0" * 64
NAMES = st.from_regex(r"\A[a-z]([-a-z0-9]{0,10}[a-z0-9])?\Z")
TEXTS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12)
BYTES = st.builds("{}{}".format, st.integers(1, 500), st.sampled_from(["Mi", "Gi", "G", "M"]))
CPUS = st.sampled_from([1, 12, "500m", 0.25, "3"])


def attempt(**changes: Any) -> PlacedAttempt:
    """Attempt 2 of a task with 2 to 16 workers on spot machines."""
    workers = {
        "min": 2,
        "max": 16,
        "cpu": 12,
        "memory": "96Gi",
        "gpus": 1,
        "spot": "prefer",
        **changes.pop("workers", {}),
    }
    task = fb.fleet.Task(run="train.py", args={"data": "s3://b/$HOME x", "epochs": 3}, workers=workers)  # type: ignore[arg-type]
    spec = fb.JobSpec(name="ctr-7", storage="s3://lake/runs", task=(changes.pop("task", task),), **changes)
    return PlacedAttempt(spec=spec, task=spec.task[0], number=2, sku="h100", market="spot", token="t0", code="c" * 64)


def cluster(**changes: Any) -> Cluster:
    """Cluster with one SKU on both markets."""
    sku = Sku(
        cpu="96",
        memory="1Ti",
        gpus=8,
        price_per_hour=30,
        spot_price_per_hour=10,
        markets=("spot", "on-demand"),
        node_selector={"sku": "h100"},
        spot_tolerations=({"key": "spot", "operator": "Exists"},),
    )
    return Cluster(**{"name": "eu-1", "namespace": "ml", "sku": {"h100": sku}, "image": IMAGE, **changes})


@st.composite
def attempts(draw: st.DrawFn) -> tuple[PlacedAttempt, Cluster]:
    """Any job that a user can write, on any cluster."""
    least = draw(st.integers(1, 20))
    scheduling = fb.fleet.Scheduling(
        cluster=draw(st.sampled_from(["own", "own", "own", "shared"])),
        queue=draw(st.none() | NAMES),
        priority=draw(st.just("normal") | NAMES),
        start_within=draw(st.integers(10, 9999)),
        finish_within=draw(st.none() | st.integers(60, 999_999)),
    )
    workers = fb.fleet.TaskWorkers(
        min=least,
        max=draw(st.none() | st.integers(least, 40)),
        cpu=draw(CPUS),
        memory=draw(st.none() | BYTES),
        gpus=draw(st.integers(0, 8)),
        spot=draw(st.sampled_from(["never", "prefer", "only"])),
        ephemeral=draw(st.none() | BYTES),
    )
    program: dict[str, Any] = draw(
        st.fixed_dictionaries({"command": st.lists(TEXTS, min_size=1, max_size=4)})
        | st.fixed_dictionaries(
            {"run": st.just("train.py"), "args": st.dictionaries(NAMES.map(lambda n: n.replace("-", "_")), TEXTS)}
        )
    )
    launch = draw(_launches(is_shared=scheduling.cluster == "shared"))
    spec = fb.JobSpec(
        name=draw(st.from_regex(r"\A[a-z]([-a-z0-9]{0,28}[a-z0-9])?\Z")),
        storage="s3://lake/runs",
        task=(fb.fleet.Task(name=draw(NAMES), workers=workers, **program),),
        scheduling=scheduling,
        launch=launch,
    )
    return _placed(draw, spec), _cluster(draw, is_shared=scheduling.cluster == "shared")


@st.composite
def _launches(draw: st.DrawFn, *, is_shared: bool) -> fb.fleet.Launch:
    # A shell of KubeRay reads the variables of a job on a shared cluster, and its pods are there already.
    values = TEXTS.map(lambda text: re.sub(r"[$`\x7f]", "", text)) if is_shared else TEXTS
    env = draw(st.dictionaries(NAMES.map(lambda name: name.upper().replace("-", "_")), values, max_size=3))
    labels = draw(st.dictionaries(NAMES, NAMES, max_size=2))
    if is_shared:
        return fb.fleet.Launch(env=env, labels=labels)
    mounts = (fb.fleet.Mount(secret="krb", path="/secrets/krb"), fb.fleet.Mount(claim="c", path="/c"))
    return fb.fleet.Launch(
        setup=draw(st.lists(TEXTS, max_size=2).map(tuple)),
        env=env,
        secret_env=draw(st.sampled_from([{}, {"HF_TOKEN": "hf/token"}])),
        mounts=draw(st.sampled_from([(), mounts])),
        labels=labels,
    )


def _placed(draw: st.DrawFn, spec: fb.JobSpec) -> PlacedAttempt:
    return PlacedAttempt(
        spec=spec,
        task=spec.task[0],
        number=draw(st.integers(1, 99_999)),
        sku="h100",
        market=draw(st.sampled_from(["spot", "on-demand"])),
        token=draw(st.sampled_from(["", "abc"])),
        code=draw(st.none() | st.just("c" * 64)),
        is_head_apart=draw(st.booleans()),
    )


def _cluster(draw: st.DrawFn, *, is_shared: bool) -> Cluster:
    scheduler = "default" if is_shared else draw(st.sampled_from(["default", "kueue", "volcano"]))
    return cluster(
        kind="manager" if scheduler == "kueue" and draw(st.booleans()) else "cluster",
        scheduler=scheduler,
        shared_cluster="forebay",
        service_account=draw(st.none() | NAMES),
        pull_secrets=draw(st.lists(NAMES, max_size=1)),
        cache=CacheVolume(
            mode=draw(st.sampled_from(["emptyDir", "hostPath", "ephemeralClaim", "none"])), storage_class="local"
        ),
        hdfs=draw(st.none() | st.just(Hdfs(config_map="conf", keytab_secret="krb", principal="a@B"))),
    )
