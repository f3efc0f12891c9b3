from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forebay.errors import InvalidOption
from forebay.llm.models import ModelSpec
from forebay.llm.score.engines.engine import Prompt, RowAnswer, Sampling
from forebay.llm.score.engines.hf import HfEngine, HfEngineSpec
from forebay.llm.source.tokenizers import load_folder

GREEDY = Sampling(max_tokens=8)
DRAWN = Sampling(max_tokens=8, temperature=0.8, seed=3)


@pytest.fixture(scope="module")
def engine(model_folder: Path) -> Iterator[HfEngine]:
    opened = HfEngineSpec(model=str(model_folder), batch=8).open()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def prompts(chats: list[list[Any]]) -> list[Prompt]:
    texts = [" ".join(turn["content"] for turn in turns)[: 4 + 2 * number] for number, turns in enumerate(chats[:32])]
    return [Prompt(row=number, content=text) for number, text in enumerate(texts)]


def texts_of(answers: list[RowAnswer]) -> list[str | None]:
    assert [each.error for each in answers] == [None] * len(answers)
    return [each.text for each in answers]


@pytest.mark.parametrize(
    "sampling", [pytest.param(GREEDY, id="greedy", marks=pytest.mark.variation), pytest.param(DRAWN, id="drawn")]
)
def test_text_of_a_row_depends_on_nothing_but_the_row(
    model_folder: Path, prompts: list[Prompt], sampling: Sampling
) -> None:
    found = [
        texts_of(HfEngineSpec(model=str(model_folder), batch=batch).open().generate(prompts, sampling))
        for batch in (1, 8, 32)
    ]
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) > 20
    opened = HfEngineSpec(model=str(model_folder), batch=8).open()
    assert texts_of(opened.generate(prompts[::-1], sampling))[::-1] == found[0]
    assert texts_of(opened.generate(prompts[11:13], sampling)) == found[0][11:13]


def test_greedy_text_is_that_of_transformers(model_folder: Path, engine: HfEngine, prompts: list[Prompt]) -> None:
    tokenizer = load_folder(str(model_folder))
    model: Any = ModelSpec(name=str(model_folder), vocab_size=0).build().eval()
    for prompt, found in zip(prompts[:4], engine.generate(prompts[:4], GREEDY), strict=True):
        ids = tokenizer(prompt.content, return_tensors="pt")
        made = model.generate(**ids, max_new_tokens=8, do_sample=False, use_cache=True)[0, ids["input_ids"].shape[1] :]
        assert found.text == tokenizer.decode(made, skip_special_tokens=True)
        assert (found.input_tokens, found.output_tokens) == (ids["input_ids"].shape[1], len(made))
        assert found.finish_reason == ("stop" if made[-1] == tokenizer.eos_token_id else "length")


def test_defaults_of_the_model_folder_do_not_count(
    model_folder: Path, engine: HfEngine, prompts: list[Prompt], tmp_path: Path
) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "model")
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"repetition_penalty": 9.0, "max_length": 3}))
    found = HfEngineSpec(model=str(folder), batch=8).open().generate(prompts[:4], GREEDY)
    assert found == engine.generate(prompts[:4], GREEDY)


def test_seed_row_and_options_change_what_is_drawn(engine: HfEngine, prompts: list[Prompt]) -> None:
    same = [Prompt(row=row, content="one question") for row in range(8)]
    assert len(set(texts_of(engine.generate(same, DRAWN)))) == 8
    others = [
        Sampling(max_tokens=8, temperature=0.8, seed=4),
        Sampling(max_tokens=8, temperature=2.0, seed=3),
        Sampling(max_tokens=8, temperature=0.8, seed=3, top_k=2),
        Sampling(max_tokens=8, temperature=0.8, seed=3, top_p=0.2),
    ]
    some = prompts[:8]
    found = [tuple(texts_of(engine.generate(some, each))) for each in (DRAWN, *others)]
    assert len(set(found)) == len(found)
    greedy = texts_of(engine.generate(some, GREEDY))
    assert texts_of(engine.generate(some, Sampling(max_tokens=8, temperature=0.8, top_k=1))) == greedy
    assert texts_of(engine.generate(some, Sampling(max_tokens=8, temperature=0.8, top_p=1e-6))) == greedy


def test_rows_of_a_batch_end_at_their_own_tokens(engine: HfEngine, prompts: list[Prompt]) -> None:
    some = prompts[:8]
    ending = Sampling(max_tokens=40, temperature=1.0, seed=5, stop=("e",))
    together = engine.generate(some, ending)
    assert len({each.output_tokens for each in together}) > 3
    assert [engine.generate([prompt], ending)[0] for prompt in some] == together


def test_long_answers_depend_on_the_row_alone(engine: HfEngine, prompts: list[Prompt]) -> None:
    long = Sampling(max_tokens=80)
    together = engine.generate(prompts[:3], long)
    assert max(each.output_tokens for each in together) > 70
    assert [engine.generate([prompt], long)[0] for prompt in prompts[:3]] == together


def test_stop_text_ends_an_answer_and_is_left_out(engine: HfEngine, prompts: list[Prompt]) -> None:
    whole = engine.generate(prompts[:4], GREEDY)
    stop = (whole[0].text or "")[3:5]
    cut = engine.generate(prompts[:4], Sampling(max_tokens=8, stop=(stop,)))[0]
    assert cut.text == (whole[0].text or "").partition(stop)[0]
    assert cut.finish_reason == "stop" and cut.output_tokens <= whole[0].output_tokens


