"""Eight host devices for every test, before jax starts; and what belongs together when several processes divide the tests."""

import os

import pytest

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")

SHARED = ("neural_labs", "labs", "harness")  # fixtures whose engines take long to compile: who asks for one sits with the others


def pytest_collection_modifyitems(items):
    """Groups for `-n 2 --dist loadgroup` (pytest-xdist): by shared engines, else by file. Without it they mean nothing."""
    for item in items:
        group = next((name for name in SHARED if name in item.fixturenames), item.path.name)
        item.add_marker(pytest.mark.xdist_group(group))
