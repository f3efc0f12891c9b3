"""Record of a run's row order, in its folder.

`order.json`, with a manifest of each dataset, has all that the order depends on.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileType

from forebay.data.loader.data import Data
from forebay.data.manifest.manifest import Manifest
from forebay.data.manifest.saved import load_manifest, save_manifest
from forebay.data.plan.mixture.mixture import Mixture
from forebay.data.plan.order import Last, Order
from forebay.data.plan.plan import Plan, build_plan
from forebay.data.plan.sampled import Sampled
from forebay.data.provenance.order_rows import step_keys
from forebay.data.windows.index import WindowIndex, WindowShape, window_indices
from forebay.data.windows.line import StepLine
from forebay.data.windows.splits import TargetBounds
from forebay.data.windows.steps import StepColumns
from forebay.errors import ForebayError, InvalidOption
from forebay.storage.atomic import read_small, write_atomically, write_failed
from forebay.storage.boundary import Uri
from forebay.storage.credentials import redacted
from forebay.storage.filesystem import Location, resolve
from forebay.storage.json_file import to_json
from forebay.training.runs.run_folder import RunFolder

log = logging.getLogger(__name__)

FILE_NAME = "order.json"
# Hidden from scans: a run folder may lie below a folder of data.
FOLDER = "_manifests"
VERSION = 1
_LINE = ("block", "first", "starts", "segments", "entities")
_BOUNDS = ("low", "high")
_METADATA = b"forebay"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOrder:
    """Row order of a run.

    Has what became of the rows at the end of an epoch that fill no batch. `keys` are the columns that sort the steps of
    each dataset of windows. Empty for rows.
    """

    order: Order
    last: Last
    keys: tuple[StepColumns, ...] = ()


def record_order(data: Data, folder: RunFolder) -> None:
    """Write the row order of `data` into a run's folder.

    Raises `WriteFailed` if storage refuses. A manifest that is there is not written again, nor an index of windows.
    """
    facts: dict[str, Any] = {"version": VERSION, "plan": data.plan.id, "last": data.last, "order": _facts(data.plan)}
    facts["transforms"] = [each.transform.fingerprint for each in data.datasets]
    what = f"the order of run {folder.name!r}"
    try:
        for manifest in data.plan.manifests:
            _save_once(save_manifest, manifest, _manifest(folder, manifest.version))
        if data.plan.windows:
            facts["keys"] = _save_windows(data, folder)
        _tell_of_changes(folder.read(FILE_NAME), facts, folder.name)
    except OSError as error:
        raise write_failed(what, folder.uri, error, name=folder.name) from redacted(error)
    folder.save(FILE_NAME, to_json(facts), what)


def _save_windows(data: Data, folder: RunFolder) -> list[dict[str, Any]]:
    """Save the index of each dataset's windows. Returns the columns that sort their steps."""
    for index in window_indices(data.plan):
        _save_once(save_index, index, _index(folder, index.id))
    return [_key_facts(each) for each in step_keys(data.datasets)]


def _tell_of_changes(earlier: bytes | None, facts: Mapping[str, Any], name: str) -> None:
    """Warn if a run's files or transforms changed since its last start."""
    with suppress(ValueError, AttributeError, RecursionError):  # damaged, and written again now
        before = json.loads(earlier or "{}")
        if before.get("transforms", facts["transforms"]) != facts["transforms"]:
            log.warning(
                "Run %r goes on with another transform than at its last start: its rows are the same, and their arrays "
                "may differ. Give it a new name, unless its model shall see these from here on.",
                name,
            )
        if before.get("plan") == facts["plan"] and before.get("order") != json.loads(to_json(facts))["order"]:
            log.warning(
                "Local files of run %r were replaced, or their mode, owner or links were changed, since it was last "
                "started. Their sizes and times are the same, so it goes on with them.",
                name,
            )


