"""Two towers that decide the clicks of a log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

NUM_FLOATS = 13
USER_FLOATS = 7
USER_CARDINALITIES = (10, 24, 50, 100, 200, 400, 800, 1_500, 3_000, 6_000, 12_000, 25_000, 50_000)
ITEM_CARDINALITIES = (12, 20, 40, 80, 150, 300, 600, 1_000, 2_000, 5_000, 10_000, 20_000, 40_000)
CARDINALITIES = USER_CARDINALITIES + ITEM_CARDINALITIES
EXPONENT = 1.5

# Tuned together: the click rate is a quarter and the best AUC 0.80. An eighth of the logit's variance is in the product
# of the varying parts of both towers. A model without an interaction of user and item cannot learn this eighth.
DIMENSIONS = 8
OFFSET = 0.8
TOWER_VARIANCE = 0.14
BIAS = -1.38
# A third of a tower's variance comes from the floats. The rest is shared among the categorical features by num_ids **
# -RARITY. The effect of 50,000 ids can only be learned from more rows than a demo has.
FLOAT_SHARE = 1 / 3
RARITY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """Power-law distribution of ids 0..num_ids-1.

    The most frequent comes first: id i has a share close to (i + 1) ** -exponent.

    >>> PowerLaw(num_ids=3, exponent=1.1).shares().round(2).tolist()
    [0.52, 0.29, 0.2]
    """

    num_ids: int
    exponent: float

    def ids(self, uniform: npt.NDArray[np.float64]) -> Ids:
        """Turn uniform numbers of [0, 1) into ids.

        By the inverse of a Pareto distribution cut at `num_ids`.
        """
        power = 1.0 - self.exponent
        span = (self.num_ids + 1.0) ** power - 1.0
        ranks = (1.0 + uniform * span) ** (1.0 / power)
        # Rounding may raise the largest uniform number to num_ids + 1.
        ids: Ids = np.minimum(ranks.astype(np.int64) - 1, self.num_ids - 1)
        return ids

    def shares(self) -> npt.NDArray[np.float64]:
        """Probability of each id, float64 [num_ids]."""
        power = 1.0 - self.exponent
        edges = (np.arange(1, self.num_ids + 2, dtype=np.float64) ** power - 1.0) / (
            (self.num_ids + 1.0) ** power - 1.0
        )
        return np.diff(edges)


ID_LAWS = tuple(PowerLaw(num_ids=num_ids, exponent=EXPONENT) for num_ids in CARDINALITIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTower:
    """One vector per row.

    It is the sum of a constant, a linear map of the floats, and one table of vectors per categorical feature.
    """

    weights: Floats  # [floats, DIMENSIONS]
    tables: tuple[Floats, ...]  # per feature [num_ids, DIMENSIONS]

    def vectors(self, floats: Floats, ids: Ids) -> Floats:
        """Return vectors float32 [rows, DIMENSIONS].

        For `floats` [rows, floats] and `ids` [features, rows].
        """
        vectors: Floats = OFFSET + floats @ self.weights
        for table, feature_ids in zip(self.tables, ids, strict=True):
            vectors += table[feature_ids]
        return vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTowers:
    """The true model of the clicks.

    The user tower sees the first half of the features, the item tower the other half. The logit is the dot product of
    both plus a bias. Every feature has mean zero under its own distribution. So the click rate does not depend on the
    vector that the most frequent id happened to draw.
    """

    user: HiddenTower
    item: HiddenTower

    @classmethod
    def draw(cls, rng: np.random.Generator) -> HiddenTowers:
        """Draw all weights and tables from `rng`."""
        split = len(USER_CARDINALITIES)
        return cls(
            user=_draw_tower(rng, USER_FLOATS, ID_LAWS[:split]),
            item=_draw_tower(rng, NUM_FLOATS - USER_FLOATS, ID_LAWS[split:]),
        )

    def probabilities(self, floats: Floats, ids: Ids) -> npt.NDArray[np.float64]:
        """Probability of a click, float64 [rows].

        For `floats` [rows, 13] and `ids` [26, rows].
        """
        split = len(USER_CARDINALITIES)
        user = self.user.vectors(floats[:, :USER_FLOATS], ids[:split])
        item = self.item.vectors(floats[:, USER_FLOATS:], ids[split:])
        logits = np.einsum("rd,rd->r", user, item).astype(np.float64) + BIAS - DIMENSIONS * OFFSET**2
        probabilities: npt.NDArray[np.float64] = 1.0 / (1.0 + np.exp(-logits))
        return probabilities


def _draw_tower(rng: np.random.Generator, num_floats: int, laws: tuple[PowerLaw, ...]) -> HiddenTower:
    weights = rng.standard_normal((num_floats, DIMENSIONS))
    # The other tower's constant part is multiplied by the sum over dimensions. Fixing the variance of this sum, here
    # and in the tables, gives every seed nearly the same click rate and best AUC.
    weights *= np.sqrt(FLOAT_SHARE * TOWER_VARIANCE * DIMENSIONS / np.square(weights.sum(axis=1)).sum())
    shares = np.array([law.num_ids**-RARITY for law in laws])
    deviations = np.sqrt((1.0 - FLOAT_SHARE) * TOWER_VARIANCE * shares / shares.sum())
    tables = zip(deviations, _draw_tables(rng, laws), strict=True)
    return HiddenTower(
        weights=weights.astype(np.float32),
        tables=tuple((deviation * table).astype(np.float32) for deviation, table in tables),
    )


def _draw_tables(rng: np.random.Generator, laws: tuple[PowerLaw, ...]) -> Iterator[npt.NDArray[np.float64]]:
    """Yield a table of vectors per feature.

    Mean 0 and variance 1 per dimension, under the feature's own distribution of ids.
    """
    for law in laws:
        shares = law.shares()
        table = rng.standard_normal((law.num_ids, DIMENSIONS))
        table -= shares @ table
        table *= np.sqrt(DIMENSIONS / (shares @ np.square(table.sum(axis=1))))
        yield table
