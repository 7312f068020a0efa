"""The flags of `bench wires`."""

from dataclasses import dataclass

from radiance_jax.bench.config import BENCH, numbers, words
from radiance_jax.config import EngineConfig
from radiance_jax.errors import UserError
from radiance_jax.settings import MODEL, setting

PLAIN = ("psum", "one-shot", "two-shot", "remote", "lossy")
ADDING = ("psum+add", "one-shot+add", "two-shot+add", "remote+add", "lossy+add")
FORMS = PLAIN + ADDING


@dataclass(frozen=True, kw_only=True)
class WiresConfig(EngineConfig):
    """What `bench wires` sends, and how often."""

    mesh: str = setting(str, "tp=2", "devices by axis, as in tp=8; 2 at least", MODEL)
    sizes: str = setting(str, "4,8,32,128,512,4096,32768", "messages in KiB of bf16", BENCH)
    odd_sizes: str = setting(str, "1,3,577,4097,12345", "messages in elements whose bits are checked too", BENCH)
    forms: str = setting(str, ",".join(FORMS), "what is measured; +add: with the addition to the residual stream", BENCH)
    repeats: int | None = setting(int, None, "times each program runs (default: 40 on a GPU, else 5)", BENCH, low=3)
    chain: str | None = setting(str, None, "all-reduces inside the short and the long program; a time is the difference over "
                                "the difference (default: 8,40 on a GPU, else 1,3)", BENCH)
    activations: bool = setting(bool, True, "relative errors also on what the model's layers send", BENCH)
    cell_timeout: int = setting(int, 120, "seconds after which a stuck measurement ends the process; what was measured before is "
                                "in the file", BENCH, low=1)
    picture: str | None = setting(str, None, "PNG or SVG file to draw (needs matplotlib; default: none)", BENCH)
    out: str | None = setting(str, None, "JSON file to write (default: none)", BENCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        words("forms", self.forms, FORMS)
        for name in ("sizes", "odd_sizes"):
            numbers(name, getattr(self, name))
        if self.mesh_size < 2:
            raise UserError("mesh must be of at least 2 devices: one device sends nothing; use --mesh tp=2 or more", param="mesh")
        if self.chain is not None and (len(self.lengths(True)) != 2 or self.lengths(True)[0] >= self.lengths(True)[1]):
            raise UserError(f"chain must be two numbers, the smaller first; got {self.chain!r}", param="chain")

    def lengths(self, gpu: bool) -> tuple[int, ...]:
        return numbers("chain", self.chain or ("8,40" if gpu else "1,3"))
