"""What `bench kernels` makes of forms of attention, and how it judges them: with the network's own attention for a kernel."""

import jax.numpy as jnp
import pytest

from radiance_jax.bench import kernels_attention
from radiance_jax.bench.kernels import FORMS, KernelsConfig
from radiance_jax.bench.kernels_attention import attention, parse_form
from radiance_jax.bench.step import StepConfig
from radiance_jax.errors import UserError
from radiance_jax.pallas.paged_attention import AttentionShape, paged_attention


@pytest.mark.parametrize("wrong", ({"split": 32}, {"split": 100}, {"fine": -1}, {"lanes": 3}, {"shape": "8b,default"},
                                   {"launches": "auto,graph"}, {"prompt": -1}))
def test_steps_of_a_form_that_is_none_are_refused(wrong):
    assert StepConfig().split == 256
    with pytest.raises(UserError, match=next(iter(wrong))):
        StepConfig(**wrong)


def test_forms_are_read():
    form = parse_form("2x128x4x264", 1000)
    assert (form.lanes, form.split, form.most, form.stages, form.walkers) == (2, 128, 8, 4, 264)
    grown = parse_form("2x128x4x264x2", 1000)
    assert (form.fine, grown.fine, grown.split, grown.most, grown.walkers) == (None, 256, 128, 5, 264)
    assert all(parse_form(text, 8192) for text in FORMS.split(","))
    for text in ("2x128x4", "2x100x4x132", "axbxcxd", "2x128x0x132", "2x256x4x132x4x1"):
        with pytest.raises(UserError, match="form"):
            parse_form(text, 1000)


@pytest.mark.slow
def test_a_form_is_judged_by_the_oracle_and_by_the_bits_of_its_like(monkeypatch):
    """The second form is like the first and adds a little; the third is wrong."""
    def kernel(q, cache, tables, segments, places, *, share, how):
        rows = q[places.segment[:, None], :, places.index[:, None] * share + jnp.arange(share)].swapaxes(1, 2)
        pages, two, page, size = cache.shape
        y = paged_attention(rows.reshape(len(rows), -1, size), cache.reshape(pages, 2, two // 2, page, size), tables, segments,
                            AttentionShape(height=kernels_attention.HEIGHT, loop=False))
        return y.reshape(len(rows), -1) + {4: 0.0, 3: 2.0**-9, 2: 1.0}[how.stages]

    monkeypatch.setattr(kernels_attention, "verify_attention", kernel)
    for name, value in {"ROUNDS": 1, "CHAIN": 1, "SLOTS": 2, "CASES": ((1, 1), (2, 2)), "HEADS": 4, "GROUPS": 2, "SHARE": 2,
                        "SIZE": 64, "HEIGHT": 16}.items():
        monkeypatch.setattr(kernels_attention, name, value)
    out = attention(KernelsConfig(context="64", forms="0x64x4x132,0x64x3x132,0x64x2x132"), 1e12)
    assert [(each["context"], each["sequences"], each["rows_each"]) for each in out] == 3 * [
        (64, 1, 1), (64, 2, 2)]
    assert [each["wrong"] for each in out] == 4 * [False] + 2 * [True]
    assert all(each["differ"] == 0 for each in out[:2]) and all(each["differ"] > 0 for each in out[2:])
    assert all(each["us"] > 0 and each["of_copy_bandwidth"] > 0 for each in out)
