"""One schema for flags, YAML files and Python keywords."""

import sys
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest
import yaml

from radiance_jax.config import EngineConfig, GenerateConfig, ServeConfig, known_defaults, parse_mesh
from radiance_jax.errors import UserError
from radiance_jax.flags import default_cache_dir, read_config
from radiance_jax.host_devices import ensure_host_devices
from radiance_jax.settings import SAMPLING, rule_of
from radiance_jax.training.config import FAMILIES
from radiance_jax.training.config import read_config as read_training

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))


def read(*argv: str, schema=ServeConfig, environ=None):
    return read_config(schema, argv, prog="serve", description="", environ=environ or {"HOME": "/home/me"})[0]


@pytest.fixture
def file(tmp_path):
    def write(text: str) -> str:
        (tmp_path / "c.yaml").write_text(text)
        return str(tmp_path / "c.yaml")
    return write


def test_defaults_need_no_flag():
    assert read() == ServeConfig(cache_dir="/home/me/.cache/radiance_jax")
    with pytest.raises(FrozenInstanceError):
        read().port = 1


def test_flags_win_over_the_file_and_the_file_over_defaults(file):
    path = file("max-num-seqs: 4\nmax_model_len: 100\nport: 1\nmesh: tp=2\nwarmup: false\nbit-exact: on\n")
    config = read("m.rad", "--config", path, "--port", "2", "--no-compile-cache")
    assert (config.model, config.max_num_seqs, config.max_model_len, config.port) == ("m.rad", 4, 100, 2)
    assert (config.mesh_size, config.warmup, config.compile_cache, config.bit_exact) == (2, False, False, "on")
    assert read("--config", path, "-tp", "8").mesh == "tp=8"


@pytest.mark.parametrize("argv", [
    ["--tensor-parallel-size", "4"], ["-tp", "4"], ["--tp=4"], ["--mesh", "tp=4"], ["--tensor_parallel_size=4"],
    ["-tp", "4", "--mesh", "tp=4"]])
def test_spellings_of_tensor_parallelism(argv):
    assert read(*argv).mesh == "tp=4"


def test_model_by_position_or_by_flag():
    assert read("a").model == read("--model", "a").model == read("a", "--model", "a").model == "a"


