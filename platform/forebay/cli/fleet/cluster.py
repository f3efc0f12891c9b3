"""`forebay cluster`: what the chart's hooks and its agent run."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from forebay.fleet.kube.kuberay import KubeRay

app = typer.Typer(name="cluster", help="The shared Ray cluster of a namespace.", no_args_is_help=True)

Catalogue = Annotated[str, typer.Option(help="File catalogue.json of the chart.")]
Namespace = Annotated[str, typer.Option(help="Namespace of the chart.")]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig. [default: this pod's, or the current]")]


@app.command()
def apply(catalogue: Catalogue, namespace: Namespace, context: Context = None) -> None:
    """Create the shared Ray cluster, or change its spec. Workers that run go on."""
    # Imported here: they take a second, and the other commands do not need them.
    from forebay.fleet.clusters.catalogue import load_catalogue  # noqa: PLC0415
    from forebay.fleet.rayjob.shared_cluster import shared_cluster  # noqa: PLC0415

    cluster = load_catalogue(catalogue)
    body = shared_cluster(cluster)
    found = _kuberay(context, cluster.name, namespace).apply_cluster({**body, "metadata": _metadata(body, namespace)})
    groups = [group["groupName"] for group in found["spec"]["workerGroupSpecs"]]
    typer.echo(f"RayCluster {found['metadata']['name']} in {namespace}: {', '.join(groups)}")


@app.command()
def delete(catalogue: Catalogue, namespace: Namespace, context: Context = None) -> None:
    """Delete the shared Ray cluster with its pods."""
    from forebay.fleet.clusters.catalogue import load_catalogue  # noqa: PLC0415

    cluster = load_catalogue(catalogue)
    if cluster.shared_cluster:
        _kuberay(context, cluster.name, namespace).delete_cluster(cluster.shared_cluster)


@app.command("publish-capacity")
def publish_capacity(catalogue: Catalogue, namespace: Namespace, context: Context = None) -> None:
    """Write the free machines of the cluster into the ConfigMap forebay-capacity, until the process is ended."""
    from forebay.fleet.agent.publisher import CapacityAgent  # noqa: PLC0415
    from forebay.fleet.clusters.catalogue import load_catalogue  # noqa: PLC0415

    cluster = replace(load_catalogue(catalogue), namespace=namespace)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    CapacityAgent(_kuberay(context, cluster.name, namespace).api, cluster).run(ended)


def _metadata(body: dict[str, dict[str, object]], namespace: str) -> dict[str, object]:
    return {**body["metadata"], "namespace": namespace}


def _kuberay(context: str | None, name: str, namespace: str) -> KubeRay:
    from forebay.fleet.kube.api import KubeApi  # noqa: PLC0415
    from forebay.fleet.kube.connection import by_context, in_cluster  # noqa: PLC0415
    from forebay.fleet.kube.kuberay import KubeRay  # noqa: PLC0415

    is_pod = context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    return KubeRay(KubeApi(in_cluster if is_pod else by_context(context), cluster=name), namespace)
