"""A drafter merged into a container: what is stored, what comes back, what is refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from radiance_jax.container.conversion import convert
from radiance_jax.container.drafter import drafter_of, open_drafter
from radiance_jax.container.rad import open_rad
from radiance_jax.container.rad_writer import RadWriter
from radiance_jax.container.source import open_model
from radiance_jax.convert import main
from radiance_jax.errors import ModelError
from tests.tiny_model import make

GOLDEN = Path(__file__).parent.parent / "golden" / "draft"
VARIANTS = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
TARGET = {"hidden_size": 32, "vocab_size": 101, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
          "head_dim": 8, "intermediate_size": 40}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("target") / "target", **TARGET)


def published(folder: Path, variant: str, *, weights=None, **changes) -> Path:
    """A golden drafter with another config.json (None removes a key; `dflash_config` is changed key by key) or other weights."""
    shutil.copytree(GOLDEN / variant, folder)
    raw = json.loads((folder / "config.json").read_text())
    nested = changes.pop("dflash_config", {})
    raw = {key: value for key, value in (raw | changes).items() if value is not None}
    if nested:
        raw["dflash_config"] = {key: value for key, value in (raw["dflash_config"] | nested).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(raw))
    if weights is not None:
        stored = load_file(folder / "model.safetensors")
        save_file(weights(stored), folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_merged_drafter_is_the_drafter_of_its_folder(target, variant, tmp_path):
    rad = open_rad(convert(target, tmp_path / "m.rad", "f32", draft_path=GOLDEN / variant).path)
    rad.verify()
    back, own = drafter_of(rad), open_drafter(GOLDEN / variant)
    assert back.drafter == own.drafter and hash(back.drafter) == hash(own.drafter) and back.raw == own.raw
    assert back.tensors.keys() == own.tensors.keys() and back.sha256 == own.sha256 != {}
    for name in own.tensors:
        np.testing.assert_array_equal(back.read(name), own.read(name))
    assert load_file(rad.path).keys() == rad.entries.keys()  # any reader of safetensors can list it
    again = open_rad(convert(rad.path, tmp_path / "again.rad", "f32").path)  # a container converted again keeps its drafter
    assert drafter_of(again).drafter == own.drafter and again.draft_source == rad.draft_source


def test_one_drafter_takes_the_place_of_another_and_both_types_of_weights_are_cast(target, tmp_path):
    first = convert(target, tmp_path / "a.rad", draft_path=GOLDEN / "dflash_zlab").path
    second = open_rad(convert(first, tmp_path / "b.rad", draft_path=GOLDEN / "dflash_speculators").path)
    drafter = drafter_of(second)
    assert drafter.drafter.config.architecture == "DFlashSpeculator" and drafter.tensors["fc.weight"].stored == "BF16"
    table = drafter.tensors["d2t"]
    assert table.stored == "I32" and np.array_equal(drafter.read("d2t"), open_drafter(GOLDEN / "dflash_speculators").read("d2t"))
    assert drafter_of(open_model(target)) is None and drafter_of(open_rad(convert(target, tmp_path / "c.rad").path)) is None


def test_copies_of_the_targets_ends_are_not_stored_again(target, tmp_path):
    """DeepSpec stores the target's embedding and head with every drafter."""
    ends = load_file(target / "model.safetensors")["model.embed_tokens.weight"]

    def with_copies(stored):
        return stored | {"embed_tokens.weight": ends, "lm_head.weight": ends}  # the target's head is tied

    folder = published(tmp_path / "copies", "dspark_deepspec_vanilla", weights=with_copies)
    kept = drafter_of(open_rad(convert(target, tmp_path / "m.rad", draft_path=folder).path))
    assert not kept.drafter.config.own_embed and not kept.drafter.config.own_head
    assert open_drafter(folder).tensors.keys() - kept.tensors.keys() == {"embed_tokens.weight", "lm_head.weight"}
    own = lambda stored: with_copies(stored) | {"lm_head.weight": ends + 1}  # noqa: E731
    other = published(tmp_path / "other", "dspark_deepspec_vanilla", weights=own)
    kept = drafter_of(open_rad(convert(target, tmp_path / "n.rad", draft_path=other).path))
    assert not kept.drafter.config.own_embed and kept.drafter.config.own_head


@pytest.mark.parametrize("changes, param, values", [
    ({"hidden_size": 48}, "hidden_size", ("32", "48")), ({"vocab_size": 103}, "vocab_size", ("101", "103")),
    ({"num_hidden_layers": 7}, "num_target_layers", ("6", "7"))])
def test_a_drafter_of_another_target_is_refused_with_both_values(changes, param, values, tmp_path):
    other = make(tmp_path / "other", **(TARGET | changes))
    with pytest.raises(ModelError) as caught:
        convert(other, tmp_path / "m.rad", draft_path=GOLDEN / "dflash_zlab")
    assert caught.value.param == param and all(value in str(caught.value) for value in values)
    assert not (tmp_path / "m.rad").exists()


