"""`forebay llm export` as a user calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from forebay.data.plan.cursor import Cursor
from forebay.llm.hf_folder.model_origin import TRACKED, ModelOrigin
from forebay.llm.models import ModelSpec
from forebay.training.checkpoint.checkpoint import Checkpoint, DirectoryStore
from forebay.world import World


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, torch.Tensor]:
    """State of a model in the only checkpoint of the run `mine`."""
    weights = {"model.embed_tokens.weight": torch.rand(30, 4), "lm_head.weight": torch.rand(30, 4)}
    origin = ModelOrigin(model=ModelSpec(name="tiny", vocab_size=30), adapter=None, tokenizer=None, seed=0)
    objects = {"model": weights, TRACKED: origin.state_dict()}
    cursor = Cursor(plan_id="9c02", epoch=1, position=10, global_batch=10)
    saved = Checkpoint(step=20, cursor=cursor, world=World(rank=0, size=1), shards={0: {"objects": objects}})
    DirectoryStore(tmp_path / "runs" / "mine" / "checkpoints").save(saved)
    return weights


def test_export(forebay: Callable[..., Any], weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    out, storage = tmp_path / "out", tmp_path / "runs"
    said = forebay("llm", "export", "mine", "--to", out, "--storage", storage, "--dtype", "bf16")
    assert said.code == 0, said.err
    assert "mine, step 20" in said.out and "model, bf16" in said.out and "2, 480 B" in said.out
    found = load_file(out / "model.safetensors")
    assert {name: values.bfloat16() for name, values in weights.items()}.keys() == found.keys()
    assert all(torch.equal(found[name], values.bfloat16()) for name, values in weights.items())
    again = forebay(
        "llm", "export", "mine", "--to", out, "--storage", storage, "--dtype", "bf16", "--step", 20, "--json"
    )
    assert json.loads(again.out)["is_new"] is False


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("other",), "there is no run 'other'"),
        (("mine", "--step", "7"), "no checkpoint of step 7. It has steps 20"),
        (("mine", "--merge"), "there is no adapter"),
        (("mine", "--dtype", "int8"), "dtype='int8' is unknown"),
    ],
)
def test_errors(
    forebay: Callable[..., Any], weights: dict[str, torch.Tensor], tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    said = forebay("llm", "export", *words, "--to", tmp_path / "out", "--storage", tmp_path / "runs")
    assert said.code == 3
    assert reason in " ".join(said.err.split())
    assert not (tmp_path / "out").exists()
