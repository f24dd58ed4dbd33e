"""The groups that the adapters of trainers are tested with are what their table says."""

from __future__ import annotations

import pytest
from trainer_groups import CASES, FIT, UNFIT

from hermes_queue.trainers.rows import RowRefused, rows_of


@pytest.mark.parametrize("name", FIT)
def test_a_fit_group_has_the_rows_that_the_table_says(name) -> None:
    rows = rows_of(CASES[name].group, temperature=1.0)
    assert len(rows) == CASES[name].rows
    ids = [each for row in rows for each in row.ids]
    assert len(ids) == len(set(ids))
    assert [sum(row.mask) for row in rows] == [5] * len(rows)


@pytest.mark.parametrize("name", UNFIT)
def test_an_unfit_group_is_refused_for_the_reason_that_the_table_says(name) -> None:
    with pytest.raises(RowRefused) as refused:
        rows_of(CASES[name].group, temperature=1.0)
    assert refused.value.reason == CASES[name].refusal
