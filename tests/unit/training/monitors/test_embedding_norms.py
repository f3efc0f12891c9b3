"""Growing rows are found in every kind of table, before the loss shows them, and at little cost."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from forebay.errors import InvalidOption
from forebay.training.monitors import table_norms
from forebay.training.monitors.embedding_norms import EVERY, EmbeddingNorms, LiveEmbeddingNorms
from forebay.training.monitors.loss_spikes import LossSpikes
from forebay.training.monitors.monitor import Action, Verdict
from forebay.training.monitors.nan_guard import NanGuard
from forebay.training.state.setup import LocalParts, LocalTable, TrainSetup


def begin(monitor: Any, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return monitor.attach(TrainSetup(model=model, optimizer=optimizer, device=torch.device("cpu"), world_size=1))


def pass_steps(live: LiveEmbeddingNorms, steps: int, first: int = 1) -> None:
    for step in range(first, first + steps):
        live.step(step, {})


class SomeTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(50, 4)
        self.items = nn.EmbeddingBag(60, 4)
        self.own = nn.Parameter(torch.zeros(70, 4))
        self.dense = nn.Linear(4, 4)
        with torch.no_grad():
            self.users.weight.zero_()
            self.items.weight.zero_()


@pytest.mark.parametrize("name", ["users.weight", "items.weight", "own"])
def test_every_kind_of_table_is_watched(name: str) -> None:
    model = SomeTables()
    live = begin(EmbeddingNorms(5, action="stop", tables="ow*"), model)
    with torch.no_grad():
        table = dict(model.named_parameters())[name]
        table[7], table[9], table[11] = 3.0, -4.0, 2.0
    pass_steps(live, 3 * EVERY)
    verdict = live.verdict()
    assert (verdict.action, verdict.step) == (Action.STOP, None)
    assert (
        f"2 of the {len(table)} rows of {name!r} are longer than limit=5, the longest is row 9 with 8" in verdict.reason
    )
    metrics = live.metrics()
    assert metrics[f"embedding_norms/{name}/max_norm"] == 8.0
    assert metrics[f"embedding_norms/{name}/runaway_rows"] == 2.0
    assert set(metrics) == {
        f"embedding_norms/{table}/{what}"
        for table in ("users.weight", "items.weight", "own")
        for what in ("max_norm", "runaway_rows")
    }
    assert live.metrics() == {}


def test_the_sweep_reaches_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_norms, "SLICE_NUMBERS", 40)
    model = nn.Sequential(nn.Embedding(97, 4))
    with torch.no_grad():
        model[0].weight.zero_()
    for row in (0, 9, 10, 96):
        live = begin(EmbeddingNorms(1), model)
        with torch.no_grad():
            model[0].weight[row] = 2.0
        pass_steps(live, 10 * EVERY)
        assert f"is row {row} with 4" in live.verdict().reason
        with torch.no_grad():
            model[0].weight[row] = 0.0


def test_a_table_may_lose_rows_between_two_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of an open vocabulary does, whose ids are evicted."""
    monkeypatch.setattr(table_norms, "SLICE_NUMBERS", 40)
    rows = torch.ones(97, 4)
    table = LocalTable(name="open", weight=lambda: rows, id_of=lambda row: row, feature=str)
    setup = TrainSetup(
        model=nn.Module(),
        optimizer=torch.optim.SGD([torch.zeros(1)]),
        device=torch.device("cpu"),
        world_size=1,
        parts=LocalParts(tables=(table,)),
    )
    live = EmbeddingNorms(10).attach(setup)
    pass_steps(live, 6 * EVERY)
    rows = torch.full((12, 4), 50.0)
    pass_steps(live, 3 * EVERY)
    assert "12 of the 12 rows of 'open' are longer than limit=10, the longest is row 0" in live.verdict().reason
    rows = torch.zeros(0, 4)
    pass_steps(live, 3 * EVERY)
    assert live.verdict().action is Action.GO_ON


