"""`/metrics`: a snapshot of `EngineStats` in Prometheus' text form, under the names of serving.md."""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from radiance_jax.engine.stats import EngineStats, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

GAUGES = (  # name, field, help
    ("vllm:num_requests_running", "running", "Requests being decoded"),
    ("vllm:num_requests_waiting", "waiting", "Requests waiting for room"),
    ("vllm:kv_cache_usage_perc", "kv_usage", "Share of the KV pages in use, 0 to 1"),
    ("radiance:draft_regret", "draft_regret", "How much faster the best constant draft depth would have been, as a share"),
    ("radiance:draft_rate", "draft_rate", "Tokens a priced second of decoding, as drafted"),
)
COUNTERS = (
    ("vllm:prompt_tokens", "prompt_tokens", "Prompt tokens"),
    ("radiance:prompt_tokens_cached", "cached_tokens", "Prompt tokens found in the prefix cache"),
    ("vllm:generation_tokens", "generation_tokens", "Tokens generated"),
    ("vllm:num_preemptions", "preemptions", "Sequences set back to free pages"),
    ("vllm:spec_decode_num_drafts", "num_drafts", "Verify steps that carried a draft"),
    ("vllm:spec_decode_num_draft_tokens", "num_draft_tokens", "Tokens drafted"),
    ("vllm:spec_decode_num_accepted_tokens", "num_accepted_tokens", "Drafted tokens accepted"),
    ("radiance:deferred_proposals", "deferred_proposals", "Proposals not verified because it would not have paid"),
    ("radiance:draft_probes", "draft_probes", "Steps that drafted otherwise than pays, to keep prices fresh"),
    ("radiance:steps", "steps", "Steps of the engine"),
    ("radiance:compiles_after_warmup", "compiles_after_warmup", "Programs compiled after warm-up; should stay 0"),
    ("radiance:host_gap_seconds", "host_gap_seconds", "Seconds the device waited for the host"),
    ("radiance:listener_errors", "listener_errors", "Answers ended because their listener raised; should stay 0"),
    ("radiance:leaked_pages", "leaked_pages", "KV pages found lost and taken back; should stay 0"),
)
HISTOGRAMS = (
    ("vllm:time_to_first_token_seconds", "ttft", "From arrival to the first token"),
    ("vllm:inter_token_latency_seconds", "inter_token", "Between two deliveries to one request"),
    ("vllm:e2e_request_latency_seconds", "e2e", "From arrival to the last token"),
)


class Collector:
    """Reads `stats()` at each scrape."""

    def __init__(self, stats: Callable[[], EngineStats], model_name: str):
        self.stats, self.model_name = stats, model_name

    def collect(self) -> Iterator[Any]:
        stats = self.stats()
        for name, attribute, text in GAUGES:
            yield self._family(GaugeMetricFamily, name, text, {(): getattr(stats, attribute)})
        for name, attribute, text in COUNTERS:
            yield self._family(CounterMetricFamily, name, text, {(): getattr(stats, attribute)})
        for name, attribute, text in HISTOGRAMS:
            yield self._histogram(name, text, getattr(stats, attribute))
        labelled = (
            ("vllm:request_success", "Requests finished, by reason", "finished_reason", stats.finished),
            ("vllm:spec_decode_num_accepted_tokens_per_pos", "Drafts accepted at each position", "position",
             dict(enumerate(stats.accepted_per_position))),
            ("radiance:draft_tokens", "Tokens drafted, by who proposed them", "proposer",
             {k: v[0] for k, v in stats.by_proposer.items()}),
            ("radiance:accepted_draft_tokens", "Drafted tokens accepted, by who proposed them", "proposer",
             {k: v[1] for k, v in stats.by_proposer.items()}),
            ("radiance:draft_position_reached", "Drafts verified at each position, all before them right", "position",
             dict(enumerate(stats.reached_per_position))),
            ("radiance:chosen_depth", "Decode steps of a sequence by the depth allowed", "depth", stats.chosen_depth),
            ("radiance:draft_depth", "Verify steps by drafts carried", "depth", stats.depth),
            ("radiance:step_rows", "Steps by token rows computed", "rows",
             {k: v[0] for k, v in stats.step_seconds.items()}),
            ("radiance:step_seconds", "Seconds in steps by token rows computed", "rows",
             {k: v[1] for k, v in stats.step_seconds.items()}),
        )
        yield self._family(GaugeMetricFamily, "radiance:draft_constant_depth_rate", "Tokens a priced second, had every step "
                           "drafted so deep", {(str(k),): v for k, v in stats.constant_depth_rate.items()}, ["depth"])
        for name, text, label, values in labelled:
            yield self._family(CounterMetricFamily, name, text, {(str(k),): v for k, v in sorted(values.items())},
                               [label])

    def _family(self, kind: Any, name: str, text: str, values: dict[tuple, float], labels: list[str] | None = None):
        family = kind(name, text, labels=["model_name", *(labels or [])])
        for key, value in values.items():
            family.add_metric([self.model_name, *key], value)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
        family, total, buckets = HistogramMetricFamily(name, text, labels=["model_name"]), 0, []
        for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else str(bound), total))
        family.add_metric([self.model_name], buckets, histogram.sum)
        return family


def render(stats: Callable[[], EngineStats], model_name: str) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(stats, model_name))
    return generate_latest(registry)
