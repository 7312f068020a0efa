"""Whatever is sent, the answer is 200 or a refusal in OpenAI's shape, never a 500."""

import json
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radiance_jax.server.body import parse_json
from radiance_jax.server.errors import HttpError
from radiance_jax.server.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

PATHS = {"/v1/chat/completions": ChatRequest, "/v1/completions": CompletionRequest, "/tokenize": TokenizeRequest,
         "/detokenize": DetokenizeRequest}
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 130), st.floats(), st.text(max_size=8),
    st.sampled_from([2**63, -2**63 - 1, 10**400, 1e308, "", "text", "auto", "\x00", "<user>"]))
values = st.recursive(scalars, lambda inner: st.one_of(
    st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4),
    st.fixed_dictionaries({"role": inner, "content": inner}),
    st.fixed_dictionaries({"type": st.just("text"), "text": inner}),
    st.fixed_dictionaries({"enabled": inner}), st.fixed_dictionaries({"n_max": inner})), max_leaves=8)
QUICK = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def requests(draw):
    path = draw(st.sampled_from(sorted(PATHS)))
    base = draw(st.sampled_from([
        {}, {"messages": [{"role": "user", "content": "a"}]}, {"prompt": "a"}, {"prompt": [97, 98]}, {"tokens": [97]}]))
    names = st.sampled_from([*PATHS[path].model_fields, "speculative.n_max", "user"]) | st.text(max_size=6)
    return path, {"max_tokens": 3} | base | draw(st.dictionaries(names, values, max_size=3))


def check(response):
    assert response.status_code in (200, 400, 404, 413, 503), response.text
    if response.headers["content-type"].startswith("application/json"):
        body = response.json()
        if response.status_code != 200:
            assert set(body["error"]) == {"message", "type", "param", "code"}
    else:
        assert response.text.endswith("data: [DONE]\n\n")
        assert '"server_error"' not in response.text


@QUICK
@given(requests())
def test_fields_of_any_value(server, request_):
    path, body = request_
    check(server.http.post(path, content=json.dumps(body)))


@QUICK
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bodies_of_any_bytes(raw):
    try:
        assert isinstance(parse_json(raw), dict)
    except HttpError as error:
        assert error.status == 400


def test_nesting_just_below_the_parsers_limit(server):
    for depth in (50, 500, 900, 1500, 5000):
        nested = b"[" * depth + b"]" * depth
        for raw in (b'{"messages":[{"role":"user","content":"a","x":' + nested + b'}],"max_tokens":1}',
                    b'{"prompt":' + nested + b"}",
                    b'{"messages":[{"role":"user"}],"max_tokens":1,"chat_template_kwargs":{"x":' + nested + b"}}"):
            check(server.http.post("/v1/chat/completions", content=raw))
            check(server.http.post("/v1/completions", content=raw))


def test_long_hostile_lists_are_refused_quickly(server):
    many = [0.5] * 500_000
    for field in ("prompt", "stop", "stop_token_ids", "messages", "tools"):
        response = server.http.post("/v1/completions", json={"prompt": "a"} | {field: many}, timeout=5)
        assert response.status_code == 400
    response = server.http.post("/v1/completions", json={f"k{i}": i for i in range(200_000)}, timeout=5)
    assert response.status_code == 400


def test_a_name_of_megabytes_is_not_compared_with_those_that_exist(server):
    started = time.monotonic()
    for body in ({"x" * 7_000_000: 1}, {"speculative": {"x" * 7_000_000: 1}}):
        assert server.http.post("/v1/completions", json={"prompt": "a"} | body).status_code == 400
    assert time.monotonic() - started < 1.5
