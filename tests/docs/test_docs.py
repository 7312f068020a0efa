"""The pages under docs/ say what the code does."""

import re
from dataclasses import fields
from pathlib import Path

from radiance_jax.engine.stats import EngineStats
from radiance_jax.flags_page import flags_page
from radiance_jax.server import metrics
from radiance_jax.server.app import ROUTES
from radiance_jax.server.schema import IGNORED, ChatRequest, CompletionRequest
from radiance_jax.settings import rule_of
from radiance_jax.training.config import TrainConfig

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / f"{name}.md" for name in ("quickstart", "flags", "api", "metrics", "deployment", "drafters", "new_drafter",
                                          "policy", "wires", "training", "training_data", "report")]


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_page_of_flags_is_up_to_date():
    assert text("flags.md") == flags_page(), "run: python -m radiance_jax.flags_page > docs/flags.md"


def sample_names() -> set[str]:
    """Every metric's name as a dashboard writes it: counters with _total, histograms without a suffix."""
    stats = EngineStats(accepted_per_position=[1], reached_per_position=[1], depth={1: 1}, chosen_depth={1: 1},
                        by_proposer={"lookup": (2, 1)}, constant_depth_rate={1: 1.0}, step_seconds={4: (1, 0.1)},
                        finished={"stop": 1})
    lines = metrics.render(lambda: stats, "m").decode().splitlines()
    names = {line.split("{")[0] for line in lines if not line.startswith("#")}
    return {re.sub("_(bucket|sum|count)$", "", name) for name in names}


def test_every_metric_is_documented_and_no_other():
    documented = set(re.findall(r"^\| `((?:vllm|radiance):\w+)", text("metrics.md"), re.MULTILINE))
    assert documented == sample_names()
    for label in ("finished_reason", "position", "depth", "rows", "proposer"):
        assert f"{{{label}}}" in text("metrics.md")


def test_every_field_and_route_is_documented():
    page = text("api.md")
    for name in {*ChatRequest.model_fields, *CompletionRequest.model_fields, *IGNORED}:
        assert f"`{name}" in page, name
    for _, path, _ in ROUTES:
        assert path.replace(":path", "") in page, path


def test_the_page_of_a_new_drafter_shows_the_file_that_is_tested():
    toy = Path(__file__).parents[1] / "spec" / "toy_drafter.py"
    assert f"```python\n{toy.read_text(encoding='utf-8')}```\n" in text("new_drafter.md")


def test_links_lead_somewhere():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (DOCS / link).exists(), (page.name, link)


def test_lines_are_no_longer_than_120_outside_tables_and_code():
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        long = [line for line in lines if len(line) > 120 and not line.startswith("|")]
        assert not long, (page.name, long)


def test_every_key_of_a_training_run_is_documented():
    for item in fields(TrainConfig):
        assert f"| `{item.name}` | " in text("training.md") and rule_of(item).help in text("training.md"), item.name
