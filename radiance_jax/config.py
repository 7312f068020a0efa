"""The configuration of every door: Python keywords, flags and YAML keys are these fields.

A field is declared once, with its type, default, help text and allowed values; the checks of `settings.py`
and the command line of `flags.py` both come from that declaration.
"""

import re
from dataclasses import dataclass, fields
from typing import Any, Literal

from radiance_jax.engine.request import MAX_STOP_TOKENS, SamplingParams
from radiance_jax.errors import UserError
from radiance_jax.settings import EXACT, MEMORY, MODEL, PROMPT, SAMPLING, SERVER, SPEC, START, Config, rule_of, setting
from radiance_jax.wire import NAMES, Wire, check_wire

MAX_DRAFT_DEPTH = 64
MESH_AXES = ("tp",)


def parse_mesh(text: str, axes: tuple[str, ...] = MESH_AXES) -> dict[str, int]:
    """`"tp=8"` to `{"tp": 8}`; axes are separated by commas."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([a-z]+)\s*=\s*([1-9][0-9]{0,3})\s*", part)
        if not match or match[1] in sizes:
            raise UserError(f"mesh must read like '{','.join(f'{axis}=8' for axis in axes)}'; got {text!r}", param="mesh")
        if match[1] not in axes:
            raise UserError(f"mesh axes are {', '.join(axes)}; got {match[1]!r}", param="mesh")
        sizes[match[1]] = int(match[2])
    return sizes


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Config):
    """Everything the engine needs to start. None means that the engine decides from model and device."""

    model: str | None = setting(str, None, "a .rad file, a model folder, a GGUF file or a hub id such as org/name "
                                "(default: the default model)", MODEL)
    mesh: str = setting(str, "tp=1", "devices by axis, as in tp=8", MODEL)
    dtype: Literal["auto", "bf16", "f32"] = setting(
        str, "auto", "dtype of weights and activations", MODEL, choices=("auto", "bf16", "f32"),
        synonyms={"bfloat16": "bf16", "float32": "f32"})
    max_model_len: int | None = setting(int, None, "longest prompt plus answer, in tokens", MODEL, low=2)
    chat_template: str | None = setting(str, None, "file with a jinja2 chat template (default: the model's own)", MODEL)

    max_num_seqs: int = setting(int, 8, "sequences decoded together", MEMORY, low=1, high=4096)
    max_num_batched_tokens: int | None = setting(int, None, "most token rows in one step", MEMORY, low=1)
    kv_pages: int | None = setting(int, None, "pages in the key/value pool", MEMORY, low=1)
    page_size: int | None = setting(int, None, "tokens in a page", MEMORY, low=1)
    gpu_memory_utilization: float | None = setting(
        float, None, "share of the memory that weights, workspace, state and key/value pool may fill together (default: "
        "0.9 of a device's, 0.5 of a CPU host's with at most an eighth for the pool)", MEMORY, low=0.01, high=1.0)
    kv_cache_dtype: str = setting(str, "auto", "dtype of keys and values: auto, or the one of dtype", MEMORY)
    enable_prefix_caching: bool = setting(bool, False, "not in this version: only no is taken", MEMORY)

    bit_exact: Literal["auto", "on", "off"] = setting(
        str, "auto", "whether an answer's bits may depend on nothing but its request", EXACT,
        choices=("auto", "on", "off"))
    tp_wire: Literal["exact", "wht6"] = setting(
        str, "exact", "what devices send each other: exact sums, or wht6, a lossy form of 6 bits (2 devices) or 8 (3 and 4)",
        EXACT, choices=NAMES)
    tp_wire_min_kb: int = setting(int, 128, "KiB from which on a message takes a lossy wire; smaller ones are exact", EXACT,
                                  low=0, high=1 << 20)
    row_tile: int | None = setting(int, None, "rows in every tile of a step (default: several heights)", EXACT, low=1)
    seed: int = setting(int, 0, "seed of requests that bring none", EXACT, low=0, high=2**63 - 1)

    num_speculative_tokens: int | Literal["auto"] = setting(
        int, "auto", "draft tokens verified at once, at most; auto: the depth that the drafter in the model's file declares, "
        "without one 7; 0 turns drafting off", SPEC, low=0, high=MAX_DRAFT_DEPTH,
        word="auto")
    drafter: Literal["auto", "off"] = setting(
        str, "auto", "whether the drafter in the model's file proposes, where there is one; off: as if there were none", SPEC,
        choices=("auto", "off"))
    spec_ngram: int | None = setting(int, None, "tokens that prompt lookup may propose; 0 turns lookup off", SPEC,
                                     low=0, high=MAX_DRAFT_DEPTH)
    spec_ngram_max: int = setting(int, 4, "longest n-gram looked up", SPEC, low=1, high=32)
    spec_ngram_min: int = setting(int, 2, "shortest n-gram looked up", SPEC, low=1, high=32)

    draft_window: Literal["fixed", "adaptive"] = setting(
        str, "adaptive", "fixed: always draft as many tokens as may be; adaptive: as many as gain time, none if none does", SPEC,
        choices=("fixed", "adaptive"))
    draft_p_min: float | Literal["auto"] = setting(
        float, "auto", "cut a draft at the first token whose chance of acceptance is below this; auto: 0, adaptive prices "
        "each token", SPEC, low=0.0, high=1.0, word="auto")
    draft_short_from: int | Literal["auto", "off"] = setting(
        int, "auto", "decoding sequences from which drafts are cut to a short block; auto: off for prompt lookup", SPEC, low=1,
        word="auto|off")

    cache_dir: str | None = setting(
        str, None, "folder of converted models and compiled programs (default: $RADIANCE_CACHE, else "
        "$XDG_CACHE_HOME/radiance_jax, else ~/.cache/radiance_jax)", START)
    compile_cache: bool = setting(bool, True, "keep compiled programs on disk", START)
    warmup: bool = setting(bool, True, "compile every program before the first request", START)
    log_level: str = setting(str, "info", "how much to log", START, choices=("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_mesh(self.mesh)
        check_wire(self.tp_wire, self.mesh_size, bit_exact=self.bit_exact, dtype=self.dtype)
        self._check_cache()
        if self.spec_ngram_min > self.spec_ngram_max:
            raise UserError(f"spec_ngram_min must be at most spec_ngram_max ({self.spec_ngram_max}); got "
                            f"{self.spec_ngram_min}", param="spec_ngram_min")

    def _check_cache(self) -> None:
        own, word = "bf16" if self.dtype == "auto" else self.dtype, self.kv_cache_dtype.lower()
        wanted = {"bfloat16": "bf16", "float32": "f32"}.get(word, word)
        if wanted not in ("auto", own):
            raise UserError(f"kv_cache_dtype must be auto or {own}, the dtype of weights and activations; got "
                            f"{self.kv_cache_dtype!r}. Keys and values in another dtype would be rounded again, and answers "
                            "would change; this version has no such cache.", param="kv_cache_dtype")
        object.__setattr__(self, "kv_cache_dtype", wanted)
        if self.enable_prefix_caching:
            raise UserError("enable_prefix_caching must be off: this version keeps no key/value pages after their sequence "
                            "has ended, so there is nothing to find again. Leave the flag out.",
                            param="enable_prefix_caching")

    @property
    def wire(self) -> Wire:
        """What the flags ask for; with one device nothing is sent."""
        return Wire(name=self.tp_wire if self.mesh_size > 1 else "exact", least_bytes=self.tp_wire_min_kb << 10)

    @property
    def mesh_size(self) -> int:
        """Devices the mesh asks for."""
        size = 1
        for count in parse_mesh(self.mesh).values():
            size *= count
        return size


@dataclass(frozen=True, kw_only=True)
class ServeConfig(EngineConfig):
    """The engine's configuration and the server's own."""

    host: str = setting(str, "127.0.0.1", "address to listen on", SERVER)
    port: int = setting(int, 8000, "port to listen on; 0 takes a free one", SERVER, low=0, high=65535)
    served_model_name: str | None = setting(str, None, "model name in the API (default: the engine's)", SERVER)
    api_key: str | None = setting(str, None, "key that clients must send (default: $RADIANCE_API_KEY)", SERVER,
                                  secret=True)
    max_queue: int = setting(int, 256, "answers that may wait beyond max_num_seqs before 503", SERVER, low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.api_key is not None and (self.api_key != self.api_key.strip() or not self.api_key.isprintable()):
            raise UserError("api_key must be printable, without spaces or line ends around it, or no client could send it; got one "
                            f"of {len(self.api_key)} characters that is not (a file read into the environment may end its line)",
                            param="api_key")


@dataclass(frozen=True, kw_only=True)
class GenerateConfig(EngineConfig):
    """The engine's configuration, one prompt and how to draw its answer (None: the model's own default)."""

    prompt: str | None = setting(str, None, "text to continue", PROMPT)
    chat: str | None = setting(str, None, "user message, put through the model's chat template", PROMPT)
    system: str | None = setting(str, None, "system message before --chat", PROMPT)

    max_tokens: int = setting(int, 256, "longest answer, in tokens", SAMPLING, low=1)
    min_tokens: int = setting(int, 0, "shortest answer, in tokens", SAMPLING, low=0)
    temperature: float | None = setting(float, None, "0 takes the likeliest token", SAMPLING, low=0, high=100)
    top_k: int | None = setting(int, None, "draw among the k likeliest; 0: all", SAMPLING, low=-1)
    top_p: float | None = setting(float, None, "draw within this share of the mass", SAMPLING, low=0, high=1)
    min_p: float | None = setting(float, None, "drop tokens below this share of the likeliest", SAMPLING, low=0, high=1)
    presence_penalty: float | None = setting(float, None, "penalty on tokens of the answer so far (default: 0)", SAMPLING,
                                             low=-2, high=2)
    frequency_penalty: float | None = setting(float, None, "the same, by how often they came (default: 0)", SAMPLING, low=-2,
                                              high=2)
    repetition_penalty: float | None = setting(float, None, "divides logits of tokens of prompt and answer", SAMPLING, low=1e-3,
                                               high=1e3)
    stop: tuple[str, ...] = setting(str, (), "text that ends the answer; may be repeated", SAMPLING, many=True)
    stop_token_ids: tuple[int, ...] = setting(
        int, (), f"token that ends the answer; may be repeated, at most {MAX_STOP_TOKENS}", SAMPLING, many=True, low=0)
    ignore_eos: bool = setting(bool, False, "go on after the model's end token", SAMPLING)
    max_draft_tokens: int | None = setting(int, None, "draft tokens for this answer, at most (default: the engine's depth)",
                                           SAMPLING, low=0)

    def sampling(self, defaults: dict[str, Any]) -> SamplingParams:
        """The parameters of the answer, over the model's `defaults`."""
        names = [item.name for item in fields(self) if rule_of(item).group == SAMPLING]
        chosen = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return SamplingParams(**({"seed": self.seed} | known_defaults(defaults) | chosen))


def known_defaults(defaults: dict[str, Any]) -> dict[str, Any]:
    """The entries of a `generation_config.json` that are sampling parameters here."""
    allowed = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return {name: defaults[name] for name in allowed if defaults.get(name) is not None}
