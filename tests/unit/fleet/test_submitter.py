"""Rights of submitters: images, Secrets, clusters, GPUs."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

import forebay as fb
from forebay.errors import InvalidOption
from forebay.fleet.cluster import Cluster, Sku
from forebay.fleet.fleet_file import parse_fleet
from forebay.fleet.submitter import Submitter

DIGEST = f"sha256:{'0a' * 32}"
FLEET_IMAGE = "registry.example/forebay:2.60"
CLUSTERS = tuple(
    Cluster(
        name=name, context=name, queues=("plain", "fast"), sku={"cpu": Sku(cpu="8", memory="64Gi")}, image=FLEET_IMAGE
    )
    for name in ("west", "east")
)
NOTHING = Submitter(name="anna")
"""Entry with a name alone: the fleet's own image, on any cluster."""


def spec(launch: fb.fleet.Launch | None = None, **scheduling: object) -> fb.JobSpec:
    return fb.JobSpec(
        name="ctr",
        storage="s3://lake/anna",
        task=(fb.fleet.Task(command=("true",), workers=fb.fleet.TaskWorkers(min=1, max=4, gpus=2)),),
        launch=launch or fb.fleet.Launch(),
        scheduling=fb.fleet.Scheduling(**scheduling),  # type: ignore[arg-type]
    )


