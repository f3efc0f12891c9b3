"""Job files: a good one, and wrong ones.

Each wrong one has its line and its error.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay as fb
from forebay.errors import InvalidJobSpec, InvalidOption, SpecChanged
from forebay.fleet.fleet_file import parse_fleet
from forebay.fleet.spec.canonical import changes, facts_of, key_of, require_same
from forebay.fleet.spec.job_toml import job_schema, parse_job_spec, spec_of

GOLDEN = Path(__file__).with_name("job.schema.json")
JOB = """\
name = "ctr-7"
storage = "s3://lake/runs"
[[task]]
name = "prepare"
command = ["python", "prepare.py", "a b; rm -rf $HOME", "\\u00fc"]
[[task]]
name = "train"
after = ["prepare"]
run = "jobs/train_ctr.py"
args = {data = "hdfs://nn/clicks", epochs = 3, eos_token = "</s>", hidden = [64, 32]}
workers = {min = 2, max = 16, cpu = 12, memory = "96Gi", gpus = 1, sku = ["h100", "a100-40"], spot = "prefer"}
retries = 5
[scheduling]
clusters = ["any"]
deny = ["old-*"]
queue = "ads"
priority = "high"
start_within = "10m"
finish_within = "24h"
max_price_per_hour = 120
unreachable = {after = "15m", then = "wait"}
[launch]
image = "registry/forebay@sha256:0a"
setup = ["kinit -kt /secrets/krb/keytab train@CORP"]
env = {NCCL_DEBUG = "WARN", TOKENIZERS_PARALLELISM = "false", OMP_NUM_THREADS = 1, KRB_TOKEN = "/secrets/krb/token"}
secret_env = {HF_TOKEN = "hf-token/token"}
mounts = [{secret = "krb", path = "/secrets/krb"}, {config_map = "hadoop-conf", path = "/etc/hadoop"}]
labels = {team = "ads"}
"""


@pytest.fixture(scope="module")
def spec() -> fb.JobSpec:
    return parse_job_spec(JOB)


def test_a_job_file_is_the_dataclass(spec: fb.JobSpec) -> None:
    prepare, train = spec.task
    assert (prepare.command[2], prepare.command[3]) == ("a b; rm -rf $HOME", "ü")
    assert train.workers == fb.fleet.TaskWorkers(
        min=2, max=16, cpu="12", memory="96Gi", gpus=1, sku=("h100", "a100-40"), spot="prefer"
    )
    assert train.workers.elastic == fb.Elastic(min_workers=2, max_workers=16)
    assert (spec.scheduling.start_within, spec.scheduling.finish_within, spec.scheduling.unreachable.after) == (
        600,
        86_400,
        900,
    )
    assert spec.launch.env["OMP_NUM_THREADS"] == "1"
    assert [spec.run_name(task) for task in spec.task] == ["ctr-7.prepare", "ctr-7.train"]
    assert dataclasses.replace(spec, task=(prepare,)).run_name(prepare) == "ctr-7"


def test_specs_made_in_python_are_the_same(spec: fb.JobSpec, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    assert fb.JobSpec.load(tmp_path / "job.toml") == spec
    assert fb.JobSpec(**facts_of(spec)) == spec == spec_of(json.loads(json.dumps(facts_of(spec))))
    assert fb.fleet.Scheduling(start_within="1h30m").start_within == 5400  # type: ignore[arg-type]


def test_the_key_depends_on_what_is_meant(spec: fb.JobSpec) -> None:
    again = parse_job_spec(JOB.replace("cpu = 12", 'cpu = "12000m"').replace('"10m"', "600"))
    assert key_of(again) == key_of(spec)
    other = parse_job_spec(JOB.replace("epochs = 3", "epochs = 4").replace("retries = 5", "retries = 6"))
    assert changes(spec, other) == {"task[1].args.epochs": (3, 4), "task[1].retries": (5, 6)}
    require_same(spec, again)
    with pytest.raises(SpecChanged, match=r"task\[1\].args.epochs: 3 -> 4") as error:
        require_same(spec, other)
    assert error.value.fields == ["task[1].args.epochs", "task[1].retries"]
    assert key_of(dataclasses.replace(other, key="mine")) == "mine"


def test_the_schema_is_the_golden_one() -> None:
    """The schema is golden.

    After a wanted change: `forebay fleet schema | python -m json.tool > tests/unit/fleet/spec/job.schema.json`.
    """
    assert job_schema() == json.loads(GOLDEN.read_text())


def test_the_schema_takes_the_job_file() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    import tomllib

    jsonschema.Draft202012Validator(job_schema()).validate(tomllib.loads(JOB))


def test_the_command_prints_the_schema(forebay: Callable[..., Any]) -> None:
    assert json.loads(forebay("fleet", "schema").out) == json.loads(GOLDEN.read_text())


LONG = "a" * 31
KEY = "AKIA" + "ABCDEFGHIJKLMNOP"
# Text of the good file, its replacement, line and fault of the error.
WRONG = [
    ("retries", "retrys", 12, "Did you mean 'retries'?"),
    ("[scheduling]", "[schedulling]", 13, "Did you mean 'scheduling'?"),
    ("gpus = 1", "gpu = 1", 11, "Did you mean 'gpus'?"),
    ('secret = "krb"', 'secert = "krb"', 27, "Did you mean 'secret'?"),
    ('then = "wait"', 'than = "wait"', 21, "Did you mean 'then'?"),
    ('name = "ctr-7"', "name = 7", 1, "must be text in quotes, and it is a number"),
    ('name = "ctr-7"', "", 1, "name: it is missing"),
    ('name = "ctr-7"', f'name = "{LONG}"', 1, "has 31 characters. Give at most 30"),
    ('name = "ctr-7"', 'name = "CTR"', 1, "lower-case"),
    ('name = "ctr-7"', 'name = "7ctr"', 1, "begin with a letter"),
    ('name = "train"', 'name = ""', 7, "lower-case"),
    ('name = "train"', 'name = "prepare"', 7, "two tasks are called 'prepare'"),
    ('after = ["prepare"]', 'after = ["prepara"]', 8, "there is no task 'prepara'; there are prepare, train"),
    ('name = "prepare"', 'name = "prepare"\nafter = ["train"]', 5, "wait for each other"),
    ('run = "jobs/train_ctr.py"', "", 6, "neither `run` nor `command`"),
    ('run = "jobs/train_ctr.py"', 'run = "a.py"\ncommand = ["b"]', 9, "both `run` and `command`"),
    ('run = "jobs/train_ctr.py"', 'run = "../a.py"', 9, "outside the folder"),
    ('"prepare.py"', '"prep\\u0000.py"', 5, "code 0"),
    ("min = 2", "min = 20", 11, "min=20 is more than max=16"),
    ("min = 2", "min = 0", 11, "0 cannot work"),
    ("min = 2", "min = true", 11, "whole number, and it is true or false"),
    ("max = 16", "max = 1_000_000_000", 11, "from 1 to 10000"),
    ("cpu = 12", "cpu = 0", 11, "0 CPUs cannot run a worker"),
    ("cpu = 12", 'cpu = "12Q"', 11, "not a quantity"),
    ('"96Gi"', "96", 11, "'96' has no unit of bytes; write for example 96Gi"),
    ('"96Gi"', '"-96Gi"', 11, "has no unit of bytes"),
    ('"96Gi"', '"96Gib"', 11, "has no unit of bytes"),
    ('"prefer"', '"prefered"', 11, "'never', 'prefer' or 'only'"),
    ('["h100", "a100-40"]', '["h100", "h100"]', 11, "named twice"),
    ("retries = 5", "retries = -1", 12, "from 0 to 1000"),
    ("epochs = 3", "epochs = {a = 1}", 10, "and it is a table"),
    ("epochs = 3", f'note = "{KEY}"', 10, "access key or a token"),
    ("epochs = 3", 'api_key = "0123456789abcdef"', 10, 'API_KEY = "SECRET/KEY"'),
    ("hdfs://nn/clicks", "s3://me:hunter2secret@bucket/x", 10, "this URI holds credentials"),
    ('clusters = ["any"]', "clusters = []", 14, "no cluster is allowed"),
    ('start_within = "10m"', 'start_within = "0s"', 18, "Give a time from 10s"),
    ('start_within = "10m"', 'start_within = "10 parsecs"', 18, "write 90s, 10m"),
    ('finish_within = "24h"', 'finish_within = "-1h"', 19, "write 90s, 10m"),
    ("max_price_per_hour = 120", "max_price_per_hour = 0", 20, "greater than 0"),
    ('after = "15m"', 'after = "1s"', 21, "Give 30s or more"),
    ('NCCL_DEBUG = "WARN"', 'DB_PASSWORD = "x"', 25, 'secret_env = {DB_PASSWORD = "SECRET/KEY"}'),
    ('NCCL_DEBUG = "WARN"', 'FOREBAY_CACHE_DIR = "x"', 25, "set by Forebay"),
    ('NCCL_DEBUG = "WARN"', '"a-b" = "x"', 25, "cannot name an environment variable"),
    ('"hf-token/token"', '"hf_0123456789abcdefghij"', 26, "not a reference"),
    ('HF_TOKEN = "', 'NCCL_DEBUG = "', 25, "in env and in secret_env"),
    ('path = "/secrets/krb"', 'path = "/etc/hadoop"', 27, "mounted twice"),
    ('path = "/secrets/krb"', 'path = "secrets"', 27, "not an absolute path"),
    ('secret = "krb", ', 'secret = "krb", claim = "x", ', 27, "shows one thing"),
    ('team = "ads"', '"ray.io/x" = "ads"', 28, "set by Forebay"),
    ('team = "ads"', 'team = "a b"', 28, "cannot be the value of a label"),
    ("s3://lake/runs", "s3://lake/runs?secret_key=hunter2secret", 2, "this URI holds credentials"),
]


@pytest.mark.parametrize(("good", "wrong", "line", "fault"), WRONG)
def test_a_wrong_job_file_is_refused_with_its_line(good: str, wrong: str, line: int, fault: str) -> None:
    assert good in JOB
    with pytest.raises(InvalidJobSpec) as error:
        parse_job_spec(JOB.replace(good, wrong, 1), "a.toml")
    assert fault in str(error.value)
    assert str(error.value).startswith(f"a.toml, line {line}:")
    assert not any(secret in str(error.value) for secret in ("hunter2secret", KEY, "hf_0123456789", "0123456789abcdef"))
    assert error.value.__cause__ is None


def test_queues_and_priorities_have_the_names_of_objects() -> None:
    """Kubernetes lets them begin with a digit, and have dots."""
    changed = JOB.replace('queue = "ads"', 'queue = "4090.low"').replace('priority = "high"', 'priority = "1.high"')
    scheduling = parse_job_spec(changed).scheduling
    assert (scheduling.queue, scheduling.priority) == ("4090.low", "1.high")
    with pytest.raises(InvalidJobSpec, match=r"queue: 'Ads' is not the name of an object of Kubernetes. Use lower"):
        parse_job_spec(JOB.replace('queue = "ads"', 'queue = "Ads"'))


def test_what_is_no_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidJobSpec, match=r"is not TOML.*line 2"):
        parse_job_spec('name = "a"\nqueue = "b"; x = 1\n')
    with pytest.raises(InvalidJobSpec, match=r"cannot be read \(No such file"):
        fb.JobSpec.load(tmp_path / "job.toml")
    for text in ("retries = " + "9" * 5000, "a = " + "[" * 5000 + "]" * 5000):
        with pytest.raises(InvalidJobSpec, match="is not TOML"):
            parse_job_spec(text)
        with pytest.raises(InvalidOption, match="is not TOML"):
            parse_fleet(text)
    (tmp_path / "job.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidJobSpec, match="not a UTF-8 text"):
        fb.JobSpec.load(tmp_path / "job.toml")
    (tmp_path / "job.toml").write_bytes(b"#" * (1 << 20) + b"#")
    with pytest.raises(InvalidJobSpec, match="more than 1 MiB"):
        fb.JobSpec.load(tmp_path / "job.toml")
