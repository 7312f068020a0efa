"""Routes, refusals and limits, below the level of any client library."""

import json

import pytest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def refusal(response, status: int = 400) -> dict:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert error["code"] is None or isinstance(error["code"], str), error
    return error


def test_stream_is_events_closed_by_done(server):
    response = server.http.post(TEXT, json={"prompt": "a", "max_tokens": 3, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert all(event.startswith("data: ") for event in events[:-1])
    assert json.loads(events[0][6:])["object"] == "text_completion"


@pytest.mark.parametrize("raw", [
    b"", b"{", b"[]", b"1", b"null", b'"x"', b"\xff\xfe", b'{"prompt": NaN}', b'{"prompt": "a", "temperature": 1e999}',
    b'{"prompt": "\\ud800"}', b'{"prompt": "a", "user": "\\udfff"}', b"[" * 100_000, b'{"a":' * 100_000,
    b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", b'{"prompt": "a", "max_tokens": Infinity}'])
def test_bodies_that_are_not_plain_json_are_refused(server, raw):
    refusal(server.http.post(TEXT, content=raw))


@pytest.mark.parametrize(("field", "value"), [
    ("prompt", None), ("prompt", []), ("prompt", [""]), ("prompt", ""), ("prompt", [1, "a"]), ("prompt", [[]]),
    ("prompt", [-1]), ("prompt", [2**40]), ("prompt", {"a": 1}), ("prompt", [True]), ("n", 0), ("n", 129),
    ("n", "2"), ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", True), ("temperature", "1"), ("top_p", 0),
    ("top_p", 1.1), ("min_p", -0.1), ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0),
    ("logit_bias", {"x": 1}), ("logit_bias", {"1": 101}), ("logit_bias", {"1": "5"}), ("logit_bias", {"-1": 5}),
    ("logit_bias", {str(k): 1 for k in range(600)}), ("seed", 2**70), ("seed", "1"), ("stop", ""), ("stop", [1]),
    ("stop", {"a": 1}), ("stop", ["a", ""]), ("stop", [str(k) for k in range(65)]),
    ("stop_token_ids", list(range(20))), ("stop_token_ids", ["a"]), ("logprobs", 21),
    ("logprobs", True), ("min_tokens", 17), ("best_of", 3), ("suffix", "x"), ("stream", 1), ("speculative", True),
    ("speculative", {"enabled": 1}), ("speculative.n_max", -1), ("response_format", {"type": "json_object"})])
def test_wrong_values_are_refused_by_name(server, field, value):
    error = refusal(server.http.post(TEXT, json={"prompt": "a"} | {field: value}))
    assert error["param"].split(".")[0] == field.split(".")[0], error
    assert len(error["message"]) < 500


@pytest.mark.parametrize(("body", "shown"), [
    ({"temprature": 0}, "temperature"), ({"speculative": {"enable": False}}, "enabled"),
    ({"stream": True, "stream_options": {"include_usages": True}}, "include_usage"), ({"speculative.nmax": 2}, "n_max"),
    ({"max_new_tokens": 3}, "max_tokens")])
def test_unknown_fields_are_refused_with_the_nearest_name(server, body, shown):
    assert shown in refusal(server.http.post(TEXT, json={"prompt": "a"} | body))["message"]


@pytest.mark.parametrize("body", [
    {"user": "u", "metadata": {"a": "b"}, "store": False}, {"tools": [], "tool_choice": "none"}, {"tools": None},
    {"response_format": {"type": "text"}}, {"speculative": {"enabled": False}}, {"speculative.n_max": 2},
    {"speculative": {"max_draft_tokens": 4}}, {"temperature": 0, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1},
    {"logit_bias": {"5": -100}, "seed": -1, "min_tokens": 2, "ignore_eos": True, "stop_token_ids": [1]},
    {"chat_template_kwargs": {"enable_thinking": False}}, {"n": None, "stop": None, "stream_options": None}])
def test_fields_that_are_accepted(server, body):
    response = server.http.post(CHAT, json={"messages": HELLO, "max_tokens": 4} | body)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("messages", [
    [{"role": "user"}], [{"role": "developer", "content": "a"}], [{"role": "user", "content": None}],
    [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    [{"role": "assistant", "content": "a", "tool_calls": None, "refusal": None, "audio": None}]])
def test_messages_that_are_accepted(server, messages):
    assert server.http.post(CHAT, json={"messages": messages, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("messages", [None, [], "a", [1], [{}], [{"role": 1}], [{"role": "wizard", "content": "a"}],
                                      [{"role": "user", "content": 1}], [{"role": "user", "content": [1]}]])
def test_messages_that_are_refused(server, messages):
    assert refusal(server.http.post(CHAT, json={"messages": messages}))["param"] == "messages"


def test_stream_options_need_a_stream(server):
    body = {"prompt": "a", "stream_options": {"include_usage": True}}
    assert refusal(server.http.post(TEXT, json=body))["param"] == "stream_options"


def test_a_body_over_the_limit_is_413(server):
    refusal(server.http.post(TEXT, content=b"x" * (8 * 2**20 + 1)), 413)
    refusal(server.http.post(TEXT, content=(b"x" * 2**20 for _ in range(9))), 413)


def test_unknown_paths_and_methods_have_openai_errors(server):
    refusal(server.http.get("/v1/nothing"), 404)
    assert "POST" in server.http.get(CHAT).headers["allow"]
    refusal(server.http.get(CHAT), 405)
    refusal(server.http.get("/v1/models/other"), 404)


def test_tokenize_and_detokenize(server):
    answer = server.http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert answer == {"count": 3, "max_model_len": 512, "tokens": [104, 195, 169],
                      "token_strs": ["h", "\ufffd", "\ufffd"]}
    assert server.http.post("/detokenize", json={"tokens": [104, 195, 169]}).json() == {"prompt": "hé"}
    chat = server.http.post("/tokenize", json={"messages": HELLO}).json()
    assert bytes(chat["tokens"]) == b"<user>hello<assistant>"
    for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": "a", "messages": HELLO}),
                       ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": "a"})):
        refusal(server.http.post(path, json=body))


def test_small_routes(server):
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/version").json()["version"]
    assert server.http.get("/v1/models").json()["data"][0]["id"] == "fake"


METRICS = """vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc vllm:prompt_tokens_total
vllm:generation_tokens_total vllm:time_to_first_token_seconds_bucket vllm:inter_token_latency_seconds_count
vllm:e2e_request_latency_seconds_sum vllm:spec_decode_num_drafts_total vllm:spec_decode_num_draft_tokens_total
vllm:spec_decode_num_accepted_tokens_total vllm:spec_decode_num_accepted_tokens_per_pos_total vllm:request_success_total
vllm:num_preemptions_total radiance:step_seconds_total radiance:step_rows_total radiance:draft_depth_total
radiance:deferred_proposals_total radiance:compiles_after_warmup_total radiance:host_gap_seconds_total""".split()


def test_metrics_have_the_names_dashboards_know_and_count(server):
    before = server.metric("vllm:generation_tokens_total")
    server.http.post(TEXT, json={"prompt": "a", "max_tokens": 5})
    response = server.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    names = {line.split("{")[0] for line in response.text.splitlines() if not line.startswith("#")}
    assert set(METRICS) <= names
    assert server.metric("vllm:generation_tokens_total") == before + 5
    assert server.metric('vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="fake",position="0"}') > 0


def test_defaults_of_the_model_apply_where_the_body_is_silent():
    from radiance_jax.server.sampling import chat_params
    from radiance_jax.server.schema import ChatRequest, parse_body
    defaults = {"temperature": 0.2, "top_p": 0.9, "do_sample": True, "eos_token_id": 2}
    silent = chat_params(parse_body(ChatRequest, {"messages": HELLO}), defaults)
    assert (silent.temperature, silent.top_p, silent.max_tokens) == (0.2, 0.9, None)
    body = {"messages": HELLO, "temperature": 0, "speculative.n_max": 3}
    spoken = chat_params(parse_body(ChatRequest, body), defaults)
    assert (spoken.temperature, spoken.top_p, spoken.max_draft_tokens) == (0, 0.9, 3)
    off = parse_body(ChatRequest, {"messages": HELLO, "speculative": {"enabled": False, "n_max": 3}})
    assert chat_params(off, defaults).max_draft_tokens == 0


@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": HELLO}), (TEXT, {"prompt": "ab"})])
def test_token_ids_come_when_asked_for(server, path, prompt):
    body = prompt | {"max_tokens": 5, "n": 2}
    assert "token_ids" not in server.http.post(path, json=body).json()["choices"][0]
    whole = server.http.post(path, json=body | {"return_token_ids": True}).json()
    assert [choice["token_ids"] for choice in whole["choices"]] == [list(b"the q")] * 2
    assert bytes(whole["prompt_token_ids"]) == (b"ab" if path == TEXT else b"<user>hello<assistant>")
    ids: dict[int, list[int]] = {}
    for line in server.http.post(path, json=body | {"return_token_ids": True, "stream": True}).text.split("\n\n")[:-2]:
        for choice in json.loads(line[6:])["choices"]:
            ids.setdefault(choice["index"], []).extend(choice.get("token_ids", []))
    assert ids == {0: list(b"the q"), 1: list(b"the q")}
    body = {"prompt": "ab", "max_tokens": 0, "echo": True, "return_token_ids": True}
    silent = server.http.post(TEXT, json=body).json()
    assert silent["choices"][0]["token_ids"] == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_alone_costs_no_completion_tokens(server, stream):
    body = {"prompt": ["ab", "abc"], "max_tokens": 0, "echo": True, "stream": stream}
    body |= {"stream_options": {"include_usage": True}} if stream else {}
    response = server.http.post(TEXT, json=body)
    answer = json.loads(response.text.split("\n\n")[-3][6:]) if stream else response.json()
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 0, 5)


def test_a_prompt_alone_that_was_cut_off_says_so():
    from radiance_jax.server.answer import Answer
    from radiance_jax.server.completions import CompletionShape
    from radiance_jax.server.prompts import Prompt
    shape = CompletionShape(None, [Prompt((97,), "a")], 1, logprobs=False, echo=True, prompt_only=True)
    ended = [shape.choice(0, Answer(finish_reason=reason))["finish_reason"] for reason in ("stop", "length", "abort")]
    assert ended == ["length", "length", "abort"]


def test_as_many_stop_strings_as_may_be_are_taken(server):
    body = {"prompt": "a", "max_tokens": 9, "stop": [f"-{k}-" for k in range(63)] + ["quick"] * 9}
    assert server.http.post(TEXT, json=body).json()["choices"][0]["text"] == "the "


def test_a_refusal_does_not_send_the_request_back(server):
    for field, value in (("stop_token_ids", list(range(100_000))), ("response_format", {"type": "x" * 100_000}),
                         ("stop", ["a" * 100_000, ""])):
        assert len(refusal(server.http.post(TEXT, json={"prompt": "a"} | {field: value}))["message"]) <= 600
