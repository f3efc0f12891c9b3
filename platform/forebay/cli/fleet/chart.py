"""Commands of `forebay fleet` that the chart runs."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.output import print_line

if TYPE_CHECKING:
    from forebay.fleet.kube.kuberay import KubeRay

Catalogue = Annotated[str, typer.Option(help="File catalogue.json of the chart.")]
Namespace = Annotated[str, typer.Option(help="Namespace of the chart.")]
Context = Annotated[
    str | None, typer.Option(help="Context of the kubeconfig.", show_default="this pod's, or the current")
]


def apply_cluster(catalogue: Catalogue, namespace: Namespace, context: Context = None) -> None:
    """Create the shared Ray cluster, or change its spec.

    Workers that run go on.
    """
    # Imported here: they take a second, and the other commands do not need them.
    from forebay.fleet.catalogue import load_catalogue  # noqa: PLC0415
    from forebay.fleet.rayjob.shared_cluster import shared_cluster  # noqa: PLC0415

    cluster = load_catalogue(catalogue)
    body = shared_cluster(cluster)
    found = _kuberay(context, cluster.name, namespace).apply_cluster({**body, "metadata": _metadata(body, namespace)})
    groups = [group["groupName"] for group in found["spec"]["workerGroupSpecs"]]
    print_line(f"RayCluster {found['metadata']['name']} in {namespace}: {', '.join(groups)}")


def delete_cluster(catalogue: Catalogue, namespace: Namespace, context: Context = None) -> None:
    """Delete the shared Ray cluster with its pods."""
    from forebay.fleet.catalogue import load_catalogue  # noqa: PLC0415

    cluster = load_catalogue(catalogue)
    if cluster.shared_cluster:
        _kuberay(context, cluster.name, namespace).delete_cluster(cluster.shared_cluster)


def publish_capacity(catalogue: Catalogue, namespace: Namespace, context: Context = None) -> None:
    """Publish free machines in the ConfigMap forebay-capacity.

    Runs until the process is ended.
    """
    from forebay.fleet.capacity_agent import CapacityAgent  # noqa: PLC0415
    from forebay.fleet.catalogue import load_catalogue  # noqa: PLC0415

    cluster = replace(load_catalogue(catalogue), namespace=namespace)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    CapacityAgent(_kuberay(context, cluster.name, namespace).api, cluster).run(ended)


def controller(
    fleet: Annotated[str, typer.Option(help="TOML file of the clusters.")],
    storage: Annotated[
        list[str] | None,
        typer.Option(help="Storage of jobs. May be given several times. Those of [[submitter]] are followed, too."),
    ] = None,
    journal: Annotated[str, typer.Option(help="File of what is known. It may be lost.")] = ":memory:",
    job: Annotated[str | None, typer.Option(help="Name of the only job to follow. Ends with it.")] = None,
) -> None:
    """Run jobs submitted with --backend fleet.

    Runs until the process is ended. Several controllers may run, and each may be killed: claims in storage decide
    between them.
    """
    # Imported here: they take a second, and the other commands do not need them.
    from forebay.fleet.federation.controller import FleetController  # noqa: PLC0415
    from forebay.fleet.fleet_file import load_fleet  # noqa: PLC0415
    from forebay.fleet.lifecycle.journal import JobJournal  # noqa: PLC0415
    from forebay.fleet.lifecycle.states import JobQueued  # noqa: PLC0415
    from forebay.storage.credentials import redact  # noqa: PLC0415

    known = JobJournal(journal)
    fleet_file = load_fleet(fleet)
    found = FleetController(fleet_file, storage or (), known, only=job, log=print_line)
    for note in found.notes():
        print_line(note, err=True)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    described = {each.name: each for each in fleet_file.cluster if each.sku}
    shown: dict[str, str] = {}
    while not ended.is_set():
        try:
            is_left = found.step()
        except OSError as error:
            print_line(f"not all jobs had their round ({redact(str(error))}); the next one tries again", err=True)
            is_left = True
        for cluster in found.fleet().cluster:
            text = (
                f"its catalogue is read: {', '.join(sorted(cluster.sku))}"
                if cluster.sku
                else "its catalogue is not read"
            )
            if described.get(cluster.name) != cluster:
                described[cluster.name] = cluster
                print_line(f"{cluster.name}: {text}")
        for entry in known.entries():
            reasons = known.reasons(entry.name)
            waits = found.reasons(entry.name) if isinstance(entry.state, JobQueued) else ()
            text = "; ".join(waits) or (reasons[-1].why if reasons else "it was submitted")
            if shown.get(entry.name) != text:
                shown[entry.name] = text
                print_line(f"{entry.name}: {text}")
        if job is not None and not is_left:
            return
        found.wait(ended)


def _metadata(body: dict[str, dict[str, object]], namespace: str) -> dict[str, object]:
    return {**body["metadata"], "namespace": namespace}


def _kuberay(context: str | None, name: str, namespace: str) -> KubeRay:
    from forebay.fleet.kube.api import KubeApi  # noqa: PLC0415
    from forebay.fleet.kube.connection import by_context, in_cluster  # noqa: PLC0415
    from forebay.fleet.kube.kuberay import KubeRay  # noqa: PLC0415

    is_pod = context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    return KubeRay(KubeApi(in_cluster if is_pod else by_context(context), cluster=name), namespace)
