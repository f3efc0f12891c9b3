"""Models of lm-evaluation-harness that answer by an engine of the scorer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import pyarrow as pa

from forebay.data.transform.fingerprint.values import digest
from forebay.errors import InvalidOption, ScoringFailed, whole_number
from forebay.llm.score.engines.engine import Engine, Prompt, RowAnswer, Sampling, TokenPrompt
from forebay.llm.score.evaluation.given_rows import write_once
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.scoring import score_rows
from forebay.llm.score.tasks import Kind, ScoreTask
from forebay.llm.source.folders import local_copy
from forebay.llm.source.hub_model import hub_access
from forebay.llm.source.tokenizers import TokenizerSpec, import_transformers, load_folder
from forebay.runtime.extras import extra_package
from forebay.storage.filesystem import below, resolve

with extra_package("lm_eval", "A model for lm-evaluation-harness"):
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import handle_stop_sequences, has_bos_prefix, normalize_gen_kwargs, resolve_max_length
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

ENGINES = ("hf", "vllm")
"""Engines that take tokens. The harness has clients of its own for servers."""
_OPTIONS = (
    *("engine", "workers", "shard_rows", "dtype", "chat_template", "seed", "tensor_parallel", "engine_options"),
    *("cpus_per_worker", "gpus_per_worker", "base_url"),
)
"""Options of `ScoreRequest` that a task does not decide."""
_USUAL_MAX_TOKENS = 256
_USUAL_TEMPERATURE = 1.0


@register_model("forebay")
class HarnessModel(TemplateLM):  # type: ignore[misc]
    """Language model for `lm_eval.simple_evaluate`, answered by an engine.

    ```python
    lm_eval.simple_evaluate(model=HarnessModel("models/mine"), tasks=["arc_easy"])
    ```

    Tokens, windows, limits and `is_greedy` are as in the harness's own class `hf`, so that results can be compared.

    Args:
        model: Folder of a model, on any storage.
        to: Folder of the requests and their answers. An evaluation that was stopped goes on where it is started again.
            Empty: one engine in this process answers, and nothing is kept.
        batch_size: Requests that an engine answers at a time.
        max_length: Most tokens of a request with its answer. None: the positions of the model.
        options: More of `ScoreRequest`, such as `workers`, `engine`, `dtype` and `chat_template`.

    Raises:
        InvalidOption: An option that can never work.
    """

    def __init__(
        self, model: str, *, to: str = "", batch_size: int | str = 32, max_length: int | None = None, **options: Any
    ) -> None:
        super().__init__()
        self._request = _request(model, to, batch_size, options)
        self._spec = self._request.engine_spec()
        self._spec.check()
        template = TokenizerSpec(folder=model, template=self._request.chat_template).template_text
        with hub_access(model):
            self.tokenizer = load_folder(model, template)
            config = import_transformers().AutoConfig.from_pretrained(
                local_copy(model), local_files_only=True, trust_remote_code=False
            )
        # vLLM generates one token behind a prompt whose likelihood is asked for.
        most = resolve_max_length(config, self.tokenizer) - (2 if self._request.engine == "vllm" else 0)
        if max_length is not None:
            whole_number("max_length", max_length, least=2, most=most)
        self.max_length: int = max_length or most
        self._engine: Engine | None = None

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else int(begin)

    @property
    def tokenizer_name(self) -> str:
        return self._request.model.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text, which may begin with the begin token."""
        if add_special_tokens is None:
            has_begin = has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id))
            given = {"add_special_tokens": False} if has_begin else {}
        else:
            given = {"add_special_tokens": add_special_tokens}
        found: list[int] = self.tokenizer.encode(string, **given)
        return found

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Text of a conversation, by the tokenizer's chat template."""
        made = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return str(made)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:  # noqa: ARG002
        """Log-likelihoods of whole texts, in windows of `max_length` tokens."""
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for owner, request in enumerate(requests):
            cut = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            made = [(None, *make_disjoint_window(each)) for each in cut]
            windows += made
            owners += [owner] * len(made)
        sums = [0.0] * len(requests)
        for owner, (likelihood, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            sums[owner] += likelihood
        for request, likelihood in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, likelihood)
        return sums

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:  # noqa: ARG002
        """Texts that continue the contexts, up to a stop text."""
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(number)
        texts = [""] * len(requests)
        for numbers in groups.values():
            sampling = self._sampling(requests[numbers[0]].args[1])
            room = self.max_length - sampling.max_tokens
            if room <= 0:
                raise InvalidOption(
                    f"a task generates up to {sampling.max_tokens} tokens, and a request with its answer has at most "
                    f"{self.max_length}. Lower the task's max_gen_toks: gen_kwargs={{'max_gen_toks': N}}."
                )
            contexts = [self.tok_encode(requests[number].args[0])[-room:] for number in numbers]
            asked = [TokenPrompt(tuple(context)) for context in contexts]
            for number, answer in zip(numbers, self._answers("generate", asked, sampling), strict=True):
                texts[number] = answer.text or ""
                self.cache_hook.add_partial("generate_until", requests[number].args, texts[number])
        return texts

    def close(self) -> None:
        """Close the engine, if one is open in this process."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        asked = [
            # The last token is predicted only, so it needs no position. What is too long is cut at its beginning.
            TokenPrompt(tuple((context + continuation)[-(self.max_length + 1) :]), targets=len(continuation))
            for _texts, context, continuation in requests
        ]
        pairs = [
            (float(each.log_likelihood or 0.0), bool(each.is_greedy))
            for each in self._answers("log_likelihood", asked, Sampling())
        ]
        for request, pair in zip(requests, pairs, strict=True):
            if request[0] is not None:
                self.cache_hook.add_partial("loglikelihood", request[0], pair)
        return pairs

    def _sampling(self, given: Mapping[str, Any]) -> Sampling:
        """Rules of a task's `generation_kwargs`.

        Raises `InvalidOption` for one that the engines do not have.
        """
        options = dict(normalize_gen_kwargs(dict(given), _USUAL_MAX_TOKENS))
        end = self.tokenizer.decode([self.eot_token_id])
        stop = handle_stop_sequences(options.pop("until", None), eos=end)
        is_drawn = options.pop("do_sample")
        temperature = float(options.pop("temperature", _USUAL_TEMPERATURE))
        most = int(options.pop("max_gen_toks"))
        known = {name: options.pop(name) for name in ("top_k", "top_p") if name in options}
        if options:
            raise InvalidOption(
                f"generation_kwargs of a task have {', '.join(map(repr, options))}, which no engine here has. Leave "
                "them out: engines take until, max_gen_toks, do_sample, temperature, top_k and top_p."
            )
        return Sampling(
            max_tokens=most,
            stop=tuple(each for each in stop if each),
            seed=self._request.seed,
            **({"temperature": temperature, **known} if is_drawn else {}),
        )

    def _answers(self, kind: Kind, asked: Sequence[TokenPrompt], sampling: Sampling) -> list[RowAnswer]:
        if not asked:
            return []
        if self._request.to:
            return _kept_answers(self._request, kind, asked, sampling)
        if self._engine is None:
            self._engine = self._spec.open()
        prompts = [Prompt(row=number, content=each) for number, each in enumerate(asked)]
        answers = ScoreTask(kind=kind, sampling=sampling).ask(self._engine, prompts)
        for number, each in enumerate(answers):
            if each.error is not None:
                raise ScoringFailed(f"request {number} of the harness has no answer: {each.error}.", error=each.error)
        return answers


def _request(model: str, to: str, batch_size: int | str, options: Mapping[str, Any]) -> ScoreRequest:
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        raise InvalidOption(
            f"{', '.join(map(repr, unknown))} is no option of a model for the harness. Choose of batch_size, "
            f"max_length, to, {', '.join(_OPTIONS)}."
        )
    size = int(batch_size) if str(batch_size).isdigit() else batch_size
    if not isinstance(size, int):
        raise InvalidOption(f"batch_size={batch_size!r}: give a whole number. Engines do not look for the largest one.")
    request = ScoreRequest(**{**options, "model": model, "data": "", "to": to, "batch": size})
    if request.engine not in ENGINES:
        raise InvalidOption(
            f"engine={request.engine!r}: the harness asks about tokens, which {' and '.join(map(repr, ENGINES))} take. "
            "For a server, use the harness's own model local-completions."
        )
    if request.workers > 1 and not to:
        raise InvalidOption(
            f"workers={request.workers} need a folder that all of them can write: give to=, on storage of the cluster."
        )
    return request


def _kept_answers(
    request: ScoreRequest, kind: Kind, asked: Sequence[TokenPrompt], sampling: Sampling
) -> list[RowAnswer]:
    """Answers of a scoring run over the requests, in a folder of their own."""
    ids, targets = [list(each.ids) for each in asked], [each.targets for each in asked]
    rows = pa.table({"ids": pa.array(ids, pa.list_(pa.int32())), "targets": pa.array(targets, pa.int32())})
    facts = json.dumps([kind, ids, targets, asdict(sampling)])
    folder = below(resolve(request.to).uri, f"{kind}-{digest(facts.encode())[:16]}")
    data = below(folder, "requests.parquet")
    write_once(rows, data, "The requests of the harness")
    run = replace(
        request,
        data=data,
        to=below(folder, "answers"),
        task=kind,
        max_tokens=sampling.max_tokens,
        stop=sampling.stop,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        max_errors=0,
    )
    found = score_rows(run, prompt=_token_prompt).read().to_pylist()
    for row in found:
        if row["error"] is not None:
            raise ScoringFailed(f"request {row['row']} of the harness has no answer: {row['error']}.")
    names = [field.name for field in fields(RowAnswer)]
    return [RowAnswer(**{name: row[name] for name in names if name in row}) for row in found]


def _token_prompt(row: Mapping[str, Any]) -> TokenPrompt:
    return TokenPrompt(tuple(row["ids"]), row["targets"])
