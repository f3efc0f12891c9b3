from __future__ import annotations

import io
import pickle
import random

import numpy as np
import pytest
import torch

from forebay.training.state import rng

CPU = torch.device("cpu")


def draw() -> tuple[list[float], list[float], list[float]]:
    return torch.randn(3).tolist(), np.random.standard_normal(3).tolist(), [random.gauss(0, 1) for _ in range(3)]


def test_put_back_repeats_all_three_generators() -> None:
    rng.seed_everything(5)
    draw()
    state = rng.capture(CPU)
    first = draw()
    rng.restore(state, CPU)
    assert draw() == first


def test_state_survives_a_weights_only_load() -> None:
    rng.seed_everything(6)
    np.random.standard_normal()  # leaves a cached second gaussian, part of the state
    buffer = io.BytesIO()
    torch.save({"rng": [rng.capture(CPU)]}, buffer)
    first = draw()
    buffer.seek(0)
    rng.restore(torch.load(buffer, weights_only=True)["rng"][0], CPU)
    assert draw() == first


def test_neighbouring_keys_give_unrelated_streams() -> None:
    drawn = []
    for key in [(0,), (1,), (0, 1), (1, 0), (0, 0, 1), (0, 1, 0)]:
        rng.seed_everything(*key)
        drawn.append(torch.randn(1).item())
    assert len(set(drawn)) == len(drawn)


def test_state_is_whole_again_after_the_way_to_another_process() -> None:
    rng.seed_everything(7)
    np.random.standard_normal()
    sent = pickle.dumps(rng.light(rng.capture(CPU)))
    first = draw()
    state = rng.whole(pickle.loads(sent))
    assert isinstance(state["torch"], torch.Tensor)
    assert isinstance(state["numpy"][1], torch.Tensor)
    rng.restore(state, CPU)
    assert draw() == first


@pytest.mark.parametrize("ranks", [2, rng.STACKED_FROM, 100])
def test_states_of_all_ranks_survive_a_checkpoint(ranks: int) -> None:
    states, first = [], []
    for rank in range(ranks):
        rng.seed_everything(8, rank)
        if rank % 2:
            np.random.standard_normal()
            random.gauss(0, 1)
        states.append(rng.light(rng.capture(CPU)))
        first.append(draw())
    buffer = io.BytesIO()
    with torch.device("meta"):  # as after torch.set_default_device("cuda")
        torch.save(rng.saved(states), buffer)
    buffer.seek(0)
    read = rng.loaded(torch.load(buffer, weights_only=True))
    assert len(read) == ranks
    for again in (read, rng.loaded(rng.saved(read)), rng.loaded(rng.saved([*read]))):  # a fork saves what it has read
        for rank in (0, 1, ranks - 1):
            rng.restore(again[rank], CPU)
            assert draw() == first[rank]


def test_a_checkpoint_has_as_many_objects_for_a_thousand_ranks_as_for_a_hundred() -> None:
    state = rng.light(rng.capture(CPU))

    def tensors(ranks: int) -> int:
        return str(rng.saved([state] * ranks)).count("tensor(")

    assert tensors(1_000) == tensors(100)


def test_a_vote_has_the_generators_that_changed() -> None:
    ranks = [rng.RankGenerators() for _ in range(2)]
    rng.seed_everything(9)

    def exchange() -> list[set[str]]:
        news = [each.news(rng.light(rng.capture(CPU))) for each in ranks]
        ranks[0].hear(news)
        return [set(each) for each in news]

    assert exchange() == [{"torch", "numpy", "python"}] * 2
    assert exchange() == [set(), set()]
    torch.rand(1)
    assert exchange() == [{"torch"}] * 2
    first = draw()
    rng.restore(rng.whole(ranks[0].of_ranks[1]), CPU)
    assert draw() == first