def other_order(order: Order, folder: RunFolder) -> str:
    """Name what `order` has other than a run's last start.

    Such as `data (4,000 rows in 2 files; now 6,000 in 3)`. Empty where that is not known.
    """
    with suppress(ValueError, AttributeError, RecursionError, OSError, ForebayError):
        before, now = json.loads(folder.read(FILE_NAME) or b"{}").get("order", {}), json.loads(to_json(_facts(order)))
        changed = [name for name in now if name in before and before[name] != now[name]]
        return ", ".join(_change(name, before[name], now[name], order, folder) for name in changed)
    return ""


def _change(name: str, before: Any, now: Any, order: Order, folder: RunFolder) -> str:
    if name == "manifest":
        earlier, manifest = load_manifest(_manifest(folder, before).uri), order.manifests[0]
        rows, files = f"{earlier.num_rows:,} rows", f"{len(earlier.files):,} files"
        return f"data ({rows} in {files}; now {manifest.num_rows:,} in {len(manifest.files):,})"
    return name if isinstance(now, dict) else f"{name} ({before}; now {now})"


def load_order(run: str | RunFolder, allow_locations: Uri | Sequence[Uri] = ()) -> RecordedOrder:
    """Return the row order in a run's folder.

    Reads no data, except the column of a `Sampled`. `allow_locations` is as in `Manifest.load`.

    Raises:
        InvalidOption: None was recorded, or the order of something else than rows.
        SourceChanged: A file of a `Sampled` is not the version that the run was trained on.
    """
    folder = RunFolder.at(run)
    recorded = folder.load(FILE_NAME, lambda facts: _recorded(facts, folder, allow_locations), VERSION)
    if recorded is None:
        raise InvalidOption(
            f"{folder.uri} has no {FILE_NAME}, which says in which order a run reads its rows. Give the folder of a "
            "run, which `forebay run` printed. Runs of earlier releases have none.",
            path=folder.uri,
        )
    return recorded


def _recorded(facts: Mapping[str, Any], folder: RunFolder, allow: Uri | Sequence[Uri]) -> RecordedOrder:
    order = _order(facts["order"], folder, allow)
    if order.id != facts["plan"]:
        raise InvalidOption(
            f"{folder.uri} was trained with plan {facts['plan'][:12]}, and this release builds plan {order.id[:12]} "
            "from its record. Use the release of Forebay that trained it.",
            path=folder.uri,
        )
    keys = tuple(StepColumns(**each) for each in facts.get("keys", ()))
    if facts["last"] not in get_args(Last):
        raise ValueError(f"last={facts['last']!r}")
    return RecordedOrder(order=order, last=facts["last"], keys=keys)


def _facts(order: Order) -> dict[str, Any]:
    match order:
        case Plan():
            options = {"seed": order.seed, "lanes": order.lanes, "shuffle_rows": order.shuffle_rows}
            windows = {"windows": order.windows[0].id} if order.windows else {}
            return {"kind": "plan", "manifest": order.manifest.version, **windows, **options, "shuffle": order.shuffle}
        case Sampled():
            return {"kind": "sampled", "plan": _facts(order.plan), **order.options}
        case Mixture():
            plans = {name: _facts(plan) for name, plan in zip(order.names, order.plans, strict=True)}
            return {"kind": "mixture", "plans": plans, **order.options}
    return {"kind": "other"}


def _order(facts: Mapping[str, Any], folder: RunFolder, allow: Uri | Sequence[Uri]) -> Order:
    options = dict(facts)
    kind = options.pop("kind")
    if kind == "plan":
        return _plan(options, folder, allow)
    if kind == "sampled":
        plan = _order(options.pop("plan"), folder, allow)
        assert isinstance(plan, Plan), "no other order can be sampled"
        return Sampled(plan, **options)
    if kind == "mixture":
        plans = {name: _order(each, folder, allow) for name, each in options.pop("plans").items()}
        return Mixture(plans, **options)
    raise InvalidOption(
        f"{folder.uri} was trained on an order of another class than Plan, Sampled and Mixture.", path=folder.uri
    )


