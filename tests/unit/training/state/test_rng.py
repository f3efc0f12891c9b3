from __future__ import annotations

import io
import pickle
import random

import numpy as np
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