ASKED: dict[str, tuple[fb.JobSpec, dict[str, object], str]] = {
    "name": (spec(), {"names": ("x-*",)}, "the name 'ctr' (allowed: x-*)"),
    "image": (spec(fb.fleet.Launch(image="evil.example/x:1")), {}, "the image 'evil.example/x:1'"),
    "secret": (spec(fb.fleet.Launch(secret_env={"TOKEN": "hf/token"})), {}, "the Secret 'hf' (allowed: none)"),
    "mounted": (
        spec(fb.fleet.Launch(mounts=(fb.fleet.Mount(path="/s", secret="krb"),))),
        {"secrets": ("hf-*",)},
        "the Secret 'krb' (allowed: hf-*)",
    ),
    "map": (
        spec(fb.fleet.Launch(mounts=(fb.fleet.Mount(path="/s", config_map="core"),))),
        {},
        "the ConfigMap 'core' (allowed: none)",
    ),
    "claim": (
        spec(fb.fleet.Launch(mounts=(fb.fleet.Mount(path="/s", claim="lake"),))),
        {},
        "the claim 'lake' (allowed: none)",
    ),
    "any-cluster": (spec(), {"clusters": ("west",)}, "the clusters east (allowed: west; write [scheduling] clusters)"),
    "cluster": (spec(clusters=("east",)), {"clusters": ("w*",)}, "the clusters east (allowed: w*"),
    "queue": (spec(queue="fast"), {}, "the queue 'fast' (allowed: none)"),
    "priority": (spec(priority="high"), {}, "the priority class 'high' (allowed: none)"),
    "shared": (spec(cluster="shared"), {}, 'a shared Ray cluster (allowed: cluster = "own")'),
    "gpus": (spec(), {"most_gpus": 7}, "8 GPUs for task main (allowed: 7 at once)"),
    "visible": (
        spec(fb.fleet.Launch(env={"NVIDIA_VISIBLE_DEVICES": "all"})),
        {"most_gpus": 8},
        "NVIDIA_VISIBLE_DEVICES 'all', by which a pod sees more GPUs than it asks for (allowed: void)",
    ),
}
ALLOWED: dict[str, tuple[fb.JobSpec, dict[str, object]]] = {
    "nothing": (spec(), {}),
    "the fleet's image": (spec(fb.fleet.Launch(image=FLEET_IMAGE)), {}),
    "the first queue": (spec(queue="plain"), {}),
    "cluster": (spec(clusters=("w*",)), {"clusters": ("west",)}),
    "denied cluster": (spec(deny=("east",)), {"clusters": ("west",)}),
    "gpus": (spec(), {"most_gpus": 8}),
    "no GPUs": (spec(fb.fleet.Launch(env={"NVIDIA_VISIBLE_DEVICES": "void"})), {"most_gpus": 8}),
    "no limit": (spec(fb.fleet.Launch(env={"NVIDIA_VISIBLE_DEVICES": "all"})), {}),
    "secret": (spec(fb.fleet.Launch(secret_env={"TOKEN": "hf/token"})), {"secrets": ("hf",)}),
    "queue": (spec(queue="fast"), {"queues": ("f*",)}),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_is_not_allowed_is_refused_with_what_is(case: str) -> None:
    job, given, text = ASKED[case]
    (found,) = Submitter(name="anna", **given).refusals(job, CLUSTERS)  # type: ignore[arg-type]
    assert found.startswith(text)


@pytest.mark.parametrize("case", ALLOWED)
def test_what_is_allowed_is_accepted(case: str) -> None:
    job, given = ALLOWED[case]
    assert not list(Submitter(name="anna", **given).refusals(job, CLUSTERS))  # type: ignore[arg-type]


IMAGES = {
    # pattern: (images that match, images that do not)
    "registry.example/team/*": (
        ("registry.example/team/a", "registry.example/team/a:1", f"registry.example/team/a:1@{DIGEST}"),
        (
            "registry.example/team/a/b",
            "registry.example.evil.com/team/a",
            "evil.com/registry.example/team/a",
            "registry.example:5000/team/a",
            "registry.example/team-b/a",
            "registry.example/team",
            "team/a",
            "REGISTRY.example/team/a",
            "registry.example/team/../evil/a",
            "registry.example/team/a b",
            "registry.example/team/a\n",
            "registry.example/team//a",
            "registry.example/team/a@sha256:12",
            "registry.example/team/a@sha512:" + "0a" * 64,
        ),
    ),
    "registry.example/team/**": (
        ("registry.example/team/a/b/c:1",),
        ("registry.example/team", "registry.example/b/team/a"),
    ),
    "registry.example/**": (("registry.example/a", "registry.example/a/b"), ("other.example/a",)),
    "registry.example/forebay@sha256:*": (
        (f"registry.example/forebay@{DIGEST}", f"registry.example/forebay:1@{DIGEST}"),
        ("registry.example/forebay", "registry.example/forebay:1", "registry.example/forebay-evil@" + DIGEST),
    ),
    f"registry.example/forebay@{DIGEST}": (
        (f"registry.example/forebay@{DIGEST}",),
        (f"registry.example/forebay@sha256:{'0b' * 32}", "registry.example/forebay:latest"),
    ),
    "registry.example/forebay:2.*": (
        ("registry.example/forebay:2.60",),
        # What is pulled is the digest's, whatever the tag says.
        ("registry.example/forebay:3.0", "registry.example/forebay", f"registry.example/forebay:2.60@{DIGEST}"),
    ),
    "localhost:5000/a-*": (("localhost:5000/a-b:1",), ("localhost/a-b", "localhost:5001/a-b")),
    "docker.io/library/ubuntu": (("docker.io/library/ubuntu:22.04",), ("ubuntu:22.04", "library/ubuntu")),
}


@pytest.mark.parametrize("pattern", IMAGES)
def test_patterns_of_images(pattern: str) -> None:
    submitter = replace(NOTHING, images=(pattern,))
    matched, others = IMAGES[pattern]
    for image in matched:
        assert not list(submitter.refusals(spec(fb.fleet.Launch(image=image)), CLUSTERS)), image
    for image in others:
        assert list(submitter.refusals(spec(fb.fleet.Launch(image=image)), CLUSTERS)), image


def test_an_image_is_never_matched_by_a_pattern_of_another_registry() -> None:
    made = random.Random(0)
    parts = ["registry.example", "evil.example", "team", "a", "..", "*", "", ":5000", "@" + DIGEST, ":1"]
    for _ in range(300):
        image = "/".join(made.choices(parts, k=made.randint(1, 4)))
        found = list(
            replace(NOTHING, images=("registry.example/**",)).refusals(spec(fb.fleet.Launch(image=image)), CLUSTERS)
        )
        assert found or image.startswith("registry.example/")


@pytest.mark.parametrize(
    "pattern",
    ["*", "**", "*/forebay", "forebay", "*.example/x", "registry.example/a**", "registry.example/**/b", "a b/c"],
)
def test_a_pattern_names_its_registry(pattern: str) -> None:
    with pytest.raises(InvalidOption, match=r"is not a pattern of images. Write REGISTRY/REPOSITORY"):
        replace(NOTHING, images=(pattern,))


CLUSTER = '[[cluster]]\nname = "west"\nimage = "i"\nskus = {c = {cpu = 8, memory = "8Gi"}}\n'
ENTRIES = {
    "one name": (["name = 'a'\nuids = [1]", "name = 'a'\nuids = [2]"], "two submitters are called 'a'"),
    "two defaults": (["name = 'a'", "name = 'b'"], "'a' and 'b' are both for everybody else"),
    "one storage": (["name = 'a'\nstorage = 's3://x/a'", "name = 'b'\nstorage = ['s3://x/a/']"], "lie in each other"),
    "nested": (["name = 'a'\nstorage = 's3://x'", "name = 'b'\nstorage = 's3://x/b?region=y'"], "lie in each other"),
    "key": (["name = 'a'\nimage = 'x'"], "unknown"),
    "uid": (["name = 'a'\nuids = ['anna']"], "whole number"),
    "image": (["name = 'a'\nimages = '*'"], "line 7: submitter"),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_entries_that_could_be_one_another_are_refused(case: str) -> None:
    entries, text = ENTRIES[case]
    with pytest.raises(InvalidOption, match=text):
        parse_fleet(CLUSTER + "".join(f"[[submitter]]\n{entry}\n" for entry in entries))


def test_a_refusal_says_what_was_asked_what_is_allowed_and_whom_to_ask() -> None:
    fleet = parse_fleet(f"ask = 'platform@example.org'\n{CLUSTER}[[submitter]]\nname = 'anna'\nstorage = '/a'\n")
    asked = [job for job, given, _ in ASKED.values() if not given]
    for job in asked:
        if job.scheduling == spec().scheduling:
            text = fleet.refusal(fleet.submitter[0], job)
            assert text is not None
            assert text.startswith("anna may not use the ")
            assert "(allowed: " in text
            assert text.endswith("Ask platform@example.org.")
    assert "no [[submitter]] of the fleet" in (fleet.refusal(None, spec()) or "")
    assert replace(fleet, submitter=()).refusal(None, asked[0]) is None


def test_all_refusals_are_named_at_once() -> None:
    everything = [("images", "image"), ("secrets", "secret"), ("queues", "queue")]
    for several in itertools.combinations(everything, 2):
        jobs = [ASKED[name][0] for _, name in several]
        launch = next((job.launch for job in jobs if job.launch != fb.fleet.Launch()), fb.fleet.Launch())
        if all(job.launch != fb.fleet.Launch() for job in jobs):
            launch = replace(jobs[0].launch, secret_env=jobs[1].launch.secret_env)
        queue = next((job.scheduling.queue for job in jobs if job.scheduling.queue), None)
        assert len(list(NOTHING.refusals(spec(launch, queue=queue), CLUSTERS))) == 2
