from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from forebay.errors import InvalidOption, ScoringFailed
from forebay.llm.chat.documents import Document
from forebay.llm.models import ModelSpec
from forebay.llm.packing import RowLayout
from forebay.llm.score.engines.engine import Prompt, RowAnswer
from forebay.llm.score.engines.prompt_tokens import PromptTokens
from forebay.llm.score.evaluation.perplexity import measure_perplexity
from forebay.llm.score.request import ScoreRequest
from forebay.llm.source.tokenizers import load_folder
from forebay.llm.token_batch import unpack
from forebay.llm.tokens import token_arrays, token_table

Requests = Callable[..., ScoreRequest]


def packed_loss(folder: Path, documents: list[Document], packing: Any) -> float:
    """Mean loss over token rows, as training sees them."""
    table, counts = token_table(documents, RowLayout(seq_len=512, packing=packing, overflow="raise", pad=0))
    model: Any = ModelSpec(name=str(folder), vocab_size=0).build().eval()
    loss = 0.0
    for batch in table.to_batches():
        tokens = unpack(torch.from_numpy(token_arrays(batch)["tokens"]))
        with torch.no_grad():
            logits = model(input_ids=tokens.input_ids, position_ids=tokens.position_ids, use_cache=False).logits
        loss += float(
            cross_entropy(logits[:, :-1].flatten(0, 1).double(), tokens.labels[:, 1:].flatten(), reduction="sum")
        )
    return loss / counts.targets


def test_loss_is_that_of_training_in_any_packing(
    request_of: Requests, model_folder: Path, chats: list[list[Any]]
) -> None:
    found = measure_perplexity(request_of(prompt="messages", to="", data=f"{request_of().data}/1.parquet"))
    tokens = PromptTokens(tokenizer=load_folder(str(model_folder)), name="m", positions=None)
    documents = tokens.documents(
        [Prompt(row=row, content=turns, with_end=True) for row, turns in enumerate(chats[30:48])]
    )
    kept = [each for each in documents if not isinstance(each, RowAnswer)]
    assert found.targets == sum(int(each.is_target[1:].sum()) for each in kept)
    assert (found.documents, found.errors) == (18, 0)
    for packing in ("bfd", "none"):
        assert found.loss == pytest.approx(packed_loss(model_folder, kept, packing), rel=1e-6)
    assert found.perplexity == math.exp(found.loss)


@pytest.mark.variation
def test_shards_do_not_change_the_sum(request_of: Requests) -> None:
    """One prompt a pass: then the loss of a row has the same bits in every division."""
    first, second = (
        measure_perplexity(request_of(prompt="messages", to=f"{request_of().to}-{rows}", shard_rows=rows, batch=1))
        for rows in (5, 48)
    )
    assert first.loss == second.loss


def test_rows_without_a_target_do_not_count(request_of: Requests, write_rows: Callable[..., str]) -> None:
    data = write_rows({"prompt": ["one", "two", "three"], "completion": ["a", None, "b"]})
    found = measure_perplexity(
        request_of(data=data, prompt="prompt", completion="completion", task="log_likelihood", to="")
    )
    assert (found.documents, found.errors) == (2, 1)
    with pytest.raises(ScoringFailed, match="none of the 1 rows has a target"):
        measure_perplexity(request_of(data=write_rows({"text": [" "]}), prompt="text", to=""))


def test_workers_need_a_folder(request_of: Requests) -> None:
    with pytest.raises(InvalidOption, match="workers=2 need a folder"):
        measure_perplexity(request_of(to="", workers=2))
