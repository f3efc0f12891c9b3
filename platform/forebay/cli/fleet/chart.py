"""Commands of `forebay fleet` that the chart runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.output import print_line
from forebay.errors import InvalidOption
from forebay.runtime.foreign_code import begin

if TYPE_CHECKING:
    from forebay.fleet.cluster import Cluster
    from forebay.fleet.federation.controller import FleetController
    from forebay.fleet.fleet_file import FleetFile
    from forebay.fleet.kube.kuberay import KubeRay
    from forebay.fleet.lifecycle.journal import JobJournal
    from forebay.fleet.status import Status

Catalogue = Annotated[str, typer.Option(help="File catalogue.json of the chart.")]
Namespace = Annotated[str, typer.Option(help="Namespace of the chart.")]
StatusPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of /livez, /readyz and /metrics.", show_default="none")
]
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


def publish_capacity(
    catalogue: Catalogue,
    namespace: Namespace,
    context: Context = None,
    status_port: StatusPort = None,
    check: Annotated[bool, typer.Option("--check", help="Only wait for new figures of the agent that runs.")] = False,
) -> None:
    """Publish free machines in the ConfigMap forebay-capacity.

    Runs until the process is ended.
    """
    from forebay.fleet.capacity_agent import CapacityAgent, await_figures  # noqa: PLC0415
    from forebay.fleet.catalogue import load_catalogue  # noqa: PLC0415

    cluster = replace(load_catalogue(catalogue), namespace=namespace)
    kuberay = _kuberay(context, cluster.name, namespace)
    if check:
        num_jobs = len(list(kuberay.jobs()))
        nodes = sum(each.count for each in await_figures(kuberay.api, namespace).nodes)
        print_line(f"{cluster.name}: {nodes} nodes with room for its SKUs, {num_jobs} RayJobs in {namespace}")
        return
    agent = CapacityAgent(kuberay.api, cluster)
    _serve(agent.status, status_port)
    agent.run(_until_signal())


def controller(
    fleet: Annotated[str, typer.Option(help="TOML file of the clusters. It is read again when it changes.")],
    storage: Annotated[
        list[str] | None,
        typer.Option(
            "--storage",
            "-s",
            help="Storage of jobs. May be given several times. Those of [[submitter]] are followed, too.",
        ),
    ] = None,
    journal: Annotated[str, typer.Option(help="File of what is known. It may be lost.")] = ":memory:",
    job: Annotated[str | None, typer.Option(help="Name of the only job to follow. Ends with it.")] = None,
    status_port: StatusPort = None,
    page: Annotated[
        int | None, typer.Option(help="Port on 127.0.0.1 of a page of all jobs. 0: a free one.", min=0, max=65535)
    ] = None,
) -> None:
    """Run jobs submitted with --backend fleet.

    Runs until the process is ended. Several controllers may run, and each may be killed: claims in storage decide
    between them.
    """
    # Imported here: they take a second, and the other commands do not need them.
    from forebay.fleet.federation.controller import FleetController  # noqa: PLC0415
    from forebay.fleet.fleet_file import FleetFile  # noqa: PLC0415
    from forebay.fleet.lifecycle.journal import JobJournal  # noqa: PLC0415

    known, file = JobJournal(journal), FleetFile(fleet)
    found = FleetController(file.fleet, storage or (), known, only=job, log=print_line)
    for note in found.notes():
        print_line(note, err=True)
    _serve(found.status, status_port)
    _serve_page(found, page)
    ended = _until_signal()
    described = {each.name: each for each in file.fleet.cluster if each.sku}
    shown: dict[str, str] = {}
    while not ended.is_set():
        is_left = _round(found)
        _tell_clusters(found, described)
        _tell_jobs(found, known, shown)
        if job is not None and not is_left:
            return
        found.wait(ended)
        if not ended.is_set():
            _start_again_if_changed(file)


def _round(controller: FleetController) -> bool:
    """Give each job its round. Returns whether any is left, as may be after an error."""
    from forebay.storage.credentials import redact  # noqa: PLC0415

    try:
        return controller.step()
    except OSError as error:
        why = redact(str(error))
        print_line(f"{_time()} not all jobs had their round ({why}); the next one tries again", err=True)
        return True


def _tell_clusters(controller: FleetController, told: dict[str, Cluster]) -> None:
    """Print whose catalogue is read, where that has changed since it was `told`."""
    for cluster in controller.fleet().cluster:
        if told.get(cluster.name) != cluster:
            told[cluster.name] = cluster
            skus = ", ".join(sorted(cluster.sku))
            text = f"its catalogue is read: {skus}" if skus else "its catalogue is not read"
            print_line(f"{_time()} {cluster.name}: {text}")


def _tell_jobs(controller: FleetController, journal: JobJournal, told: dict[str, str]) -> None:
    """Print why each job is where it is, where that has changed since it was `told`."""
    from forebay.fleet.lifecycle.states import JobQueued  # noqa: PLC0415

    for entry in journal.entries():
        reasons = journal.reasons(entry.name)
        waits = controller.reasons(entry.name) if isinstance(entry.state, JobQueued) else ()
        text = "; ".join(waits) or (reasons[-1].why if reasons else "it was submitted")
        if told.get(entry.name) != text:
            told[entry.name] = text
            print_line(f"{_time()} {entry.name}: {text}")


def _start_again_if_changed(file: FleetFile) -> None:
    """Replace the process by one that has read the new file.

    A controller may be ended at any point, and a new one follows logs where this one stopped. With a file that is
    wrong, it goes on with the old clusters.
    """
    try:
        is_changed = file.has_changed()
    except InvalidOption as error:
        print_line(f"the clusters stay as they were: {error}", err=True)
        return
    if is_changed:
        print_line(f"{file.path} has changed: the controller starts again with it")
        os.execv(sys.executable, [sys.executable, "-m", "forebay", *sys.argv[1:]])  # noqa: S606 - its own words


def _serve(status: Status, port: int | None) -> None:
    from forebay.fleet.status import StatusServer  # noqa: PLC0415

    if port is not None:
        StatusServer(status, port).start()


def _serve_page(controller: FleetController, port: int | None) -> None:
    from forebay.fleet.client.job_rows import JobRows  # noqa: PLC0415
    from forebay.fleet.client.jobs_page import jobs_server  # noqa: PLC0415

    if port is not None:
        server = jobs_server(JobRows(controller.storages, controller.reasons), port)
        begin(threading.Thread(target=server.serve_forever, name="forebay-page", daemon=True))
        print_line(f"{server.url} shows all jobs.")


def _until_signal() -> threading.Event:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended


def _time() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _metadata(body: dict[str, dict[str, object]], namespace: str) -> dict[str, object]:
    return {**body["metadata"], "namespace": namespace}


def _kuberay(context: str | None, name: str, namespace: str) -> KubeRay:
    from forebay.fleet.kube.api import KubeApi  # noqa: PLC0415
    from forebay.fleet.kube.connection import by_context, in_cluster  # noqa: PLC0415
    from forebay.fleet.kube.kuberay import KubeRay  # noqa: PLC0415

    is_pod = context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    return KubeRay(KubeApi(in_cluster if is_pod else by_context(context), cluster=name), namespace)
