"""`HarnessModel` beside the harness's own class for transformers. Needs lm_eval: `pip install 'forebay[lm-eval]'`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay.errors import InvalidOption, ScoringFailed
from forebay.llm.source.tokenizers import TokenizerSpec, import_transformers, train_tokenizer
from forebay.testing.data.chats import made_up_chats

lm_eval = pytest.importorskip("lm_eval", reason="the package lm_eval is not installed")
POSITIONS = 48
Pairs = tuple[tuple[Any, ...], ...]
CHATS = list(itertools.islice(made_up_chats(3), 40))
TEXTS = [" ".join(turn["content"] for turn in turns)[: 20 + 9 * number] for number, turns in enumerate(CHATS)]


@pytest.fixture(autouse=True)
def no_leaked_threads() -> None:
    """Replace the guard: tqdm's monitor, which the harness starts, lives as long as the process."""


@pytest.fixture(scope="module", params=["with begin token", "without"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 48 positions, whose tokenizer may put a begin token."""
    found = tmp_path_factory.mktemp("harness")
    tokenizer: Any = train_tokenizer(
        (each["content"] for turns in CHATS for each in turns), TokenizerSpec(vocab_size=400)
    )
    if request.param == "with begin token":
        tokenizer.add_special_tokens({"bos_token": "<|begin|>"})
        processors = pytest.importorskip("tokenizers").processors
        begin = ("<|begin|>", tokenizer.bos_token_id)
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            "<|begin|> $A", special_tokens=[begin]
        )
    torch.manual_seed(5)
    transformers = import_transformers()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        **sizes, vocab_size=len(tokenizer), max_position_embeddings=POSITIONS, eos_token_id=tokenizer.eos_token_id
    )
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data *= 6  # answers that differ, and end now and then
    model.save_pretrained(found)
    tokenizer.save_pretrained(found)
    return found


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    from lm_eval.models.huggingface import HFLM

    # Its cache takes the wrong logits where one text is asked for with two borders, and in a batch it does not cut what
    # follows a stop text that is a special token (lm_eval 0.4.13).
    return HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=1, logits_cache=False)


@pytest.fixture
def ours(folder: Path) -> Iterator[Any]:
    from forebay.llm.score.evaluation.harness import HarnessModel

    made = HarnessModel(str(folder), batch_size=4)
    yield made
    made.close()


def instances(kind: str, arguments: Pairs) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


PAIRS = (
    *(((text[: len(text) // 2]), text[len(text) // 2 :]) for text in TEXTS),
    *((text[:30] + "  ", text[30:50] or "a") for text in TEXTS[:5]),
    *(("", text[:40]) for text in TEXTS[:5]),
    (TEXTS[-1] * 3, " yes"),
)
"""Contexts and continuations: short, with spaces at the border, empty, and longer than the positions."""


def check_equal(found: list[tuple[float, bool]], expected: list[tuple[float, bool]]) -> None:
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], rel=1e-6, abs=1e-5)
    assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]


def test_likelihoods_and_is_greedy_are_those_of_the_harness(ours: Any, theirs: Any) -> None:
    greedy = theirs.generate_until(
        instances("generate_until", tuple((text, {"max_gen_toks": 2}) for text in TEXTS[:8]))
    )
    pairs = PAIRS + tuple((text, more) for text, more in zip(TEXTS[:8], greedy, strict=True) if more)
    expected = theirs.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True)
    found = ours.loglikelihood(instances("loglikelihood", pairs), disable_tqdm=True)
    check_equal(found, expected)
    assert {is_greedy for _, is_greedy in found} == {True, False}


def test_rolling_likelihoods_are_those_of_the_harness(ours: Any, theirs: Any) -> None:
    texts = tuple((text,) for text in [*TEXTS[:6], TEXTS[-1] * 4, ""])
    expected = theirs.loglikelihood_rolling(instances("loglikelihood_rolling", texts), disable_tqdm=True)
    found = ours.loglikelihood_rolling(instances("loglikelihood_rolling", texts))
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize(
    "rules",
    [{"until": ["@", "\n"]}, {"until": ["<|im_start|>"], "max_gen_toks": 30}, {"max_new_tokens": 5, "until": "th"}],
)
def test_generated_texts_are_those_of_the_harness(ours: Any, theirs: Any, rules: dict[str, Any]) -> None:
    asked = tuple((text, {"max_gen_toks": 12, "do_sample": False} | rules) for text in TEXTS)
    if "max_new_tokens" in rules:
        asked = tuple((text, rules) for text in TEXTS)
    expected = theirs.generate_until(instances("generate_until", asked), disable_tqdm=True)
    assert ours.generate_until(instances("generate_until", asked)) == expected
    assert len(set(expected)) > 5


def test_conversations_have_the_same_text(ours: Any, theirs: Any) -> None:
    for chat in CHATS[:3]:
        assert ours.apply_chat_template(list(chat)) == theirs.apply_chat_template(list(chat))
        assert ours.apply_chat_template(list(chat), False) == theirs.apply_chat_template(list(chat), False)
    assert ours.chat_template(True) == theirs.chat_template(True)


@pytest.mark.variation
def test_a_local_task_has_the_same_results(ours: Any, theirs: Any, tmp_path: Path) -> None:
    from lm_eval.tasks import TaskManager

    rows = [{"q": text[:20], "a": text[20:30], "b": "no", "gold": number % 2} for number, text in enumerate(TEXTS)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{q}}",
    }
    choice = {"doc_to_choice": ["{{a}}", "{{b}}"], "doc_to_target": "{{gold}}"}
    free = {"doc_to_target": "{{a}}", "generation_kwargs": {"max_gen_toks": 6, "until": ["."]}}
    tasks = [
        {**base, **choice, "task": "own_choice", "output_type": "multiple_choice"},
        {**base, **free, "task": "own_text", "output_type": "generate_until"},
        {
            **base,
            "doc_to_text": "",
            "doc_to_target": "{{q}} {{a}}",
            "task": "own_ppl",
            "output_type": "loglikelihood_rolling",
        }
        | {"metric_list": [{"metric": "word_perplexity"}]},
    ]
    manager = TaskManager(include_defaults=False)
    found, expected = (
        lm_eval.simple_evaluate(
            model=each, tasks=[dict(task) for task in tasks], task_manager=manager, bootstrap_iters=0
        )
        for each in (ours, theirs)
    )
    assert found["results"].keys() == {"own_choice", "own_text", "own_ppl"}
    for name, results in expected["results"].items():
        numbers = {metric: value for metric, value in results.items() if isinstance(value, float)}
        assert numbers and {metric: found["results"][name][metric] for metric in numbers} == pytest.approx(
            numbers, rel=1e-5
        )


def test_requests_are_kept_and_answered_once(folder: Path, ours: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from forebay.llm.score import HfEngineSpec
    from forebay.llm.score.evaluation.harness import HarnessModel

    asked = instances("loglikelihood", PAIRS)
    expected = ours.loglikelihood(asked, disable_tqdm=True)
    texts = instances("generate_until", tuple((text, {"max_gen_toks": 4}) for text in TEXTS[:9]))
    written = ours.generate_until(texts)
    kept = HarnessModel(str(folder), to=str(tmp_path), batch_size="4", shard_rows=7)
    check_equal(kept.loglikelihood(asked, disable_tqdm=True), expected)
    assert kept.generate_until(texts) == written
    monkeypatch.setattr(HfEngineSpec, "open", lambda self: pytest.fail("everything is answered"))
    again = HarnessModel(str(folder), to=str(tmp_path), batch_size=4, shard_rows=7)
    check_equal(again.loglikelihood(asked, disable_tqdm=True), expected)
    assert again.generate_until(texts) == written


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cpu"}, "'device' is no option"),
        ({"prompt": "text"}, "'prompt' is no option"),
        ({"temperature": 1.0}, "'temperature' is no option"),
        ({"batch_size": "auto"}, "batch_size='auto'"),
        ({"workers": 2}, "give to="),
        ({"engine": "openai", "base_url": "http://nowhere/v1"}, "local-completions"),
        ({"max_length": 4096}, "max_length=4096"),
    ],
)
def test_options_that_can_never_work(folder: Path, options: dict[str, Any], message: str) -> None:
    from forebay.llm.score.evaluation.harness import HarnessModel

    with pytest.raises(InvalidOption, match=message):
        HarnessModel(str(folder), **options)


def test_requests_without_an_answer_are_named(ours: Any) -> None:
    with pytest.raises(InvalidOption, match="repetition_penalty"):
        ours.generate_until(instances("generate_until", (("a", {"repetition_penalty": 2.0}),)))
    with pytest.raises(InvalidOption, match="max_gen_toks"):
        ours.generate_until(instances("generate_until", (("a", {"max_gen_toks": POSITIONS}),)))
    with pytest.raises(ScoringFailed, match="request 0 of the harness"):
        ours._loglikelihood_tokens([(None, [1, 2], [])])


def test_drawn_texts_follow_the_seed(folder: Path) -> None:
    from forebay.llm.score.evaluation.harness import HarnessModel

    asked = instances("generate_until", tuple((TEXTS[0], {"max_gen_toks": 8, "do_sample": True}) for _ in range(8)))

    def made(seed: int) -> list[str]:
        return HarnessModel(str(folder), seed=seed).generate_until(asked)

    assert made(1) == made(1) != made(2)
    assert len(set(made(1))) > 4