def _plan(options: dict[str, Any], folder: RunFolder, allow: Uri | Sequence[Uri]) -> Plan:
    version, index_id = options.pop("manifest"), options.pop("windows", None)
    for name in (version, index_id):
        if not re.fullmatch("[0-9a-f]*", name or ""):
            raise ValueError(f"it names the file {name!r:.200}")
    manifest = load_manifest(_manifest(folder, version).uri, allow)
    if index_id is None:
        return build_plan(manifest, **options)
    return build_plan(_Windows(manifest, load_index(_index(folder, index_id).uri)), **options)


class _Windows(NamedTuple):
    """Recorded windows over the series of a dataset."""

    manifest: Manifest
    windows: WindowIndex


def _key_facts(keys: StepColumns) -> dict[str, Any]:
    names = ("entity", "time", "is_list")
    return {name: getattr(keys, name) for name in names} | {"values": {k: list(v) for k, v in keys.values.items()}}


def _save_once(save: Callable[[Any, str], None], value: object, file: Location) -> None:
    if file.fs.get_file_info(file.path).type == FileType.NotFound:
        save(value, file.uri)


def _manifest(folder: RunFolder, version: str) -> Location:
    return folder.location.child(f"{FOLDER}/{version[:16]}.parquet")


def _index(folder: RunFolder, index_id: str) -> Location:
    return folder.location.child(f"{FOLDER}/{index_id[:16]}.windows.parquet")


def save_index(index: WindowIndex, uri: str) -> None:
    """Write `index` as a Parquet file of one row.

    Its columns are lists. Raises `OSError`.
    """
    arrays = {name: getattr(index.line, name) for name in _LINE} | {
        name: getattr(index.bounds, name) for name in _BOUNDS
    }
    facts: dict[str, Any] = {
        "shape": asdict(index.shape),
        "own_context": index.bounds.own_context,
        "num_blocks": len(index.rows),
        "data_id": index.data_id,
    }
    lists = [pa.LargeListArray.from_arrays([0, len(array)], pa.array(array)) for array in arrays.values()]
    table = pa.Table.from_arrays(lists, names=list(arrays)).replace_schema_metadata({_METADATA: json.dumps(facts)})
    sink = pa.BufferOutputStream()
    # Most numbers ascend: their differences are small.
    encodings = {f"{name}.list.element": "DELTA_BINARY_PACKED" for name in arrays}
    pq.write_table(table, sink, use_dictionary=False, column_encoding=encodings, compression="zstd")
    write_atomically(uri, sink.getvalue().to_pybytes())


def load_index(uri: str) -> WindowIndex:
    """Return the index that `save_index` wrote.

    Raises `InvalidOption` for a file that is missing or damaged.
    """
    location = resolve(uri)
    try:
        table = pq.read_table(pa.BufferReader(read_small(location)))
        arrays = {name: np.array(table[name].chunk(0).values, dtype=np.int64) for name in (*_LINE, *_BOUNDS)}
        facts = json.loads(table.schema.metadata[_METADATA])
    except (OSError, pa.ArrowException, KeyError, TypeError) as error:
        raise InvalidOption(
            f"The index of windows {location.uri} cannot be read ({error}). Give the folder of the run with all files "
            "that the run has written there.",
            path=location.uri,
        ) from error
    shape = facts["shape"] | {"ahead": tuple(facts["shape"]["ahead"])}
    bounds = TargetBounds(**{name: arrays[name] for name in _BOUNDS}, own_context=facts["own_context"])
    return WindowIndex(
        StepLine(**{name: arrays[name] for name in _LINE}),
        WindowShape(**shape),
        bounds,
        num_blocks=facts["num_blocks"],
        data_id=facts["data_id"],
    )
