"""Text and page of a diagnosis."""

from __future__ import annotations

import html
from collections.abc import Callable

import pytest

from forebay.doctor.diagnose import Diagnosis
from forebay.doctor.findings.bottleneck import verdict_of
from forebay.doctor.findings.gains import gains_of
from forebay.doctor.findings.measurements import Measurements
from forebay.doctor.page import page_of
from forebay.doctor.text import lines_of, next_step_of, notes_of, sentence_of

NETWORK = {"compute": 1.18, "copy": 1.19, "gather": 1.2, "transform": 2.0, "network": 5.0}


@pytest.fixture
def diagnosed(measured: Callable[..., Measurements]) -> Callable[..., Diagnosis]:
    def make(**given: object) -> Diagnosis:
        found = measured(**given)
        verdict = verdict_of(found)
        return Diagnosis(measurements=found, verdict=verdict, gains=tuple(gains_of(found, verdict)))

    return make


def test_one_sentence_has_the_bottleneck_and_the_next(diagnosed: Callable[..., Diagnosis]) -> None:
    far = diagnosed(**NETWORK, facts={"is_local": False})
    assert sentence_of(far) == (
        "The bottleneck of the first epoch is network: 5 ms a step, 102k rows/s; next is transform, at 2 ms. "
        "For later epochs from a cache it is compute: 1.2 ms a step, 427k rows/s."
    )
    limit = diagnosed(**NETWORK | {"transform": 0.1, "network": 0.5}, facts={"epochs": 1, "is_local": False})
    assert sentence_of(limit) == (
        "The bottleneck of the epoch is compute: 1.2 ms a step, 427k rows/s; next is network, at 0.5 ms."
    )


def test_page_and_terminal_say_the_same_and_one_next_step(diagnosed: Callable[..., Diagnosis]) -> None:
    for found in (diagnosed(**NETWORK), diagnosed(**NETWORK | {"transform": 0.1, "network": 0.5})):
        page, lines = html.unescape(page_of(found, "job.py")), " ".join(lines_of(found))
        step = next_step_of(found)
        assert step.startswith("Next step: ") and step in page and step in lines
        assert sentence_of(found) in page and sentence_of(found) in lines
        assert "gain in the first epoch" in page and "change, in the first epoch" in lines
        assert "network" not in sentence_of(found), "its files are on this machine"
    assert "The loader keeps up" in step


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (
            {},
            "fill the cache before the run, with `forebay warm`. The first epoch is then, as the later ones, about 4.2",
        ),
        ({"epochs": 1}, "fill the cache before the run, with `forebay warm`"),
        ({"quota_bytes": None}, "give the job a cache: fb.Job(cache=fb.CacheSpec(...)). Each epoch after the first"),
        ({"quota_bytes": 1000}, "give the cache a quota of 954 MiB, which its blocks need. Each epoch after the first"),
        ({"quota_bytes": None, "epochs": 1}, "nearer data. It makes the first epoch about 2.5"),
    ],
)
def test_a_cache_is_advised_for_what_it_makes_faster(
    diagnosed: Callable[..., Diagnosis], facts: dict[str, object], step: str
) -> None:
    found = next_step_of(diagnosed(**NETWORK, facts={"is_local": False} | facts))
    assert found.startswith(f"Next step: {step}")


@pytest.mark.parametrize("changed", [{}, {"network": 2.1}, {"facts": {"quota_bytes": None, "device": "cuda"}}])
def test_lines_fit_80_columns(diagnosed: Callable[..., Diagnosis], changed: dict[str, object]) -> None:
    lines = lines_of(diagnosed(**NETWORK | changed))
    assert [line for line in lines if len(line) > 80] == []
    assert any("nearer data" in line for line in lines)


@pytest.mark.parametrize(("device", "words"), [("cpu", "the CPU"), ("cuda", "a GPU"), ("cuda:0", "GPU 0")])
def test_notes_name_the_device_for_people(diagnosed: Callable[..., Diagnosis], device: str, words: str) -> None:
    notes = notes_of(diagnosed(**NETWORK, facts={"device": device}).measurements)
    assert f"on 1 of 1 workers, on {words}. Gradients" in notes[0]
    assert any(note.startswith("GPU idle") for note in notes) == (device != "cpu")


def test_the_page_has_a_picture_and_needs_no_network(diagnosed: Callable[..., Diagnosis]) -> None:
    page = page_of(diagnosed(**NETWORK), "forebay doctor <job>.py")
    assert "<svg" in page
    assert page.count("<rect") == 2 * 5
    assert page.count('<td class="text">') == 5 + 5  # long texts break their lines on a narrow screen
    assert "forebay doctor &lt;job&gt;.py" in page
    assert "http:" not in page
    assert "https:" not in page
