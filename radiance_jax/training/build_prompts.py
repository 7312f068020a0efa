"""`python -m radiance_jax.training.build_prompts SOURCES`: makes the prompt files of the package again.

SOURCES is a folder with the files that `sources.py` names. Writes into the package the runs of words of the evaluation sets,
the cleaned prompts, and how many of each source were dropped and why. The same folder gives the same bytes.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from radiance_jax.bench.door import door
from radiance_jax.errors import UserError
from radiance_jax.training.contamination import EvaluationSets
from radiance_jax.training.prompts import EVALUATION, TEXTS, clean, pack
from radiance_jax.training.sources import evaluation_texts, read_sources, records
from radiance_jax.training.templates import FOLDER, articles, plain

# The prompts of the benchmarks, too, are for evaluation only.
BENCHMARKS = Path(__file__).parents[1] / "bench" / "prompts"


@door
def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m radiance_jax.training.build_prompts", description=__doc__)
    parser.add_argument("sources", type=Path, help="folder of prompt sources and evaluation sets")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to (default: the package's own)")
    options = parser.parse_args(argv)
    texts = list(evaluation_texts(options.sources))
    texts += [(f"bench/{path.name}", row["prompt"]) for path in sorted(BENCHMARKS.glob("*.jsonl")) for row in records(path)]
    evaluation = EvaluationSets.of(text for _, text in texts)
    kept, counts = clean(read_sources(options.sources), evaluation)
    found = [each.text for each in [*plain(), *articles()] if evaluation.shares(each.text)]
    if found:
        raise UserError(f"templates must make no prompt that the evaluation sets hold; they make {found[:5]}", param="sources")
    options.out.mkdir(parents=True, exist_ok=True)
    evaluation.save(options.out / EVALUATION.name)
    (options.out / TEXTS.name).write_bytes(pack(kept))
    counts = {"evaluation_texts": Counter(name for name, _ in texts), "evaluation_runs": len(evaluation.hashes),
              "prompts": counts}
    (options.out / "counts.json").write_text(json.dumps(counts, indent=1) + "\n")
    print(json.dumps(counts, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
