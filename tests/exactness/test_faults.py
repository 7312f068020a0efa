"""The suite can see: each fault changes an output and is caught by the test named with it, which passes without it."""

import pytest

from tests.exactness import faults, test_endings
from tests.exactness.lab import DEPTH, Difference, Lab

LEAST = 30


@pytest.fixture(scope="module")
def faulty(folder):
    """One engine whose program holds every device fault. f32, so that roundings of a few bits show."""
    lab = Lab.open("untied", 1, folder, faults.hooks(), dtype="f32", num_speculative_tokens=DEPTH)
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def clean():
    return set()


def run(lab: Lab, test) -> None:
    lab.forget()
    lab.oracles.clear()
    if test.__module__ == test_endings.__name__:
        with lab.script():
            test(lab)
    else:
        test(lab)


@pytest.mark.parametrize("name", (*faults.DEVICE, *faults.HOST))
def test_a_fault_is_caught(faulty, clean, name):
    test = (faults.DEVICE | faults.HOST)[name]
    if test not in clean:
        run(faulty, test)
        clean.add(test)
    try:
        with faults.inject(name, faulty), pytest.raises(Difference):
            run(faulty, test)
    finally:
        faulty.idle_or_restart()


@pytest.mark.parametrize("name", faults.SUMS)
def test_a_fault_of_sums_is_caught(name):
    test = faults.SUMS[name]
    with faults.inject(name), pytest.raises(Difference):
        test(3)


def test_there_are_enough_faults():
    every = [*faults.DEVICE, *faults.HOST, *faults.SUMS]
    assert len(set(every)) == len(every) >= LEAST
    assert set(faults.host.PATCHES) == set(faults.HOST) and set(faults.sums.PATCHES) == set(faults.SUMS)
