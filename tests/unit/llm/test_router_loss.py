"""Router loss of packed rows beside the one of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from forebay.errors import InvalidOption
from forebay.llm.packing import START, TARGET
from forebay.llm.router_loss import check_router_loss, router_losses
from forebay.llm.token_batch import unpack
from forebay.testing.data.mixtures import mixture

VARIATION = pytest.mark.variation("another architecture")
ROWS, LENGTH = 3, 24


def rows() -> torch.Tensor:
    """Packed rows: two documents each, and an empty end of another length in each row."""
    torch.manual_seed(1)
    packed = torch.randint(4, 100, (ROWS, LENGTH), dtype=torch.int32) | TARGET
    for row, end in enumerate((LENGTH, 17, 9)):
        packed[row, end:] = 0
        for start in {0, 5, min(end, LENGTH - 1)}:
            packed[row, start] |= START
    packed[0, -1] |= TARGET
    return packed


def build(kind: str) -> Any:
    torch.manual_seed(3)
    made = transformers.AutoModelForCausalLM.from_config(mixture(kind), attn_implementation="eager")
    for each in made.parameters():
        if each.dim() > 1:
            torch.nn.init.normal_(each, std=0.2)
    return made


@pytest.mark.parametrize("checkpointing", [False, pytest.param(True, marks=VARIATION)])
@pytest.mark.parametrize("kind", ["qwen3_moe", *(pytest.param(k, marks=VARIATION) for k in ("mixtral", "gpt_oss"))])
def test_router_loss_is_that_of_transformers_on_the_tokens_of_each_row(kind: str, checkpointing: bool) -> None:
    model, packed = build(kind), rows()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    tokens = unpack(packed)
    inputs = {"input_ids": tokens.input_ids, "position_ids": tokens.position_ids, "use_cache": False}
    found = router_losses(model, packed, model(**inputs, output_router_logits=True).router_logits)
    found.sum().backward()
    gradient = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    assert any("gate" in name or "router" in name for name in gradient)
    model.zero_grad()
    expected = []
    for row, end in enumerate((LENGTH, 17, 9)):
        # Without the empty end, there is nothing to mask: the loss of transformers is over all tokens.
        part = {name: each if isinstance(each, bool) else each[row : row + 1, :end] for name, each in inputs.items()}
        expected.append(model(**part, output_router_logits=True).aux_loss)
    torch.stack(expected).sum().backward()
    assert torch.allclose(found, torch.stack(expected), rtol=1e-5)
    for name, each in gradient.items():
        own = dict(model.named_parameters())[name].grad
        assert torch.allclose(each, own, rtol=1e-3, atol=1e-6), name


def test_models_without_a_router_loss() -> None:
    check_router_loss(build("mixtral"), 0.01)
    for kind in ("deepseek_v3", "glm4_moe"):
        check_router_loss(build(kind), 0.0)
        with pytest.raises(InvalidOption, match="router_aux_loss_coef=0.01: transformers has no such loss for"):
            check_router_loss(build(kind), 0.01)
    with pytest.raises(InvalidOption, match="router_aux_loss_coef=-1 cannot train"):
        check_router_loss(build("mixtral"), -1)
