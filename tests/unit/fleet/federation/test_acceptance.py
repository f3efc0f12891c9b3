"""Submitters of a fleet, over real storage and simulated clusters."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.fleet_simulation.made import made_fleet, simulated

import forebay as fb
from forebay.errors import InvalidOption
from forebay.fleet.client.job_rows import JobRows
from forebay.fleet.client.submission import FLEET, AcceptedBy, JobFiles, Submission
from forebay.fleet.client.submitted_job import SubmittedJob
from forebay.fleet.federation.acceptance import Acceptance
from forebay.fleet.federation.controller import FleetController
from forebay.fleet.fleet_file import Fleet
from forebay.fleet.lifecycle.journal import JobJournal
from forebay.fleet.rayjob.attempt import PlacedAttempt
from forebay.fleet.rayjob.render import render
from forebay.fleet.submitter import Submitter
from forebay.storage.credentials import granted, redact
from forebay.training.checkpoint.files.claim import Claim
from forebay.training.runs.attempts.files import AttemptFiles

SHAPE = fb.fleet.TaskWorkers(min=1, cpu="32", memory="256Gi", gpus=8)
EVIL = fb.fleet.Launch(image="evil.example/x:1", secret_env={"TOKEN": "admin/token"})


@dataclass
class OwnedFleet:
    """A controller over two submitters' storages."""

    folder: Path
    ask: str = "platform@example.org"
    submitters: tuple[Submitter, ...] = ()
    count: int = 1
    lines: list[str] = field(default_factory=list)
    created: list[PlacedAttempt] = field(default_factory=list)
    journal: JobJournal = field(default_factory=lambda: JobJournal(":memory:"))

    def __post_init__(self) -> None:
        self.submitters = self.submitters or tuple(
            Submitter(name=name, storage=(self.storage(name),), service_account=f"ray-{name}")
            for name in ("anna", "bob")
        )
        self.simulate(1)

    def simulate(self, count: int) -> None:
        """Let the fleet have `count` empty clusters."""
        self.count = count
        self.clusters = simulated(self.fleet, 8)
        original = self.clusters.create

        def create(cluster: str, attempt: PlacedAttempt) -> None:
            full = self.clusters.complete(attempt)  # type: ignore[attr-defined]
            self.created.append(full)
            original(cluster, full)

        self.clusters.create = create  # type: ignore[method-assign]

    @property
    def fleet(self) -> Fleet:
        audit = str(self.folder / "audit")
        return replace(made_fleet(self.count), submitter=self.submitters, ask=self.ask, audit=audit)

    def storage(self, name: str) -> str:
        return str(self.folder / name)

    def submit(self, owner: str, name: str, *, number: int = 1, **given: object) -> JobFiles:
        """Write a submission into the storage of `owner`, as a process that may write there can."""
        facts = {"storage": self.storage(owner), "name": name, "number": number, **given}
        spec = fb.JobSpec(
            name=str(facts["name"]),
            storage=str(facts["storage"]),
            task=(fb.fleet.Task(command=("true",), workers=replace(SHAPE, sku=given.get("sku", ()))),),  # type: ignore[arg-type]
            scheduling=given.get("scheduling", fb.fleet.Scheduling()),  # type: ignore[arg-type]
            launch=given.get("launch", fb.fleet.Launch()),  # type: ignore[arg-type]
        )
        made = Submission(spec=spec, number=int(str(facts["number"])), backend=FLEET, token="0a", says="root@evil")
        files = JobFiles(storage=self.storage(owner), name=name)
        path = Path(files.uri(number))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(made.to_json())
        path.chmod(0o644)
        return files

    def rounds(self, begin: float = 0.0, count: int = 5) -> FleetController:
        controller = FleetController(
            self.fleet,
            [] if self.submitters else [self.storage("anna"), self.storage("bob")],
            self.journal,
            clusters=self.clusters,  # type: ignore[arg-type]
            log=self.lines.append,
        )
        for number in range(count):
            controller.step(begin + 10.0 * number)
        return controller

    @property
    def audit(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnedFleet:
    monkeypatch.setattr(FleetController, "_follow_log", lambda *_: None)  # simulated pods have no logs
    return OwnedFleet(tmp_path)


def of_bob(bench: OwnedFleet) -> dict[str, object]:
    return {"storage": bench.storage("bob")}


FORGED: dict[str, tuple[Callable[[OwnedFleet], dict[str, object]], str]] = {
    "an image and a Secret": (lambda _: {"launch": EVIL}, "anna may not use the image 'evil.example/x:1' (allowed:"),
    "another's storage": (of_bob, "it says that it is submission 1 of 'ctr' in "),
    "another's name": (lambda _: {"name": "other"}, "it says that it is submission 1 of 'other' in "),
}


@pytest.mark.parametrize("case", FORGED)
def test_nothing_of_a_refused_submission_starts(bench: OwnedFleet, case: str) -> None:
    given, text = FORGED[case]
    facts = given(bench)
    files = bench.submit("anna", "ctr", **{key: value for key, value in facts.items() if key != "name"})
    if "name" in facts:
        path = Path(files.uri(1))
        path.write_text(path.read_text().replace('"name": "ctr"', '"name": "other"'))
    bench.rounds()
    status = SubmittedJob(bench.storage("anna"), "ctr").status()
    assert (status.state, bench.created, bench.clusters.changes) == ("refused", [], [])
    assert text in status.why
    assert not (bench.folder / "bob" / "ctr").exists()
    (line,) = bench.audit
    assert (line["action"], line["submitter"], line["says"]) == ("refused", "anna", "root@evil")
    assert text in str(line["why"])


def test_pods_have_the_account_of_their_submitter(bench: OwnedFleet) -> None:
    bench.submit("anna", "ctr")
    bench.submit("bob", "rank")
    bench.rounds()
    found = {}
    for attempt in bench.created:
        ray_job = render(attempt, bench.fleet.cluster[0])
        head = ray_job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
        found[attempt.spec.name] = (
            head["serviceAccountName"],
            ray_job["metadata"]["annotations"]["forebay.dev/submitted-by"],
        )
    assert found == {"ctr": ("ray-anna", "anna"), "rank": ("ray-bob", "bob")}
    assert SubmittedJob(bench.storage("anna"), "ctr").status().submitter == "anna"


def test_a_name_of_another_storage_is_refused(bench: OwnedFleet) -> None:
    """Else the attempts of one would have the code and the account of the other."""
    bench.submit("bob", "ctr")
    bench.rounds()
    bench.submit("anna", "ctr")
    bench.rounds(100.0)
    status = SubmittedJob(bench.storage("anna"), "ctr").status()
    assert status.state == "refused"
    assert "another storage of the fleet has a job 'ctr'" in status.why
    assert [each.submitter.name for each in bench.created if each.submitter] == ["bob"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"spec": 1}', b'{"spec": {}, "number": "x"}', b"x" * (2 << 20)]
)
def test_a_damaged_submission_stops_nobody_else(bench: OwnedFleet, content: bytes) -> None:
    files = bench.submit("anna", "ctr")
    Path(files.uri(1)).write_bytes(content)
    bench.submit("bob", "rank")
    bench.rounds()
    assert [each.spec.name for each in bench.created] == ["rank"]
    ended = files.ended(1)
    assert ended is not None and ended.how == "refused" and "is not a submission" in ended.why


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "a million digits": lambda facts: facts["spec"]["task"][0]["workers"].update(cpu="1e999990"),
    "more than a million digits": lambda facts: facts["spec"]["task"][0]["workers"].update(cpu="1e3000000"),
    "bytes with as many": lambda facts: facts["spec"]["task"][0]["workers"].update(memory="9" * 500_000 + "Gi"),
    "a time beyond all floats": lambda facts: facts["spec"]["scheduling"].update(start_within=10**400),
    "a text that a pattern reads for hours": lambda facts: facts["spec"]["launch"].update(
        setup=["eyJ-" * 100_000 + " hf_" + "a" * 30]
    ),
    "more tasks than anybody has": lambda facts: facts["spec"].update(
        task=[{"name": f"t{number}", "command": ["a"]} for number in range(20_000)]
    ),
    "more mounts": lambda facts: facts["spec"]["launch"].update(
        mounts=[{"secret": "a", "path": f"/{number}"} for number in range(20_000)]
    ),
    "the home of nobody": lambda facts: facts["spec"].update(storage="~no-such-user/x"),
    "a host in a path": lambda facts: facts["spec"].update(storage="file://host/x"),
    "no URI": lambda facts: facts["spec"].update(storage="s3://[::1"),
    "keys of a storage": lambda facts: facts["spec"].update(storage="s3://EVILEVIL:refused@lake/bob"),
    "options of a storage": lambda facts: facts["spec"].update(storage="s3://lake/bob?nokey=refused"),
    "keys in a word": lambda facts: facts["spec"]["task"][0].update(command=["s3://EVILEVIL:refused@lake/bob"]),
}