def test_rows_that_were_looked_up_are_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_norms, "SLICE_NUMBERS", 400)
    model = nn.Sequential(nn.Embedding(100_000, 4))
    live = begin(EmbeddingNorms(10), model)
    with torch.no_grad():
        model[0].weight[77_777] = 50.0
    for step in range(1, EVERY + 1):
        model(torch.tensor([[3, 77_777], [4, 5]]))
        model.eval()
        model(torch.tensor([1]))  # an evaluation between the step and its commit
        model.train()
        live.step(step, {})
    assert "1 of the 100,000 rows of '0.weight'" in live.verdict().reason


@pytest.mark.parametrize("shape", [(1024, 4), (4096, 8), (512, 6, 2), (1500, 3)])
@pytest.mark.parametrize("column", [0, -1])
def test_rows_of_every_column_are_measured(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], column: int
) -> None:
    monkeypatch.setattr(table_norms, "SLICE_NUMBERS", 400)
    model = nn.Sequential(nn.Embedding(100_000, 4))
    live = begin(EmbeddingNorms(10), model)
    with torch.no_grad():
        model[0].weight[77_777] = 50.0
    ids = torch.zeros(shape, dtype=torch.int64)
    ids[..., column] = 77_777
    for step in range(1, EVERY + 1):
        model(ids)
        live.step(step, {})
    assert live.verdict().action is Action.WARN


def test_other_rows_are_measured_at_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each measurement looks at other rows of the batch, so that every row gets its turn."""
    monkeypatch.setattr(table_norms, "SLICE_NUMBERS", 4)
    model = nn.Sequential(nn.Embedding(100_000, 4), nn.Embedding(9, 4))
    live = begin(EmbeddingNorms(10), model)
    with torch.no_grad():
        model[0].weight[77_777] = 50.0
    ids = torch.zeros(4096, dtype=torch.int64)
    ids[5::8] = 77_777
    found = []
    for step in range(1, 16 * EVERY + 1):
        model[0](ids)
        live.step(step, {})
        if step % EVERY == 0:
            found.append(live.verdict().action is Action.WARN)
    assert found.index(True) == 2 * 5, "the table's sixth turn"


def test_no_verdict_without_a_measurement() -> None:
    live = begin(EmbeddingNorms(1e-9), nn.Sequential(nn.Embedding(5, 2)))
    pass_steps(live, EVERY - 1)
    assert live.verdict() == Verdict()
    pass_steps(live, 1, first=EVERY)
    assert live.verdict().action is Action.WARN


def test_a_warning_is_repeated_when_the_longest_row_has_doubled() -> None:
    model = nn.Sequential(nn.Embedding(5, 1))
    live = begin(EmbeddingNorms(1.5), model)
    actions = []
    for round_number, length in enumerate((1.0, 2.0, 3.0, 5.0, 5.0)):
        with torch.no_grad():
            model[0].weight.fill_(length)
        pass_steps(live, EVERY, first=1 + round_number * EVERY)
        actions.append(live.verdict().action)
    assert [action is Action.WARN for action in actions] == [False, True, False, True, False]


def test_state_goes_on_and_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_norms, "SLICE_NUMBERS", 4)
    model = nn.Sequential(nn.Embedding(9, 4))
    live = begin(EmbeddingNorms(1.0), model)
    with torch.no_grad():
        model[0].weight.fill_(0.1)
    pass_steps(live, 3 * EVERY)
    assert live.verdict() == Verdict()
    state = copy.deepcopy(live.state_dict())
    assert state == {"turn": 3, "is_next": False, "rows": {"0.weight": 3}, "warned": {}}
    healthy = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.fill_(9.0)
    pass_steps(live, EVERY, first=1 + 3 * EVERY)
    with torch.no_grad():
        model[0].weight.copy_(healthy)
    live.load_state_dict(state)
    pass_steps(live, EVERY, first=1 + 3 * EVERY)
    assert live.verdict() == Verdict(), "what it saw before it went back is forgotten"
    assert live.state_dict()["rows"] == {"0.weight": 4}
    fresh = begin(EmbeddingNorms(1.0), model)
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state


def test_a_measurement_that_is_due_goes_back_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state kept of a step equals an undisturbed run's, wherever the step before it was saved."""
    monkeypatch.setattr(table_norms, "SLICE_NUMBERS", 4)
    model = nn.Sequential(nn.Embedding(1000, 4), nn.Embedding(1000, 4))
    with torch.no_grad():
        model[0].weight[777] = 50.0
    live = begin(EmbeddingNorms(10), model)
    early = copy.deepcopy(live.state_dict())
    pass_steps(live, EVERY - 1)
    due = copy.deepcopy(live.state_dict())
    fresh = begin(EmbeddingNorms(10), model)
    for resumed, state, is_seen in ((live, early, False), (fresh, due, True)):
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        model[0](torch.tensor([777]))
        resumed.step(EVERY, {})
        assert (resumed.verdict().action is Action.WARN) is is_seen


