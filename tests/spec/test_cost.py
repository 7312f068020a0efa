"""Prices: medians of what was measured, filed by what is charged alike; on disk and back."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radiance_jax.models.rows import rows_computed
from radiance_jax.spec.cost import CostTable, profile, program_charge, tiled_charge

HEIGHTS = ((32, 17), (8, 3), (2, 1))


def test_steps_of_as_many_tiles_are_filed_together():
    charge = tiled_charge(40, lambda rows: (rows_computed(rows, HEIGHTS), -(-rows // 4)))
    assert charge[1:3] == (2, 2) and charge[3:9] == (4, 4, 8, 8, 8, 8) and charge[9:11] == (10, 10) and charge[11] == 12
    for rows in range(1, 41):
        assert rows_computed(rows, HEIGHTS) == rows_computed(charge[rows], HEIGHTS) and charge[charge[rows]] == charge[rows]
    assert program_charge((8, 32)) == (8,) * 9 + (32,) * 24


@given(st.lists(st.tuples(st.integers(1, 32), st.floats(1e-4, 10)), max_size=40))
def test_more_rows_never_cost_less_and_every_row_count_has_a_price(steps):
    table = CostTable(program_charge((4, 8, 32)))
    for rows, seconds in steps:
        table.observe(rows, seconds)
    curve = table.curve(60)
    assert len(curve) > 60 and (curve > 0).all() and (np.diff(curve) >= -1e-12).all()


def test_the_median_of_the_last_steps_counts():
    table = CostTable(tuple(range(9)))
    for seconds in (1.0, 1.0, 50.0, 1.0, 1.2):
        table.observe(2, seconds)
    assert table.curve(8)[2] == 1.0
    for _ in range(16):
        table.observe(2, 3.0)
    assert table.curve(8)[2] == 3.0, "a machine that got slower is noticed within half a window"
    table.observe(4, 9.0)
    assert table.curve(8)[3] == 6.0 and table.curve(8)[8] == 18.0 and table.curve(8)[1] == 3.0
    for rows, seconds in ((0, 1.0), (3, 0.0), (3, float("nan"))):
        table.observe(rows, seconds)
    assert table.measured() == {2: 3.0, 4: 9.0}


def test_what_is_not_met_keeps_pace_with_what_is():
    """A machine that is five times as slow is so for the steps that are not taken, too; and a disturbance passes."""
    table = CostTable(program_charge((8, 32)))
    for _ in range(5):
        table.observe(8, 1.0)
        table.observe(32, 2.0)
    for _ in range(40):
        table.observe(8, 5.0)
    assert table.measured() == pytest.approx({8: 5.0, 32: 10.0})
    for _ in range(20):
        table.observe(8, 5.0)
        table.observe(32, 30.0)
    assert table.measured() == pytest.approx({8: 5.0, 32: 30.0}, rel=0.4), "what is met is priced as it is"
    for seconds in (5.0, 5.0, 90.0, 5.0):
        table.observe(8, seconds)
    assert table.measured()[8] == pytest.approx(5.0, rel=0.4)


def test_steps_of_another_kind_keep_pace_too():
    """Steps with a drafter are not taken while the machine becomes three times as slow: they would be, too."""
    plain = CostTable(program_charge((8, 32)))
    drafting = CostTable(plain.charge, plain)
    plain.observe(8, 1.0)
    drafting.observe(8, 1.2)
    assert drafting.curve(8)[8] == 1.2
    for _ in range(40):
        plain.observe(8, 3.0)
    assert drafting.measured() == pytest.approx({8: 3.6}) and drafting.curve(8)[8] == pytest.approx(3.6)
    assert plain.measured() == {8: 3.0} and not plain.knows(32) and not drafting.knows(32)
    drafting.observe(32, 4.0)
    assert plain.measured() == {8: 3.0}, "what a drafter's steps cost is no price of a step without"


def test_prices_are_kept_on_disk_and_damage_is_not_believed(tmp_path):
    table, path = CostTable(program_charge((8, 32))), tmp_path / "prices" / "x.json"
    table.observe(3, 0.5)
    table.observe(20, 0.75)
    table.save(path)
    again = CostTable(program_charge((8, 32)))
    assert again.load(path) and again.measured() == table.measured() == {8: 0.5, 32: 0.75}
    assert [each.name for each in path.parent.iterdir()] == ["x.json"]
    for text in ("", "[]", '{"format": 1}', '{"format": 9, "seconds": {}}', '{"format": 1, "seconds": {"8": ["x"]}}',
                 '{"format": 1, "seconds": {}}', json.dumps({"format": 1, "seconds": {"7": [1.0], "-1": [2.0], "999": [1.0]}})):
        path.write_text(text)
        fresh = CostTable(program_charge((8, 32)))
        assert not fresh.load(path) and not fresh.measured(), text
    assert not CostTable((0, 1)).load(tmp_path / "none.json")


def test_prices_of_both_kinds_come_back_as_they_were(tmp_path):
    made = CostTable(program_charge((8, 32)))
    tables = made, CostTable(made.charge, made)
    for table, seconds in zip(tables, (0.5, 0.625), strict=True):
        table.observe(3, seconds)
        table.observe(20, 2 * seconds)
        table.save(tmp_path / f"{seconds}.json")
    first = CostTable(made.charge)
    again = first, CostTable(made.charge, first)
    for table, name in zip(again, ("0.5.json", "0.625.json"), strict=True):
        assert table.load(tmp_path / name)
    assert [each.measured() for each in again] == [{8: 0.5, 32: 1.0}, {8: 0.625, 32: 1.25}]
    again[1].observe(3, 1.0)
    assert again[0].measured()[8] > 0.5, "what was read moves with what is met since, in either table"


def test_profiling_stops_in_time_but_never_before_two_prices():
    now, asked = [0.0], []

    def run(rows: int) -> float | None:
        asked.append(rows)
        now[0] += rows
        return None if rows == 4 else float(rows)

    table = CostTable(tuple(range(9)))
    profile(table, run, 8, limit=0.5, clock=lambda: now[0])
    assert asked == [1, 2] and table.measured() == {1: 1.0, 2: 2.0}
    profile(table, run, 8, limit=1e9, clock=lambda: now[0], rounds=2)
    assert table.measured() == pytest.approx({n: float(n) for n in (1, 2, 3, 5, 6, 7, 8)})
