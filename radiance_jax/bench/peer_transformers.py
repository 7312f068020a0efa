"""Hugging Face transformers as a peer to measure against: greedy decoding of given prompts, one at a time.

Standalone: it imports nothing of this package, and runs under any Python that has torch, transformers and safetensors, so
a benchmark starts it as a subprocess in another environment.

    python peer_transformers.py --model MODEL.rad --dtype bf16

The model is a Hugging Face folder or a `.rad` (a safetensors file with its configuration in the metadata). It is loaded
once; then each line on standard input is a task, {"mode": "static", "prompts": [[1, 2, 3]], "max_tokens": 64}, and each
line on standard output its answers. The end of sequence is ignored, so every answer has exactly `max_tokens` tokens.

Modes. static: the cache has a fixed size, which lets transformers compile the step on a GPU. lookup: prompt lookup decoding
with its own defaults but for the number of tokens, `--lookup-tokens` (transformers has no static cache for it). dynamic: as
`generate` does it without options.

What is measured. `seconds` is the whole call of `generate`; `first_s` is when the first tokens were there (as the stopping
criteria see it, so no streamer slows the loop), and `first_tokens` how many those were.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

# Python puts a script's folder first on the path, and this one has an http.py, which transformers would take for Python's own.
sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != Path(__file__).resolve().parent]

MODES = ("static", "lookup", "dynamic")


def missing(error: ImportError) -> SystemExit:
    return SystemExit(f"this Python ({sys.executable}) must have torch, transformers and safetensors; {error}. Install them, or "
                      "name another Python with --peer-python.")


def load(path: Path, dtype, device: str):
    """The model, ready for inference."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if path.is_dir():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    else:
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if "config" not in metadata:
                raise SystemExit(f"--model must be a model's folder or a .rad; {path} has no configuration in its metadata")
            raw = json.loads(metadata["config"])
            weights = {name: file.get_tensor(name) for name in file.keys() if not name.startswith(("file/", "draft."))}
        config = AutoConfig.for_model(raw.pop("model_type"), **raw)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        lost, unknown = model.load_state_dict({name: each.to(dtype) for name, each in weights.items()}, strict=False)
        if set(lost) - {"lm_head.weight"} or unknown or (lost and not config.tie_word_embeddings):
            raise SystemExit(f"{path} does not fit transformers' {type(model).__name__}: without {sorted(lost)[:3]}, with "
                             f"{sorted(unknown)[:3]} that it does not know")
        model.tie_weights()
    model.generation_config.eos_token_id = model.config.eos_token_id = None  # what a call leaves open is taken from here
    torch.set_grad_enabled(False)
    return model.to(device).eval()


class FirstTokens:
    """A stopping criterion that never stops: it notes when `generate` first had tokens, and how many."""

    def __init__(self, prompt: int):
        self.prompt, self.at, self.tokens = prompt, None, 0

    def __call__(self, input_ids, scores, **_):
        import torch

        if self.at is None:
            if input_ids.is_cuda:
                torch.cuda.synchronize()
            self.at, self.tokens = time.perf_counter(), input_ids.shape[1] - self.prompt
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def answer(model, mode: str, ids: list[int], max_tokens: int, lookup_tokens: int) -> dict:
    """One prompt through `generate`."""
    import torch
    from transformers import GenerationConfig, StoppingCriteriaList

    ways = {"static": {"cache_implementation": "static"}, "lookup": {"prompt_lookup_num_tokens": lookup_tokens}, "dynamic": {}}
    options = GenerationConfig(max_new_tokens=max_tokens, do_sample=False, eos_token_id=None, pad_token_id=0, **ways[mode])
    tokens = torch.tensor([ids], device=model.device)
    first = FirstTokens(len(ids))
    start = time.perf_counter()
    out = model.generate(tokens, attention_mask=torch.ones_like(tokens), generation_config=options,
                         stopping_criteria=StoppingCriteriaList([first]))
    made = out[0, len(ids):].tolist()  # waits for the device
    seconds = time.perf_counter() - start
    if len(made) != max_tokens:
        raise SystemExit(f"transformers gave {len(made)} tokens where {max_tokens} were asked for")
    return {"ids": made, "seconds": seconds, "first_s": first.at - start, "first_tokens": first.tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--device", default="auto", help="auto (a GPU if torch sees one), cpu, cuda, ...")
    parser.add_argument("--lookup-tokens", type=int, default=10, help="most tokens that prompt lookup proposes")
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    replies = os.fdopen(os.dup(1), "w")  # whatever the libraries print must not come between the answers
    os.dup2(2, 1)
    try:
        import torch
        import transformers
    except ImportError as error:
        raise missing(error) from None
    if options.threads:
        torch.set_num_threads(options.threads)
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    model = load(options.model, {"bf16": torch.bfloat16, "f32": torch.float32}[options.dtype], device)

    def reply(value: dict) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    reply({"transformers": transformers.__version__, "torch": torch.__version__, "dtype": options.dtype, "device": device,
           "device_name": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
           "threads": torch.get_num_threads(), "attention": str(getattr(model.config, "_attn_implementation", ""))})
    for line in sys.stdin:
        task = json.loads(line)
        mode, most = task["mode"], task["max_tokens"]
        reply({"answers": [answer(model, mode, ids, most, options.lookup_tokens) for ids in task["prompts"]]})


if __name__ == "__main__":
    main()
