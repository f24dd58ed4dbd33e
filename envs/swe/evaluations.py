"""Rows on which nothing may be trained: those of benchmarks, by dataset, id or image.

The producer knows the dataset. A worker sees the row alone, whose columns are those of datasets
that are made for training, too; so it goes by the repositories of SWE-bench's test split, from
which such datasets are not made, and by the images of benchmarks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from envs.swe.images.names import stated_image

_DATASETS = re.compile(
    r"(?:^|[-_.])(?:swe-?(?:poly)?bench(?![-_]?extra)|swt-?bench|swe-?rebench-?leaderboard)",
    re.IGNORECASE,
)
"""Not: SWE-smith, SWE-Gym, SWE-rebench, R2E-Gym, SWE-bench-extra, which are made for training."""
_REPOSITORIES = (
    "astropy/astropy django/django matplotlib/matplotlib mwaskom/seaborn pallets/flask "
    "psf/requests pydata/xarray pylint-dev/pylint pytest-dev/pytest scikit-learn/scikit-learn "
    "sphinx-doc/sphinx sympy/sympy"
).split()
_IDS = re.compile(rf"(?:{'|'.join(map(re.escape, _REPOSITORIES))})-\d+".replace("/", "__"), re.I)
"""A repository of SWE-bench, Verified and Lite, and the number of a pull request."""
_IMAGES = re.compile(
    r"(?:[\w.-]+(?::\d+)?/)*(?:(?:swebench|starryzhang)/sweb\.eval\.|"
    r"epoch-research/swe-bench\.eval\.|jefzda/sweap-images\b)",
    re.IGNORECASE,
)
"""Of SWE-bench, of SWE-bench-Live and of SWE-bench Pro."""


def is_benchmark(dataset: str, split: str | None) -> bool:
    """Whether a dataset is one that models are measured with.

    Args:
        dataset: `OWNER/NAME[:CONFIG]`, or the path of a file.
        split: None for a file. The split `train` is for training.
    """
    names = list(_names(dataset, is_file=split is None))
    trains = (split or PurePath(dataset).name).lower().startswith("train")
    return not trains and any(_DATASETS.search(name) for name in names)


def _names(dataset: str, *, is_file: bool) -> Iterator[str]:
    """What may name the dataset: an owner, such as that of SWE-smith, does not."""
    path = PurePath(dataset if is_file else dataset.partition(":")[0])
    yield path.name
    if is_file:
        yield path.parent.name


def is_evaluation(row: Mapping[str, Any]) -> bool:
    """Whether nothing may be trained on a row: it says so, or is of a known benchmark."""
    if row.get("evaluation") is True or _IDS.fullmatch(str(row.get("instance_id", ""))[:1024]):
        return True
    source = row.get("source")
    named = source.get("reference") if isinstance(source, Mapping) else None
    return any(_IMAGES.match(str(each)) for each in (named, stated_image(row)) if each)