@pytest.mark.parametrize("has_submitters", [True, pytest.param(False, marks=pytest.mark.variation)])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_submission_is_refused_and_stops_nobody_else(
    bench: OwnedFleet, case: str, has_submitters: bool
) -> None:
    if not has_submitters:
        bench.submitters = ()
    files, keys = bench.submit("anna", "ctr"), granted("s3://lake/bob")
    path = Path(files.uri(1))
    facts = json.loads(path.read_text())
    HOSTILE[case](facts)
    path.write_text(json.dumps(facts))
    bench.submit("bob", "rank")
    controller = bench.rounds()
    assert [each.spec.name for each in bench.created] == ["rank"]
    ended = files.ended(1)
    assert ended is not None and ended.how == "refused" and len(ended.why) <= 2000
    # The controller opens no storage with keys of a submission, and hides no word of its audit.
    assert granted("s3://lake/bob") == keys
    assert redact("refused") == "refused"
    assert controller.step(100.0)


@pytest.mark.parametrize("what", ["a pipe", "a device", "a sparse file", "a folder"])
@pytest.mark.parametrize("place", ["submissions/000001.json", "submissions/000001.ended.json", "attempts/000001.json"])
def test_what_is_no_file_holds_up_nobody_else(bench: OwnedFleet, what: str, place: str) -> None:
    files = bench.submit("anna", "ctr")
    path = Path(files.folder) / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if what == "a pipe":
        os.mkfifo(path)
    elif what == "a device":
        path.symlink_to("/dev/zero")
    elif what == "a folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)
    bench.submit("bob", "rank")
    for number in range(3):
        with suppress(OSError):
            bench.rounds(10.0 * number, 1)
    assert [each.spec.name for each in bench.created] == ["rank"]


