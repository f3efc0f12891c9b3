"""The page needs no other file and shows the content of the record. Every possible record can be plotted."""

from __future__ import annotations

import html.parser
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.unit.sweep.made import record, trial

from forebay.report.picture import Picture
from forebay.report.style import LIGHT
from forebay.sweep.record.record import Record, save_record
from forebay.sweep.report.colors import BEST, NONE
from forebay.sweep.report.page import page, write_page
from forebay.sweep.report.parallel import configs_picture, coordinate
from forebay.sweep.report.plots import ENDS, metric_picture, workers_picture
from forebay.sweep.result import SweepResult

EVIL = "<script>alert('x')</script>"
SVG = "{http://www.w3.org/2000/svg}"
PICTURES = (metric_picture, workers_picture, configs_picture)


class Reader(html.parser.HTMLParser):
    """Content of the page: its texts, its scripts, its links, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def in_light(color: str) -> str:
    """The value of a page's color in a picture that stands alone."""
    return LIGHT[color.removeprefix("var(--").removesuffix(")")]


def paths(picture: Picture) -> list[dict[str, str]]:
    """Attributes of the paths of a picture, from back to front. Each `title` is the tooltip."""
    return [
        {**each.attrib, "title": each.findtext(f"{SVG}title", "")}
        for each in ElementTree.fromstring(picture._repr_svg_()).iter(f"{SVG}path")
    ]


def texts_of(picture: Picture) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(picture._repr_svg_()).iter(f"{SVG}text")]


def mixed(**facts: Any) -> Record:
    return record(
        trial("a", 0.6, 0.9, lr=0.001, opt="adam", big=True, state="finished"),
        trial("b", 0.7, lr=0.1, opt="sgd", big=False, state="stopped"),
        trial("c", None, lr=0.01, opt=EVIL, big=False).with_state("failed", 11.0, f"ValueError: {EVIL}"),
        trial("d", state="pending"),
        **{"deadline_s": 60.0, "slots": 4, **facts},
    )


def test_the_page_stands_alone_and_is_escaped(tmp_path: Path) -> None:
    path = write_page(mixed(name=EVIL), str(tmp_path))
    assert path == str(tmp_path / "sweep.html")
    reader = Reader(Path(path).read_text())
    assert reader.open == [] and reader.tags.count("script") == 1
    assert reader.tags.count("svg") == 3 and all(link.startswith(("#", "data:image/png")) for link in reader.links)
    assert reader.texts.count(EVIL) >= 3
    assert f"ValueError: {EVIL}" in reader.texts
    assert {"0.9000, trial a, epoch 2", "lr=0.001, opt=adam, big=True", "1:00"} <= set(reader.texts)


def test_the_table_is_sorted_by_numbers_not_by_their_texts() -> None:
    text = page(mixed())
    row = text[text.index('data-key="a"') :].partition("</tr>")[0]
    assert re.findall(r'data-key="([^"]*)"', row) == [
        "a",
        "finished",
        "2",
        "0.9",
        "0.9",
        "21.0",
        "0.001",
        "adam",
        "True",
    ]
    assert text.index('data-key="a"') < text.index('data-key="b"') < text.index('data-key="d"')


def test_the_table_and_the_pictures_have_one_color_per_trial() -> None:
    made = mixed()
    squares = re.findall(r'<i style="background: ([^"]+)">', page(made))
    assert len(squares) == 4 and squares[0] == BEST and squares[2:] == [NONE, NONE]
    for draw in (metric_picture, configs_picture):
        lines = {line["title"]: line["stroke"] for line in paths(draw(made)) if line["title"]}
        assert (lines["a"], lines["b"]) == tuple(map(in_light, squares[:2]))


def test_equal_errors_are_told_once_and_no_error_not_at_all() -> None:
    failed = [trial(name).with_state("failed", 5.0, "ValueError: boom") for name in ("a", "b")]
    reader = Reader(page(record(*failed, trial("c", 0.5))))
    assert reader.texts.count("Errors") == reader.texts.count("ValueError: boom") == reader.texts.count("a, b") == 1
    assert "Errors" not in Reader(page(record(trial("c", 0.5)))).texts