def test_prompt_that_does_not_fit_has_an_error(engine: HfEngine) -> None:
    long, short = engine.generate([Prompt(row=0, content="ab " * 5000), Prompt(row=1, content="ab")], GREEDY)
    assert "positions" in (long.error or "") and long.input_tokens > 4096
    assert short.error is None and short.output_tokens == 8


@pytest.mark.variation
def test_answer_ends_with_the_last_position(engine: HfEngine) -> None:
    (answer,) = engine.generate([Prompt(row=2, content="a" * 4090)], GREEDY)
    assert answer.error is None
    assert answer.input_tokens + answer.output_tokens <= 4096


@pytest.mark.parametrize("with_end", [False, True])
def test_log_likelihood_counts_the_completion(model_folder: Path, engine: HfEngine, *, with_end: bool) -> None:
    tokenizer = load_folder(str(model_folder))
    model: Any = ModelSpec(name=str(model_folder), vocab_size=0).build().eval()
    asked = [
        Prompt(row=0, content="the question ", completion="and its answer", with_end=with_end),
        Prompt(row=1, content="a text", with_end=with_end),
        Prompt(row=2, content=[{"role": "user", "content": "question"}], completion="answer", with_end=with_end),
        Prompt(row=3, content="b", with_end=with_end),
    ]
    before = [
        len(tokenizer("the question ")["input_ids"]),
        1,
        len(tokenizer.apply_chat_template(asked[2].content, add_generation_prompt=True)["input_ids"]),
        1,
    ]
    end = tokenizer.eos_token if with_end else ""
    texts = [
        "the question and its answer" + end,
        "a text" + end,
        tokenizer.apply_chat_template([*asked[2].content, {"role": "assistant", "content": "answer"}], tokenize=False),  # type: ignore[list-item]
    ]
    texts[2] = texts[2].rstrip("\n").removesuffix(tokenizer.eos_token) + end
    for text, skipped, answer in zip(texts, before, engine.log_likelihood(asked), strict=False):
        ids = torch.tensor(tokenizer(text.rstrip("\n"), add_special_tokens=False)["input_ids"])[None]
        logs = model(input_ids=ids).logits[0, :-1].log_softmax(dim=1)
        expected = logs[range(skipped - 1, ids.shape[1] - 1), ids[0, skipped:]].sum()
        assert answer.log_likelihood == pytest.approx(expected.item(), rel=1e-5)
        assert answer.output_tokens == ids.shape[1] - skipped
        assert answer.is_greedy is False


@pytest.mark.variation
def test_what_greedy_decoding_gives_is_greedy(engine: HfEngine, prompts: list[Prompt]) -> None:
    made = engine.generate(prompts, Sampling(max_tokens=40))
    ended = [
        (prompt, each) for prompt, each in zip(prompts, made, strict=True) if each.finish_reason == "stop" and each.text
    ]
    for prompt, each in itertools.islice(ended, 3):
        (answer,) = engine.log_likelihood([Prompt(row=0, content=prompt.content, completion=each.text, with_end=True)])
        # Text and tokens are not always one to one: only where they are, the sentence is true.
        if answer.output_tokens == each.output_tokens:
            assert answer.is_greedy


def test_embeddings_do_not_depend_on_padding(engine: HfEngine, prompts: list[Prompt]) -> None:
    for pooling in ("mean", "last"):
        together = engine.embed(prompts, pooling)
        alone = [engine.embed([prompt], pooling)[0] for prompt in prompts[:3]]
        for one, other in zip(together, alone, strict=False):
            assert one.embedding is not None and other.embedding is not None
            assert len(one.embedding) == 64
            np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-5)
    mean, last = engine.embed(prompts[9:10], "mean")[0], engine.embed(prompts[9:10], "last")[0]
    assert mean.embedding != last.embedding


def test_answers_are_held_to_a_schema_of_few_values(engine: HfEngine, prompts: list[Prompt]) -> None:
    schema = {
        "type": "object",
        "properties": {"winner": {"enum": ["A", "B", "tie"]}, "score": {"type": "integer", "minimum": 0, "maximum": 3}},
        "required": ["winner", "score"],
    }
    found = texts_of(engine.generate(prompts, Sampling(max_tokens=60, temperature=1.0, schema=schema)))
    possible = {f'{{"winner": "{who}", "score": {score}}}' for who in ("A", "B", "tie") for score in range(4)}
    assert set(found) <= possible and len(set(found)) > 3


def test_identity_is_that_of_the_folder(model_folder: Path) -> None:
    spec = HfEngineSpec(model=str(model_folder))
    assert spec.identity() == HfEngineSpec(model=str(model_folder), batch=1).identity()
    assert spec.identity() != HfEngineSpec(model=str(model_folder), dtype="bfloat16").identity()
    assert spec.identity() != HfEngineSpec(model=str(model_folder), chat_template="chatml").identity()


def test_options_that_can_never_work(model_folder: Path, tmp_path: Path) -> None:
    for wrong in ({"batch": 0}, {"dtype": "int4"}):
        with pytest.raises(InvalidOption):
            HfEngineSpec(model=str(model_folder), **wrong)  # type: ignore[arg-type]
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}, {"max_tokens": 0}, {"stop": ("",)}, {"top_k": -1}):
        with pytest.raises(InvalidOption):
            Sampling(**wrong)  # type: ignore[arg-type]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidOption, match="is not the folder of a model"):
        HfEngineSpec(model=str(tmp_path / "empty")).check()
