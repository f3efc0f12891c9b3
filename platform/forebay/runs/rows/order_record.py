"""`order.json` in the run's folder, with a manifest of each data set: all that the order of a run's rows depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyarrow.fs import FileType

from forebay.errors import InvalidOption
from forebay.loader.data import Data
from forebay.loader.sampled import Sampled
from forebay.manifest.manifest import Manifest
from forebay.manifest.saved import load_manifest, save_manifest
from forebay.manifest.streamed import StreamedManifest
from forebay.plan.mixture.mixture import Mixture
from forebay.plan.order import Last, Order
from forebay.plan.plan import Plan, build_plan
from forebay.storage.atomic import ADVICE, write_failed
from forebay.storage.credentials import redacted
from forebay.storage.filesystem import below, resolve
from forebay.storage.json_file import from_json, read_json_file, to_json, write_json_file

FILE_NAME = "order.json"
# Hidden from scans: a run folder may lie below a folder of data.
FOLDER = "_manifests"
VERSION = 1
_UNKNOWN: Mapping[str, str] = {
    "windows": "windows of series, and a window is no single row of a file",
    "stream": "data that was still being prepared. Give fb.load_prepared(folder).manifest to a later run",
    "other": "an order of another class than Plan, Sampled and Mixture",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOrder:
    """Order of a run's rows, and what became of the rows at the end of an epoch that fill no batch."""

    order: Order
    last: Last


def record_order(data: Data, path: str, name: str) -> None:
    """Write the order of `data` into the folder `path` of the run `name`. Raises `WriteFailed` if storage refuses.

    A manifest that is there is not written again.
    """
    facts = {"version": VERSION, "plan": data.plan.id, "last": data.last, "order": _facts(data.plan)}
    try:
        for manifest in _manifests(data.plan):
            uri = _manifest_uri(path, manifest.id)
            place = resolve(uri)
            if place.fs.get_file_info(place.path).type == FileType.NotFound:
                save_manifest(manifest, uri)
        write_json_file(path, FILE_NAME, to_json(facts))
    except OSError as error:
        what = f"the order of run {name!r}"
        raise write_failed(what, resolve(path).uri, error, ADVICE, name=name) from redacted(error)


def load_order(path: str) -> RecordedOrder:
    """Order in the run folder `path`. Reads no data, but the column of a `Sampled`.

    Raises:
        InvalidOption: None was recorded, or the order of something else than rows.
        SourceChanged: A file of a `Sampled` is not the version that the run was trained on.
    """
    content = read_json_file(path, FILE_NAME, "run")
    if content is None:
        raise InvalidOption(
            f"{path} has no {FILE_NAME}, which says in which order a run reads its rows. Give the folder of a run, "
            "which `forebay run` printed. Runs of earlier releases have none.",
            path=path,
        )
    facts: Mapping[str, Any] = from_json(content, dict, version=VERSION, owner="run", file_name=FILE_NAME)
    order = _order(facts["order"], path)
    if order.id != facts["plan"]:
        raise InvalidOption(
            f"{path} was trained with plan {facts['plan'][:12]}, and this release builds plan {order.id[:12]} from its "
            "record. Use the release of Forebay that trained it.",
            path=path,
        )
    return RecordedOrder(order=order, last=facts["last"])


def _facts(order: Order) -> dict[str, Any]:
    match order:
        case _ if order.windows:
            return {"kind": "windows"}
        case Plan(manifest=StreamedManifest()):
            return {"kind": "stream"}
        case Plan():
            options = {"seed": order.seed, "lanes": order.lanes, "window_rows": order.window_rows}
            return {"kind": "plan", "manifest": order.manifest.id, **options, "shuffle": order.shuffle}
        case Sampled():
            return {"kind": "sampled", "plan": _facts(order.plan), **order.options}
        case Mixture():
            plans = {name: _facts(plan) for name, plan in zip(order.names, order.plans, strict=True)}
            return {"kind": "mixture", "plans": plans, **order.options}
    return {"kind": "other"}


def _order(facts: Mapping[str, Any], path: str) -> Order:
    options = dict(facts)
    kind = options.pop("kind")
    if kind == "plan":
        return build_plan(load_manifest(_manifest_uri(path, options.pop("manifest"))), **options)
    if kind == "sampled":
        plan = _order(options.pop("plan"), path)
        assert isinstance(plan, Plan), "no other order can be sampled"
        return Sampled(plan, **options)
    if kind == "mixture":
        plans = {name: _order(each, path) for name, each in options.pop("plans").items()}
        return Mixture(plans, **options)
    raise InvalidOption(f"{path} was trained on {_UNKNOWN[kind]}.", path=path)


def _manifests(order: Order) -> tuple[Manifest, ...]:
    """Manifests of the order, without those of a stream."""
    return tuple(each for each in order.manifests if not isinstance(each, StreamedManifest))


def _manifest_uri(path: str, manifest_id: str) -> str:
    return below(path, f"{FOLDER}/{manifest_id[:16]}.parquet")
