"""radiance_jax: LLM inference in JAX with speculative decoding that never changes a bit of the answer.

    from radiance_jax import LLM, SamplingParams
    print(LLM().chat([{"role": "user", "content": "Hello!"}], SamplingParams(temperature=0))[0].outputs[0].text)

Letters used in shapes throughout: B sequences (S slots of them on the device), R rows of a step, K draft depth, N query
heads, G key/value heads, H head size, D model width, F feed-forward width, V vocabulary, P pages, L layers, T context,
M pages of a sequence; a prime marks a padded or per-rank size.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radiance_jax.engine.request import SamplingParams
    from radiance_jax.llm import LLM, CompletionOutput, RequestOutput

__version__ = "0.1.0"
__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Names are looked up on first use, so that doors can set up the platform before anything imports jax."""
    if name == "SamplingParams":
        from radiance_jax.engine.request import SamplingParams
        return SamplingParams
    if name in __all__:
        from radiance_jax import llm
        return getattr(llm, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
