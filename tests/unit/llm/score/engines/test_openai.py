from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.unit.llm.score.engines.openai_server import OpenAiServer, serving

from forebay.errors import EngineFailed, InvalidOption
from forebay.llm.score.engines.engine import Prompt, Sampling
from forebay.llm.score.engines.hf import HfEngineSpec
from forebay.llm.score.engines.openai import OpenAiEngineSpec
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.scoring import score_rows

Requests = Callable[..., ScoreRequest]


@pytest.fixture
def server(model_folder: Path) -> Iterator[OpenAiServer]:
    with serving(OpenAiServer(HfEngineSpec(model=str(model_folder)).open(), refuses_every=3)) as found:
        yield found


@pytest.mark.parametrize("prompt", ["question", pytest.param("messages", marks=pytest.mark.variation)])
def test_texts_are_those_of_the_engine_behind_the_server(
    request_of: Requests, server: OpenAiServer, prompt: str
) -> None:
    asked = {"temperature": 0.0, "max_tokens": 3, "prompt": prompt, "data": f"{request_of().data}/1.parquet"}
    direct = score_rows(request_of(**asked, to=f"{request_of().to}-hf")).read()
    result = score_rows(request_of(**asked, engine="openai", model="tiny", base_url=server.base_url, batch=4))
    assert result.read().equals(direct)
    assert result.errors == 0
    assert server.num_refused >= 5
    assert server.num_requests == direct.num_rows + server.num_refused
    assert len({body["seed"] for body in server.bodies}) == direct.num_rows


def test_what_the_server_refuses_is_an_error_of_the_row(server: OpenAiServer) -> None:
    engine = OpenAiEngineSpec(model="tiny", base_url=server.base_url).open()
    long, short = engine.generate(
        [Prompt(row=0, content="ab " * 5000), Prompt(row=1, content="ab")], Sampling(max_tokens=2)
    )
    assert "the server refuses the prompt" in (long.error or "") and "positions" in (long.error or "")
    assert short.error is None and short.output_tokens == 2
    engine.close()


@pytest.mark.variation
def test_schema_and_embeddings_reach_the_server(server: OpenAiServer, model_folder: Path) -> None:
    engine = OpenAiEngineSpec(model="tiny", base_url=server.base_url).open()
    schema = {"type": "object", "properties": {"good": {"type": "boolean"}}, "required": ["good"]}
    (verdict,) = engine.generate([Prompt(row=0, content="good?")], Sampling(max_tokens=20, schema=schema))
    assert json.loads(verdict.text or "")["good"] in (True, False)
    (found,) = engine.embed([Prompt(row=0, content="a text")], "mean")
    (direct,) = HfEngineSpec(model=str(model_folder)).open().embed([Prompt(row=0, content="a text")], "mean")
    np.testing.assert_allclose(found.embedding, direct.embedding, rtol=1e-6)
    with pytest.raises(InvalidOption, match="needs engine="):
        engine.log_likelihood([])
    engine.close()


@pytest.mark.variation
def test_errors_of_the_server(server: OpenAiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.llm.score.engines.openai._RETRIES", 1)
    engine = OpenAiEngineSpec(model="tiny", base_url=server.base_url).open()
    server.status = 401
    with pytest.raises(InvalidOption, match="the server refuses every request"):
        engine.generate([Prompt(row=0, content="a")], Sampling(max_tokens=1))
    server.status = 503
    with pytest.raises(EngineFailed, match="does not answer after 1 retries"):
        engine.generate([Prompt(row=0, content="a")], Sampling(max_tokens=1))
    engine.close()
    with pytest.raises(InvalidOption, match="needs the address of a server"):
        OpenAiEngineSpec(model="tiny", base_url=None)