def test_vllm_spelling_of_speculation():
    config = read("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 3}')
    assert (config.num_speculative_tokens, config.spec_ngram_max) == (5, 3)


@pytest.mark.parametrize(("argv", "says"), [
    (["--max-nun-seqs", "4"], "did you mean '--max-num-seqs'"), (["--nonsense"], "unknown flag --nonsense"),
    (["a", "b"], "unexpected argument 'b'"), (["a", "--model", "b"], "two models"),
    (["--max-num-seqs", "x"], "whole number from 1 to 4096; got 'x'"), (["--max-num-seqs", "0"], "got 0"),
    (["--max-num-seqs"], "expected one argument"), (["--dtype", "fp8"], "one of auto, bf16, f32"),
    (["--bit-exact", "yes"], "one of auto, on, off"), (["--num-speculative-tokens", "-1"], "or 'auto'; got -1"),
    (["--num-speculative-tokens", "65"], "from 0 to 64"), (["--spec-ngram-min", "5"], "at most spec_ngram_max"),
    (["--mesh", "tp"], "must read like 'tp=8'"), (["--mesh", "dp=2"], "mesh axes are tp"), (["-tp", "0"], "mesh must"),
    (["-tp", "2", "--mesh", "tp=4"], "contradict"), (["--port", "70000"], "65535"), (["--host", ""], "host must be"),
    (["--draft-model", "d"], "radiance_jax.convert SRC OUT.rad --draft-model DIR"),
    (["--draft_model=d"], "--draft-model"),
    (["--speculative-config", "{"], "JSON object"), (["--speculative-config", '{"model": "d"}'], "convert"),
    (["--speculative-config", '{"num_speculative_token": 3}'], "did you mean 'num_speculative_tokens'"),
    (["--speculative-config", '{"num_speculative_tokens": 3}', "--num-speculative-tokens", "5"], "contradict each other"),
    (["--tp-wire-min-kb", "1048577"], "from 0 to 1048576; got"), (["--seed", "-1"], "from 0 to 9223372036854775807"),
    (["--gpu-memory-utilization", "0"], "from 0.01 to 1; got 0"), (["--gpu-memory-utilization", "1.1"], "from 0.01 to 1"),
    (["--gpu-memory-utilization", "half"], "a number from"), (["--gpu-memory-utilization", "nan"], "a number from"),
    (["--kv-cache-dtype", "fp8"], "kv_cache_dtype must be auto or bf16"),
    (["--kv-cache-dtype", "bf16", "--dtype", "f32"], "kv_cache_dtype must be auto or f32"),
    (["--kv-cache-dtype", "f32"], "answers would change"), (["--enable-prefix-caching"], "keeps no key/value pages"),
    (["--chat-template", ""], "chat_template must be"),
    (["--draft-window", "wide"], "one of fixed, adaptive"), (["--draft-p-min", "1.5"], "from 0 to 1, or 'auto'; got 1.5"),
    (["--draft-p-min", "off"], "a number from 0 to 1, or 'auto'"), (["--draft-short-from", "0"], "got 0"),
    (["--draft-short-from", "never"], "at least 1, or 'auto', or 'off'"),
    (["--config", "/nowhere.yaml"], "cannot read --config /nowhere.yaml"), (["--max-num-s", "4"], "unknown flag")])
def test_wrong_flags(argv, says):
    with pytest.raises(UserError) as caught:
        read(*argv)
    assert says in str(caught.value)


def test_vllms_names_for_memory_and_templates():
    config = read("--gpu-memory-utilization", "0.8", "--kv-cache-dtype", "bfloat16", "--no-enable-prefix-caching",
                  "--chat-template", "t.jinja")
    assert (config.gpu_memory_utilization, config.kv_cache_dtype, config.enable_prefix_caching) == (0.8, "bf16", False)
    assert config.chat_template == "t.jinja"
    assert read("--gpu_memory_utilization=1").gpu_memory_utilization == 1.0
    assert read("--dtype", "float32", "--kv-cache-dtype", "f32").kv_cache_dtype == "f32"
    assert read().gpu_memory_utilization is None and read().kv_cache_dtype == "auto"


@pytest.mark.parametrize(("text", "says"), [
    ("kv-cache-dtype: fp8_e5m2", "kv_cache_dtype"), ("enable-prefix-caching: true", "enable_prefix_caching must be off"),
    ("gpu-memory-utilization: 90", "from 0.01 to 1"), ("gpu-memory-utilisation: 0.9", "did you mean 'gpu_memory_utilization'"),
    ("max-num-seq: 4", "unknown key 'max-num-seq' (did you mean 'max_num_seqs'?)"), ("a: [", "not valid YAML"),
    ("- a", "`name: value`"), ("max-num-seqs: '4'", "whole number"), ("max-num-seqs: 4.0", "whole number"),
    ("max-num-seqs: true", "whole number"), ("warmup: 1", "true or false"), ("model: 3", "non-empty string"),
    ("draft-model: d", "radiance_jax.convert"), ("port: 1\nport-: 2", "unknown key"),
    ("tp: 2\nmesh: tp=4", "contradict"), ("port: 1\nhost: h\nport: 2", "'port' is given twice"),
    ("model: 2024-13-45", "not valid YAML"), ("model: " + "[" * 5000, "not valid YAML"),
    ("port: " + "9" * 5000, "not valid YAML"),
    ("num-speculative-tokens: 2\nspeculative-config: {num_speculative_tokens: 3}", "contradict each other"),
    ("max-num-seqs: 1\nmax_num_seqs: 2", "twice"), ("temperature: hot", "a number from 0 to 100")])
def test_wrong_files_name_the_file(file, text, says):
    path = file(text)
    with pytest.raises(UserError) as caught:
        read("--config", path)
    assert says in str(caught.value) and ("draft" in text or path in str(caught.value))


def test_a_file_may_hold_keys_of_other_doors_and_they_are_named(file):
    path = file("port: 9\ntemperature: 0\nmax-num-seqs: 2\n")
    config, remarks = read_config(GenerateConfig, ["--config", path], prog="generate", description="", environ={})
    assert (config.temperature, config.max_num_seqs) == (0.0, 2)
    assert len(remarks) == 1 and remarks[0].endswith(": port")


def test_python_keywords_are_checked_the_same_way():
    with pytest.raises(UserError) as caught:
        EngineConfig(max_num_seqs=0)
    assert caught.value.param == "max_num_seqs"
    with pytest.raises(UserError, match="did you mean 'mesh'"):
        EngineConfig.of(mehs="tp=2")
    assert EngineConfig(dtype="bfloat16", bit_exact=False).dtype == "bf16"


def test_the_resolved_configuration_shows_all_but_secrets():
    text = " ".join(read("--api-key", "hunter2", "--max-model-len", "99").describe().split())
    assert "api_key=***" in text and "hunter2" not in text and "max_model_len=99" in text and "dtype=auto" in text


def test_how_deep_to_draft(file):
    config = read("--draft-window", "fixed", "--draft-p-min", "0.5", "--draft-short-from", "8")
    assert (config.draft_window, config.draft_p_min, config.draft_short_from) == ("fixed", 0.5, 8)
    assert (read().draft_window, read().draft_p_min, read().draft_short_from) == ("adaptive", "auto", "auto")
    for spelling in ("off", "'off'"):  # YAML reads a bare off as a boolean
        assert read("--config", file(f"draft-short-from: {spelling}\ndraft-p-min: 0")).draft_short_from == "off"


def test_environment(monkeypatch):
    home = {"HOME": "/h"}
    assert default_cache_dir(home) == "/h/.cache/radiance_jax"
    assert default_cache_dir(home | {"XDG_CACHE_HOME": "/x"}) == "/x/radiance_jax"
    assert default_cache_dir(home | {"XDG_CACHE_HOME": "/x", "RADIANCE_CACHE": "/r"}) == "/r"
    assert read("--cache-dir", "/c", environ={"RADIANCE_CACHE": "/r"}).cache_dir == "/c"
    assert read(environ=home | {"RADIANCE_API_KEY": "k"}).api_key == "k"


@pytest.mark.parametrize("key", ["secret\n", " secret", "se\x07cret"])
def test_a_key_that_no_client_could_send_is_refused_and_not_shown(key):
    for give in (lambda: read(environ={"HOME": "/h", "RADIANCE_API_KEY": key}), lambda: read("--api-key", key)):
        with pytest.raises(UserError, match="api_key must be printable") as caught:
            give()
        assert "cret" not in str(caught.value)
    assert read("--api-key", "sésame ouvre-toi").api_key == "sésame ouvre-toi"


def test_help_has_every_field_with_its_default(capsys):
    with pytest.raises(SystemExit) as caught:
        read("--help")
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert "--max-num-seqs N" in text and "(default: 8)" in text and "--no-warmup" in text and "speculation:" in text


def test_meshes():
    assert parse_mesh("tp=8") == {"tp": 8}
    for text in ("", "tp=0", "tp=-1", "tp=2,tp=2", "tp=1e3", "8"):
        with pytest.raises(UserError):
            parse_mesh(text)


def test_host_devices_are_asked_for_only_before_jax(monkeypatch):
    flag = "--xla_force_host_platform_device_count"
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    environ = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}
    assert ensure_host_devices(4, environ) and environ["XLA_FLAGS"] == f"--xla_cpu_enable_fast_math=false {flag}=4"
    assert not ensure_host_devices(8, environ) and environ["XLA_FLAGS"].endswith("=4")
    assert not ensure_host_devices(1, {})
    monkeypatch.setitem(sys.modules, "jax", object())
    assert not ensure_host_devices(4, {})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_shipped_configurations_read_in_their_doors(path):
    assert yaml.safe_load(path.read_text())
    if path.name.startswith("train_"):
        assert read_training(path, ["data=ANSWERS"]).family in FAMILIES
        return
    from radiance_jax.bench.config import SpeedConfig, TileConfig
    from radiance_jax.bench.exactness import ExactnessConfig
    from radiance_jax.bench.spec_config import SpecConfig
    from radiance_jax.training.generate import AnswersConfig
    for schema in (ServeConfig, GenerateConfig, AnswersConfig, SpeedConfig, TileConfig, ExactnessConfig, SpecConfig):
        read_config(schema, ["--config", str(path)], prog="x", description="", environ={})


def test_the_page_says_the_models_own_of_no_field_that_models_do_not_set():
    every = {name: 1 for name in (item.name for item in fields(GenerateConfig))}
    for item in fields(GenerateConfig):
        if rule_of(item).group == SAMPLING and item.default is None and "default" not in rule_of(item).help:
            assert item.name in known_defaults(every), item.name


def test_both_spellings_of_speculation_may_agree():
    config = read("--speculative-config", '{"num_speculative_tokens": 5}', "--num-speculative-tokens", "5")
    assert config.num_speculative_tokens == 5