def test_names_and_links_that_cannot_be_read_hide_no_job(bench: OwnedFleet) -> None:
    bench.submit("anna", "ctr")
    folder = Path(bench.storage("anna"))
    (folder / os.fsdecode(b"\xff\xfe")).mkdir()
    (folder / "loop").symlink_to("loop")
    for number in range(3):
        with suppress(OSError):
            bench.rounds(10.0 * number, 1)
    assert [each.spec.name for each in bench.created] == ["ctr"]
    (row,) = (each for each in JobRows([str(folder)]).read().rows if each.name == "ctr")
    assert row.state == "starting"


CLAIMS = {
    "another cluster": ("c01/h100/on-demand/1", "c01 is not in scheduling.clusters"),
    "more workers": ("c00/h100/on-demand/9999", "the task has 1 to 1 workers"),
    "another market": ("c00/h100/spot/1", "the task has spot = 'never'"),
    "another machine": ("c00/a100/on-demand/1", "the task may have h100"),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_a_forged_claim_gets_no_other_cluster_or_machine(bench: OwnedFleet, case: str) -> None:
    target, why = CLAIMS[case]
    bench.simulate(2)
    files = bench.submit("anna", "ctr", scheduling=fb.fleet.Scheduling(clusters=("c00",)), sku=("h100",))
    AttemptFiles(files.folder).create(Claim.of_this_process(1, cluster=target))
    bench.rounds()
    assert bench.created == []
    ended = files.ended(1)
    assert ended is not None and ended.how == "failed"
    assert f"its newest claim is for {target}, and {why}: no controller has made it for this job" in ended.why


def test_a_claim_of_any_number_is_read_at_once(bench: OwnedFleet) -> None:
    files = bench.submit("anna", "ctr")
    AttemptFiles(files.folder).create(Claim.of_this_process(10**12, cluster="c00/h100/on-demand/1"))
    bench.submit("bob", "rank")
    bench.rounds()
    assert "rank" in {each.spec.name for each in bench.created}


def test_a_storage_that_refuses_the_controller_stops_nobody_else(
    bench: OwnedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit("anna", "ctr")
    bench.submit("bob", "rank")
    original = JobFiles.newest_stored

    def newest(files: JobFiles) -> object:
        if files.name == "ctr":
            raise PermissionError("no")
        return original(files)

    monkeypatch.setattr(JobFiles, "newest_stored", newest)
    for number in range(5):
        with pytest.raises(OSError, match="no"):
            bench.rounds(10.0 * number, 1)
    assert [each.spec.name for each in bench.created] == ["rank"]
    monkeypatch.undo()
    monkeypatch.setattr(FleetController, "_follow_log", lambda *_: None)
    bench.rounds(100.0)
    assert {each.spec.name for each in bench.created} == {"rank", "ctr"}, "silence is no refusal"


@pytest.mark.parametrize("kind", ["accepted", "started", "ended"])
@pytest.mark.parametrize("content", [b"{", b'{"x": 1}', b'{"how": 1}', b"[" * 100_000])
def test_a_file_that_a_submitter_forged_stops_nobody_else(bench: OwnedFleet, kind: str, content: bytes) -> None:
    files = bench.submit("anna", "ctr")
    Path(files.uri(1).replace(".json", f".{kind}.json")).write_bytes(content)
    bench.submit("bob", "rank")
    for number in range(5):
        with suppress(OSError):
            bench.rounds(10.0 * number, 1)
    assert "rank" in {each.spec.name for each in bench.created}
    assert [line["submitter"] for line in bench.audit if line["action"] == "accepted" and line["job"] == "rank"]


def test_a_forged_acceptance_hides_nothing(bench: OwnedFleet) -> None:
    files = bench.submit("anna", "ctr")
    files.accept(1, AcceptedBy(submitter="bob", by="storage"))
    bench.rounds()
    assert SubmittedJob(bench.storage("anna"), "ctr").status().submitter == "anna"
    assert [line["submitter"] for line in bench.audit] == ["anna"] * 2


def test_a_queued_job_ends_when_its_submitter_loses_the_right(bench: OwnedFleet) -> None:
    bench.submitters = tuple(replace(each, most_gpus=8) for each in bench.submitters)
    bench.submit("anna", "first")
    bench.submit("anna", "second")
    controller = bench.rounds()
    assert [each.spec.name for each in bench.created] == ["first"]
    assert controller.reasons("second") == ("anna has 8 of its 8 GPUs, and this task may need 8",)
    bench.submitters = tuple(replace(each, names=("first",)) for each in bench.submitters)
    bench.rounds(100.0)
    assert SubmittedJob(bench.storage("anna"), "second").status().state == "refused"
    assert [each.spec.name for each in bench.created] == ["first"]


def test_a_changed_submission_is_judged_again(bench: OwnedFleet) -> None:
    """Between the claim and the RayJob, the file is replaced by another one."""
    files = bench.submit("anna", "ctr")
    bench.rounds(count=1)
    bench.submit("anna", "ctr", launch=EVIL)
    bench.rounds(10.0)
    assert bench.created == []
    ended = files.ended(1)
    assert ended is not None and ended.how == "refused"


@pytest.mark.parametrize(("mode", "by"), [(0o644, "uid"), (0o664, ""), (0o666, "")])
def test_the_owner_of_a_file_is_its_submitter(bench: OwnedFleet, mode: int, by: str) -> None:
    storage = bench.storage("shared")
    bench.submitters = (Submitter(name="anna", storage=(storage,), uids=(os.getuid(),)),)
    files = bench.submit("shared", "ctr")
    Path(files.uri(1)).chmod(mode)
    bench.rounds()
    status = SubmittedJob(storage, "ctr").status()
    if by:
        assert bench.audit[0]["by"] == f"uid {os.getuid()}"
        assert status.submitter == "anna"
    else:
        assert status.state == "refused"
        assert f"others than its owner may write the file (mode {mode:o})" in status.why


def test_nobody_in_the_fleet_file_is_refused_without_an_entry_for_all_others(bench: OwnedFleet) -> None:
    storage = bench.storage("shared")
    anna = Submitter(name="anna", storage=(storage,), uids=(os.getuid() + 1,))
    for submitters, state in (((anna,), "refused"), ((anna, Submitter(name="default")), "starting")):
        bench.submitters = submitters
        name = f"job-{len(submitters)}"
        bench.submit("shared", name)
        bench.rounds(100.0 * len(submitters), count=2)
        assert SubmittedJob(storage, name).status().state == state


def test_storages_in_each_other_are_refused(bench: OwnedFleet) -> None:
    """The folder of one would be the folder of a job in the other."""
    with pytest.raises(InvalidOption, match="lie in each other"):
        FleetController(bench.fleet, [str(bench.folder)], bench.journal, clusters=bench.clusters)  # type: ignore[arg-type]


def test_the_controller_says_who_it_trusts(bench: OwnedFleet) -> None:
    assert not [each for each in bench.rounds(count=0).notes() if "access to storage" in each]
    bench.submitters = tuple(replace(each, service_account=None) for each in bench.submitters)
    (note,) = bench.rounds(count=0).notes()
    assert note.startswith("pods of anna, bob have one access to storage in c00 (account default)")
    nobody = replace(bench.fleet, submitter=())
    found = FleetController(nobody, [bench.storage("a")], bench.journal, clusters=bench.clusters)  # type: ignore[arg-type]
    (note,) = found.notes()
    assert note.startswith("the fleet file has no [[submitter]]: whoever may write into ")


def test_a_user_is_told_before_the_submission(bench: OwnedFleet) -> None:
    spec = fb.JobSpec(
        name="ctr", storage=bench.storage("anna"), launch=EVIL, task=(fb.fleet.Task(command=("true",), workers=SHAPE),)
    )
    verdict = Acceptance(bench.fleet).foresee(spec)
    assert verdict.submitter is not None and verdict.submitter.name == "anna"
    assert "the Secret 'admin' (allowed: none). Ask platform@example.org." in (verdict.refusal or "")
    assert Acceptance(bench.fleet).foresee(replace(spec, launch=fb.fleet.Launch())).refusal is None


def test_every_change_in_a_cluster_has_one_line_of_before(bench: OwnedFleet) -> None:
    bench.submit("anna", "ctr")
    bench.submit("bob", "rank", launch=fb.fleet.Launch(env={"X": "\x1b[31m"}))
    bench.rounds()
    (ctr,) = [job for job in bench.clusters.clusters["c00"].jobs.values() if job.run == "ctr"]
    bench.clusters.clusters["c00"].end(ctr, "failed", "its head\x1b[31m was\nlost", 60.0)
    bench.rounds(60.0)
    changes = [(action, name) for action, _, name in bench.clusters.changes]
    told = [(line["action"], line["object"]) for line in bench.audit if "object" in line]
    assert sorted(told) == sorted(changes)
    deleted = next(line for line in bench.audit if line["action"] == "deleted")
    assert deleted["submitter"] == "anna"
    assert deleted["submission"] == 1
    assert deleted["cluster"] == "c00"
    assert "\x1b" not in "".join(bench.lines)
    stored = list((bench.folder / "audit").rglob("*.jsonl"))
    assert sorted(line for path in stored for line in path.read_text().splitlines()) == sorted(bench.lines)
    assert all(path.stem == json.loads(path.read_text().splitlines()[0])["controller"] for path in stored)


def test_without_a_place_for_its_line_nothing_starts(bench: OwnedFleet) -> None:
    (bench.folder / "audit").write_text("a file where a folder would be")
    bench.submit("anna", "ctr")
    controller = bench.rounds(count=0)
    for now in range(3):
        with pytest.raises(OSError, match="a line of the audit could not be written"):
            controller.step(float(now))
    assert bench.created == []
    (bench.folder / "audit").unlink()
    bench.rounds(10.0)
    assert len(bench.created) == 1


def test_a_fleet_without_submitters_runs_what_it_finds(bench: OwnedFleet) -> None:
    nobody = replace(bench.fleet, submitter=())
    bench.submit("anna", "ctr", launch=EVIL)
    controller = FleetController(nobody, [bench.storage("anna")], bench.journal, clusters=bench.clusters)  # type: ignore[arg-type]
    for now in range(5):
        controller.step(10.0 * now)
    assert len(bench.created) == 1
    assert SubmittedJob(bench.storage("anna"), "ctr").status().submitter == "says root@evil"


def test_no_storage_of_another_submitter_is_opened() -> None:
    """Their buckets may refuse this user, and their names may have no address."""
    submitters = tuple(Submitter(name=name, storage=(f"S3://bucket-of-{name}/runs/",)) for name in ("anna", "bob"))
    spec = fb.JobSpec(
        name="ctr", storage="s3://bucket-of-bob/runs", task=(fb.fleet.Task(command=("true",), workers=SHAPE),)
    )
    found = Acceptance(replace(made_fleet(1), submitter=submitters))
    assert (found.foresee(spec).submitter or submitters[0]).name == "bob"
    assert len(found.followed(["s3://bucket-of-bob/runs"])) == 2
    for other in (
        "s3://bucket-of-bob/runs-2",
        "s3://bucket-of-bob/runs/x",
        "s3://bucket-of-bob/runs?region=x",
        "/runs",
    ):
        assert found.foresee(replace(spec, storage=other)).submitter is None, other
