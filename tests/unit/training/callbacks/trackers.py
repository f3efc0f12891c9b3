"""Readers of what each tracker wrote to its own files: without a network, and without the tracker's own client."""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event, SessionLog  # of Ray Train, sets a variable at import

from forebay.training.callbacks.tracker import Tracker


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One run in a tracker. `metrics` by name, as (step, value) in the order of the file."""

    facts: Mapping[str, str]
    metrics: Mapping[str, list[tuple[int, float]]]
    texts: Mapping[str, str]
    state: str
    group: str | None = None


@dataclass(frozen=True, kw_only=True)
class TrackerKind:
    """A tracker: makes a callback that writes below a folder, and reads every run there by name.

    `end` is what happens to the tracker when a process ends.
    """

    name: str
    make: Callable[..., Tracker]
    read: Callable[[Path], Mapping[str, Recorded]]
    environment: Mapping[str, str] = field(default_factory=dict)
    end: Callable[[], object] = lambda: None


def read_tensorboard(folder: Path) -> Mapping[str, Recorded]:
    places = {path.parent for path in folder.rglob("*tfevents*")}
    return {place.name: _tensorboard_run(place) for place in places}


def _tensorboard_run(folder: Path) -> Recorded:
    shown = scalars(folder)
    metrics = {name: values for name, values in shown.items() if not name.endswith("text_summary")}
    texts = {name.rpartition("/")[0]: values[-1][1] for name, values in shown.items() if name.endswith("text_summary")}
    lines = [tuple(line.strip("| ").split(" | ")) for line in texts["run/parameters"].splitlines()[2:]]
    notes = {name.replace("monitors/", ""): text for name, text in texts.items()}
    return Recorded(facts=dict(lines), metrics=metrics, texts=notes, state=texts.get("run/state", ""))


def scalars(folder: Path) -> dict[str, list[tuple[int, Any]]]:
    """Scalars and texts that TensorBoard shows. At the start of a session it drops later steps that it has.

    A file is a sequence of records: a length, its checksum, an event, and its checksum.
    """
    found: dict[str, list[Any]] = defaultdict(list)
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        while content:
            length = int.from_bytes(content[:8], "little")
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            if event.session_log.status == SessionLog.START:
                for kept in found.values():
                    kept[:] = [shown for shown in kept if shown[0] < event.step]
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                found[value.tag].append(
                    (event.step, value.simple_value if kind == "simple_value" else value.tensor.string_val[0].decode())
                )
    return dict(found)


def read_mlflow(folder: Path) -> Mapping[str, Recorded]:
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlruns").as_uri())
    places = [each.experiment_id for each in client.search_experiments() if each.name == "clicks"]
    found = {}
    for run in client.search_runs(places):
        histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        reason = run.data.tags.get("forebay.reason")
        state = {"FINISHED": "finished", "KILLED": "stopped", "FAILED": "failed"}.get(run.info.status, run.info.status)
        found[run.info.run_name] = Recorded(
            facts=run.data.params,
            metrics={name: [(each.step, each.value) for each in history] for name, history in histories.items()},
            texts={name.split(".")[1]: text for name, text in run.data.tags.items() if name.count(".") == 2},
            state=f"{state}: {reason}" if reason else state,
            group=run.data.tags.get("forebay.group"),
        )
    return found


def read_wandb(folder: Path) -> Mapping[str, Recorded]:
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, Any] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        run: Any = None
        for content in _records(path.read_bytes()):
            record = Record.FromString(content)
            if record.HasField("run"):
                run = record.run
                one = found.setdefault(
                    run.run_id, {"facts": {}, "metrics": defaultdict(list), "summary": {}, "group": None}
                )
                one["group"] = run.run_group or None
                _update(one["facts"], run.config.update)
            elif record.HasField("config"):
                _update(one["facts"], record.config.update)
            elif record.HasField("summary"):
                _update(one["summary"], record.summary.update)
            elif record.HasField("history"):
                items = {
                    (item.key or ".".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item
                }
                for name, value in items.items():
                    if "/" in name:
                        one["metrics"][name].append((items["step"], value))
    return {
        name: Recorded(
            facts={key: str(value) for key, value in one["facts"].items()},
            metrics=one["metrics"],
            texts={key.split(".")[1]: text for key, text in one["summary"].items() if key.count(".") == 2},
            state=one["summary"].get("forebay.state", ""),
            group=one["group"],
        )
        for name, one in found.items()
    }


def _update(into: dict[str, Any], items: Any) -> None:
    into.update({(item.key or ".".join(item.nested_key)): json.loads(item.value_json) for item in items})


def _records(content: bytes) -> Iterator[bytes]:
    """Records of a W&B file: after 7 bytes, blocks of 32 KiB in the format of LevelDB's log.

    Each piece is a checksum of 4 bytes, a length of 2, a type (1 whole, 2 first, 3 middle, 4 last) and its content.
    """
    assert content[:4] == b":W&B"
    place, begun, block = 7, b"", 32 << 10
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        begun += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield begun
            begun = b""


def read_comet(folder: Path) -> Mapping[str, Recorded]:
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.zip"), key=lambda each: each.stat().st_mtime_ns):
        with zipfile.ZipFile(path) as archive:
            head = json.loads(archive.read("experiment.json"))
            messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
        empty = {"facts": {}, "metrics": defaultdict(list), "others": {}, "tags": head["tags"]}
        one = found.setdefault(head["offline_id"], empty)
        for message in messages:
            payload = message["payload"]
            match message["type"]:
                case "parameter_msg" if payload["param"]["source"] == "manual":
                    one["facts"][payload["param"]["paramName"]] = str(payload["param"]["paramValue"])
                case "metric_msg" if "/" in payload["metric"]["metricName"]:
                    metric = payload["metric"]
                    one["metrics"][metric["metricName"]].append((metric["step"], float(metric["metricValue"])))
                case "log_other":
                    one["others"][payload["key"]] = payload["value"]
    return {
        one["others"]["Name"]: Recorded(
            facts=one["facts"],
            metrics=one["metrics"],
            texts={key.split(".")[1]: text for key, text in one["others"].items() if key.count(".") == 2},
            state=one["others"].get("forebay.state", ""),
            group=one["tags"][0] if one["tags"] else None,
        )
        for one in found.values()
    }
