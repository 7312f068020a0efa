"""Refusals, and what start-up says about the wire."""

import pytest

from radiance_jax.config import EngineConfig
from radiance_jax.engine.choices import choose
from radiance_jax.errors import UserError
from radiance_jax.mesh import make_mesh, one_host, with_remote
from radiance_jax.wire import EXACT, Wire


@pytest.mark.parametrize(("options", "says"), [
    (dict(tp_wire="wht8"), "tp_wire must be one of exact, wht6; got 'wht8'"),
    (dict(tp_wire="WHT6"), "got 'WHT6'"),
    (dict(mesh="tp=8", tp_wire="wht6"), "made for 2, 3 and 4 ranks; got tp=8"),
    (dict(mesh="tp=5", tp_wire="wht6"), "got tp=5"),
    (dict(mesh="tp=2", tp_wire="wht6", bit_exact="on"), "tp_wire must be exact with bit_exact=on"),
    (dict(mesh="tp=2", tp_wire="wht6", dtype="f32"), "carries bf16; got dtype=f32"),
    (dict(tp_wire_min_kb=-1), "tp_wire_min_kb must be a whole number from 0")])
def test_a_wire_that_cannot_be_had_is_refused_with_the_reason(options, says):
    with pytest.raises(UserError) as caught:
        EngineConfig(**options)
    assert says in str(caught.value) and caught.value.param.startswith("tp_wire")


def test_a_lossy_wire_ends_the_promise_and_one_device_has_no_wire():
    assert choose(EngineConfig(mesh="tp=2"), "cpu").exact and EngineConfig(mesh="tp=2").wire == EXACT
    lossy = EngineConfig(mesh="tp=2", tp_wire="wht6", tp_wire_min_kb=64)
    assert not choose(lossy, "cpu").exact and lossy.wire == Wire(name="wht6", least_bytes=64 << 10)
    alone = EngineConfig(tp_wire="wht6", bit_exact="on")
    assert alone.wire == EXACT and choose(alone, "cpu").exact


def test_host_devices_have_no_remote_writes():
    mesh = make_mesh(8)
    assert not one_host(mesh) and with_remote(EXACT, mesh) == EXACT