def test_the_picture_of_the_metric_shows_states_names_and_the_deadline() -> None:
    made = record(
        trial("1a_00000", 0.6, 0.9, state="finished"),
        trial("1a_00001", 0.7, 0.8, state="paused"),
        trial("1a_00002", 0.5, state="failed"),
        trial("1a_00003", 0.7, 0.8, state="stopped"),  # ends at the same point as 00001: no room for its name
        deadline_at_s=80.0,
    )
    texts = texts_of(metric_picture(made))
    assert [text for text in texts if text in ENDS] == ["paused", "stopped", "failed"]
    assert [text for text in texts if text.startswith(("0000", "deadline"))] == ["deadline", "00000", "00001", "00002"]
    assert "80" in texts
    made.deadline_at_s = 3600.0
    assert "deadline" not in texts_of(metric_picture(made))


@pytest.mark.parametrize(("elapsed_s", "anchor"), [(20.0, "end"), (60.0, "start")])
def test_the_name_of_a_trial_keeps_off_the_color_bar(elapsed_s: float, anchor: str) -> None:
    """A trial that ends with the sweep ends at the edge of the plot."""
    picture = metric_picture(record(trial("1a_00000", 0.6, 0.9, state="finished"), elapsed_s=elapsed_s))
    texts = ElementTree.fromstring(picture._repr_svg_()).iter(f"{SVG}text")
    assert [each.get("text-anchor") for each in texts if each.text == "00000"] == [anchor]


