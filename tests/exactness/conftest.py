"""Laboratories, one for each mesh size, made once."""

import pytest

from tests.exactness.lab import Lab

KIND = {1: "untied", 2: "tied", 4: "biased"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory, request):
    """Of models; compiled programs are kept in it from one run of pytest to the next (they are found by their text)."""
    folder = tmp_path_factory.mktemp("exactness")
    (folder / "cache").symlink_to(request.config.cache.mkdir("exactness"))
    return folder


@pytest.fixture(scope="session")
def labs(folder):
    made: dict[int, Lab] = {}

    def lab(tp: int) -> Lab:
        if tp not in made:
            made[tp] = Lab.open(KIND[tp], tp, folder)
        made[tp].forget()
        return made[tp]

    yield lab
    for each in made.values():
        each.close()


@pytest.fixture(params=(1, pytest.param(2, marks=pytest.mark.slow), 4), ids=lambda tp: f"tp{tp}")
def lab(labs, request):
    return labs(request.param)


@pytest.fixture(params=(1, 4), ids=lambda tp: f"tp{tp}")
def script_lab(labs, request):
    """A laboratory whose target writes the script."""
    lab = labs(request.param)
    with lab.script():
        yield lab