def test_a_tap_out_of_range_is_refused_with_both_values(tmp_path):
    shallow = make(tmp_path / "other", **(TARGET | {"num_hidden_layers": 4}))
    folder = published(tmp_path / "d", "dflash_zlab", num_target_layers=None)
    with pytest.raises(ModelError, match=r"below the target's number of layers, 4; got 4") as caught:
        convert(shallow, tmp_path / "m.rad", draft_path=folder)
    assert caught.value.param == "target_layer_ids"
    with pytest.raises(ModelError, match="target_layer_ids must be below num_target_layers"):
        open_drafter(published(tmp_path / "e", "dflash_zlab", num_target_layers=4))


def without(stored, name):
    return {key: value for key, value in stored.items() if key != name}


@pytest.mark.parametrize("variant, change, words", [
    ("dflash_zlab", lambda s: without(s, "layers.1.mlp.up_proj.weight"), "missing: layers.1.mlp.up_proj.weight"),
    ("dflash_zlab", lambda s: s | {"layers.0.mlp_conv.base_kernel": s["norm.weight"]}, "unknown: layers.0.mlp_conv.base_kernel"),
    ("dflash_zlab", lambda s: s | {"fc.weight": s["fc.weight"][:, :9].copy()}, "fc.weight must have shape [32, 64]; got [32, 9]"),
    ("dflash2_zlab", lambda s: s | {"candidate_selector.successor_codebook.weight": s["norm.weight"]}, "under two names"),
    ("dflash_speculators", lambda s: s | {"d2t": s["d2t"].astype(np.float32)}, "d2t must be stored as one of I64, I32"),
    ("dspark_modelopt", lambda s: without(s, "markov_w2.weight"), "missing: markov_head.markov_w2.weight")])
def test_tensors_that_do_not_fit_are_named(variant, change, words, tmp_path):
    with pytest.raises(ModelError) as caught:
        open_drafter(published(tmp_path / "d", variant, weights=change))
    assert words in str(caught.value)


def test_a_table_that_leads_out_of_the_vocabulary_is_refused(target, tmp_path):
    folder = published(tmp_path / "d", "dflash_speculators", weights=lambda s: s | {"d2t": s["d2t"] + 60})
    with pytest.raises(ModelError, match=r"d2t must lead to token ids below vocab_size \(101\)"):
        convert(target, tmp_path / "m.rad", draft_path=folder)
    assert not (tmp_path / "m.rad").exists()


def test_a_drafter_in_shards_and_one_without_its_weights(target, tmp_path):
    folder = published(tmp_path / "d", "dflash2_zlab")
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"must hold model.safetensors or model.safetensors.index.json"):
        open_drafter(folder)
    names = sorted(stored)
    home = {name: f"model-{1 + number % 2:05}-of-00002.safetensors" for number, name in enumerate(names)}
    for shard in set(home.values()):
        save_file({name: stored[name] for name in names if home[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": home}))
    kept = drafter_of(open_rad(convert(target, tmp_path / "m.rad", "f32", draft_path=folder).path))
    assert kept.drafter == open_drafter(GOLDEN / "dflash2_zlab").drafter and len(kept.sha256) == 3
    np.testing.assert_array_equal(kept.read("fc.weight"), stored["fc.weight"])


def test_half_a_drafter_is_refused(target, tmp_path):
    """Tensors without their configuration, or the other way round, as other tools may write them."""
    source = open_model(target)
    lone = {"draft.fc.weight": ((2,), np.dtype(np.float32))}
    for name, extra, draft in (("a", lone, None), ("b", {}, {"config": {}, "source": {}})):
        weights = {key: (info.shape, np.dtype(np.float32)) for key, info in source.tensors.items()} | extra
        with RadWriter(tmp_path / f"{name}.rad", weights=weights, files={}, config=source.config, precision="f32", source={},
                       draft=draft) as writer:
            for key in writer.names:
                writer.add(key, np.zeros(*weights[key]))
        with pytest.raises(ModelError, match="must have both its tensors and draft_config"):
            open_rad(tmp_path / f"{name}.rad")


def test_the_command_merges_and_names_what_is_wrong(target, tmp_path, capsys):
    out = tmp_path / "m.rad"
    assert main([str(target), str(out), "--draft-model", str(GOLDEN / "dflash2_zlab")]) == 0
    assert drafter_of(open_rad(out)).drafter.name == "DFlash2"
    assert main([str(target), str(out), "--force", "--draft-model", str(target)]) == 2
    assert "architectures must be a list with one of DFlashDraftModel" in capsys.readouterr().err
    assert drafter_of(open_rad(out)).drafter.name == "DFlash2"  # the file of before is untouched


def test_reading_a_container_with_a_drafter_needs_no_network_code_until_it_is_asked_for(target, tmp_path):
    out = convert(target, tmp_path / "m.rad", draft_path=GOLDEN / "dflash_zlab").path
    code = f"import sys; from radiance_jax.container.rad import open_rad; open_rad({str(out)!r}); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
