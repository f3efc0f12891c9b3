"""Fitted values, and preparation on Ray (`docs/prepare.md`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.runtime.late_import import lazy_names

if TYPE_CHECKING:
    from forebay.data.preparation.fits import Moments as Moments
    from forebay.data.preparation.fits import Quantiles as Quantiles
    from forebay.data.preparation.preprocessors import load_preprocessor as load_preprocessor
    from forebay.data.preparation.ray_data import from_ray_data as from_ray_data
    from forebay.data.preparation.spans.on_ray import prepare_on_ray as prepare_on_ray

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "Moments": "forebay.data.preparation.fits",
        "Quantiles": "forebay.data.preparation.fits",
        "from_ray_data": "forebay.data.preparation.ray_data",
        "load_preprocessor": "forebay.data.preparation.preprocessors",
        "prepare_on_ray": "forebay.data.preparation.spans.on_ray",
    },
)