def test_tied_tables_count_once_and_models_without_any_are_refused() -> None:
    model = SomeTables()
    model.again = nn.Embedding(50, 4)
    model.again.weight = model.users.weight
    live = begin(EmbeddingNorms(1.0), model)
    assert set(live.state_dict()["rows"]) == {"users.weight", "items.weight"}
    with pytest.raises(InvalidOption, match=r"found no embedding in Linear.*among \['weight'\]"):
        begin(EmbeddingNorms(1.0), nn.Linear(2, 2))


def test_it_is_a_value() -> None:
    norms = EmbeddingNorms(10, action="roll back", tables=["*.own"])
    assert pickle.loads(pickle.dumps(norms)) == norms
    with pytest.raises(InvalidOption, match="limit=0"):
        EmbeddingNorms(0)
    with pytest.raises(InvalidOption, match="no single batch makes a row too long"):
        EmbeddingNorms(1, action="skip")


def test_compiled_models_are_swept() -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 1))
    live = begin(EmbeddingNorms(1.0), model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        model[0].weight[3] = 10.0
    for step in range(1, 2 * EVERY + 1):
        compiled(torch.tensor([1, 2])).sum().backward()
        live.step(step, {})
    assert live.verdict().action is Action.WARN


class EmbeddedClicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200, 8)
        nn.init.normal_(self.table.weight, std=0.3)

    def forward(self, ids: Tensor) -> Tensor:
        users, items = self.table(ids).unbind(dim=1)
        return (users * items).sum(dim=1)


def test_it_fires_before_the_loss_does() -> None:
    """One user's updates have the wrong sign: the row runs away, and the mean over the batch does not show it."""
    torch.manual_seed(0)
    model, limit = EmbeddedClicks(), 8.0
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    monitors = {
        "norms": begin(EmbeddingNorms(limit, action="roll back"), model, optimizer),
        "spikes": begin(LossSpikes(factor=2.0, window=32), model, optimizer),
        "nan": begin(NanGuard(), model, optimizer),
    }
    tastes = torch.randn(200, 2)
    fired: dict[str, int] = {}
    losses = []
    for step in range(1, 1001):
        ids = torch.stack([torch.randint(0, 100, (64,)), torch.randint(100, 200, (64,))], dim=1)
        labels = torch.bernoulli(torch.sigmoid(2 * (tastes[ids[:, 0]] * tastes[ids[:, 1]]).sum(dim=1)))
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), labels)
        loss.backward()
        model.table.weight.grad[7] *= -1
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        for name, monitor in monitors.items():
            monitor.step(step, {"loss": loss})
            if monitor.verdict().action is not Action.GO_ON:
                fired.setdefault(name, step)
        if "spikes" in fired:
            break
    assert list(fired) == ["norms", "spikes"]
    at = fired["norms"]
    assert at + 20 < fired["spikes"]
    assert sum(losses[at - 20 : at]) < sum(losses[:20]), "the loss was still below where it began"