def test_workers_are_stacked_with_the_best_trial_at_the_bottom() -> None:
    bad, good = trial("a", 0.5, 0.6), trial("b", 0.6, 0.9, workers=2)
    bottom, top = paths(workers_picture(record(bad, good)))
    heights = [{float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", each["d"])} for each in (bottom, top)]
    ground, two, three = sorted(heights[0] | heights[1], reverse=True)
    assert heights == [{ground, two}, {two, three}] and (ground - two) == pytest.approx(2 * (two - three), abs=0.2)
    assert (bottom["fill"], bottom["title"], top["title"]) == (in_light(BEST), "b", "a")


def test_a_trial_without_workers_leaves_a_gap() -> None:
    paused = trial("a", 0.5).with_state("paused", 20.0).with_state("running", 40.0).with_workers(1, 40.0)
    (layer,) = paths(workers_picture(record(paused)))
    assert layer["d"].count("M") == layer["d"].count("Z") == 2


def test_an_axis_follows_the_space_and_not_the_draws() -> None:
    trials = [trial(str(n), 0.5 + n / 10, rate=10.0**-n, share=10.0**-n, dim=n) for n in range(4)]
    space = {"rate": "Float(0.001, 1) LogUniform", "share": "Float(0.0, 1.0) Uniform", "dim": "Choice(values=(0, 1))"}
    made = record(*trials, log_axes=("rate",), space=space)
    texts = texts_of(configs_picture(made))
    assert {"0.001", "0.01", "0.1"} <= set(texts) and {"0.2", "0.4", "0.6", "0.8"} <= set(texts)


@pytest.mark.parametrize(
    "made",
    [
        record(),
        record(trial("a")),
        record(trial("a", None)),
        record(trial("a", 0.5, lr=0.1)),
        record(trial("a", 0.5, lr=0.1), trial("b", 0.5, lr=0.1, more=[1, 2]), mode="min"),
        mixed(),
        mixed(mode="min", elapsed_s=30_000.0),
    ],
)
def test_pictures_of_any_record(made: Record) -> None:
    for draw in PICTURES:
        assert ElementTree.fromstring(draw(made)._repr_svg_()).tag.endswith("svg")


def test_dollars_are_no_formulas(tmp_path: Path) -> None:
    made = record(
        trial("a", 0.6, opt="$\\bad{$", **{"$x{$": 1}), trial("b", 0.7, opt="$y", **{"$x{$": 2}), metric="$\\auc{$"
    )
    assert "cannot be drawn" not in Path(write_page(made, str(tmp_path))).read_text()
    for draw in PICTURES:
        assert ElementTree.fromstring(draw(made)._repr_svg_()).tag.endswith("svg")


def test_a_picture_that_cannot_be_drawn_leaves_the_page(caplog: pytest.LogCaptureFixture) -> None:
    made = mixed()
    made.slots = "four"  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        text = page(made)
    reader = Reader(text)
    assert reader.tags.count("svg") == 2 and reader.tags.count("table") == 1
    assert "'Workers over time' of sweep 'ctr' cannot be drawn" in caplog.text


def test_the_best_trial_is_drawn_red_and_above_the_others() -> None:
    made = record(
        trial("a", 0.5, 0.9, lr=1.0), *(trial(f"o{number}", 0.6, 0.7, lr=2.0 + number) for number in range(30))
    )
    for draw in (metric_picture, configs_picture):
        *others, best = [line for line in paths(draw(made)) if line["title"]]
        assert (best["title"], best["stroke"]) == ("a", in_light(BEST))
        assert len(others) == 30 and all(line["stroke"] != in_light(BEST) for line in others)
        assert all(float(best["stroke-width"]) > float(line["stroke-width"]) for line in others)


@pytest.mark.parametrize(
    ("values", "is_log", "heights", "ticks"),
    [
        ([1, 3, 5, None], None, [0.0, 0.5, 1.0, None], ["1", "2", "3", "4", "5"]),
        ([0.001, 0.01, 0.1], True, [0.0, 0.5, 1.0], ["0.001", "0.01", "0.1"]),
        ([1.0, 10.0, 1000.0], None, [0.0, 1 / 3, 1.0], ["1", "10", "100", "1000"]),
        ([0.0, 250.0, 1000.0], False, [0.0, 0.25, 1.0], ["0", "200", "400", "600", "800", "1000"]),
        ([1.0, 501.0, 1001.0], False, [0.0, 0.5, 1.0], ["200", "400", "600", "800", "1000"]),
        ([1e-6, 1e-5, 1e-5, 1e-4], True, [0.0, 0.5, 0.5, 1.0], ["1e-6", "1e-5", "0.0001"]),
        ([8, 16, 32, 8, 16], None, [0.0, 1 / 3, 1.0, 0.0, 1 / 3], ["8", "16", "32"]),
        ([2.5, 2.5], False, [0.5, 0.5], ["2.5"]),
        ([True, False], False, [0.75, 0.25], ["False", "True"]),
        ([0.1, 0.3, 0.3], False, [0.0, 1.0, 1.0], ["0.1", "0.15", "0.2", "0.25", "0.3"]),
        (["", "sgd"], None, [0.25, 0.75], ["''", "sgd"]),
        (["sgd", None, "adam"], False, [0.75, None, 0.25], ["adam", "sgd"]),
        ([[1, 2], "x" * 40], False, [0.25, 0.75], ["[1, 2]", "x" * 17 + "…"]),
        ([0.0, 1.0], True, [0.0, 1.0], ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ([None], False, [None], []),
    ],
)
def test_an_axis_fits_its_values(values: list[Any], is_log: bool | None, heights: list[Any], ticks: list[str]) -> None:
    made = coordinate("p", values, is_log)
    axis = replace(made.axis, start=0.0, end=1.0)
    assert [None if value is None else axis(value) for value in made.values] == pytest.approx(heights)
    assert [text for _, text in made.ticks] == ticks


def test_the_result_has_the_best_trial_and_a_table(tmp_path: Path) -> None:
    made = mixed()
    result = SweepResult.of(made, str(tmp_path))
    assert (result.best_value, result.best_trial, result.best_config["lr"]) == (0.9, "a", 0.001)
    assert result.best_run == str(tmp_path / "runs" / "ctr.a")
    table = result.table
    assert list(table["trial"]) == ["a", "b", "c", "d"]
    assert list(table.columns[:7]) == ["trial", "state", "epochs", "best_auc", "best_epoch", "last_auc", "seconds"]
    assert table["config/opt"][2] == EVIL and table["error"][2] == f"ValueError: {EVIL}"
    assert "<h1>ctr</h1>" in result._repr_html_()
    assert SweepResult.load(str(tmp_path)) is None
    save_record(made, str(tmp_path))
    loaded = SweepResult.load(str(tmp_path))
    assert loaded is not None and loaded.best_config == result.best_config
    for picture in (result.plot_metric(), result.plot_workers(), result.plot_configs()):
        assert picture._repr_svg_().startswith("<svg ") and picture.save(str(tmp_path / "a.svg")).endswith(".svg")
    nothing = SweepResult.of(record(trial("d")), "s3://lake/ctr?region=eu")
    assert (nothing.best_config, nothing.best_run, nothing.html) == ({}, None, "s3://lake/ctr/sweep.html?region=eu")


@pytest.mark.parametrize("value", [0.0, -1.0, 1e8, -1e12, 1e300])
def test_equal_values_of_any_size_have_a_page(value: float) -> None:
    text = page(record(trial("a", value), trial("b", value)))
    assert "cannot be drawn" not in text
