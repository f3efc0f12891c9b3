"""`forebay llm memory`, as a user calls it."""

from __future__ import annotations

import json

import pytest

from forebay.cli.app import main


def test_memory_of_a_known_model_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["model=Llama-2-70B", "workers=32", "strategy=zero3", "offload=optimizer"]
    with pytest.raises(SystemExit) as ended:
        main(["llm", "memory", *words, "device_memory=80GB"])
    lines = capsys.readouterr().out.splitlines()
    assert not ended.value.code
    assert max(map(len, lines)) <= 80
    assert ["in", "main", "memory", "24.1", "GiB"] in [line.split() for line in lines]
    assert lines[-1] == "It fits into 74.5 GiB."


def test_memory_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["llm", "memory", "model=tiny", "finetuning=lora", "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["total_bytes"] == sum(facts["device_bytes"].values())
    assert [each["strategy"] for each in facts["strategies"]] == ["ddp", "zero1", "zero2", "fsdp2", "zero3", "zero3"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["Llama-2-7B"], "'Llama-2-7B' is not a parameter. Write name=value"),
        (["workers=2"], "model= is missing"),
        (["model=tiny", "worker=2"], "no parameter 'worker'. Did you mean 'workers'?"),
        (["model=tiny", "workers=two"], "workers=two is not of type int"),
        (["model=tiny", "strategy=fsdp"], "strategy=fsdp is not of type 'ddp' | 'fsdp2'"),
    ],
)
def test_memory_says_what_is_wrong(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["llm", "memory", *words])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())
