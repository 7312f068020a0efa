"""The `openai` package, unchanged, against the server."""

import json

import openai
import pytest

SECRET = "the quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def client(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


HELLO = [{"role": "user", "content": "hello"}]


def test_chat_answers_with_usage(client):
    answer = client.chat.completions.create(model="fake", messages=HELLO, max_tokens=9)
    assert answer.choices[0].message.content == "the quick"
    assert answer.choices[0].finish_reason == "length"
    prompt = len("<user>hello<assistant>")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, 9)
    assert answer.usage.total_tokens == prompt + 9
    assert answer.usage.prompt_tokens_details.cached_tokens == prompt // 2


def test_chat_stream_adds_up_to_the_whole_answer(client):
    chunks = list(client.chat.completions.create(model="fake", messages=HELLO, max_completion_tokens=20, stream=True,
                                                 stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == SECRET[:20]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 20
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


def test_stream_without_usage_has_none(client):
    chunks = list(client.chat.completions.create(model="fake", messages=HELLO, max_tokens=3, stream=True))
    assert all(c.choices and c.usage is None for c in chunks)


def test_n_choices_stream_under_their_indices(client):
    texts = {}
    for chunk in client.completions.create(model="fake", prompt=["a", "b"], n=2, max_tokens=5, stream=True):
        texts[chunk.choices[0].index] = texts.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert texts == dict.fromkeys(range(4), SECRET[:5])


def test_completions_of_every_prompt_form(client):
    for prompt, count in (("ab", 1), (["ab", "c"], 2), ([97, 98], 1), ([[97], [98, 99]], 2)):
        answer = client.completions.create(model="fake", prompt=prompt, max_tokens=4)
        assert [choice.text for choice in answer.choices] == ["the "] * count
        assert answer.usage.completion_tokens == 4 * count
    assert answer.usage.prompt_tokens == 3
    assert client.completions.create(model="fake", prompt="a").usage.completion_tokens == 16


def test_chat_logprobs(client):
    answer = client.chat.completions.create(model="fake", messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert [each.token for each in content] == ["t", "h", "e"]
    assert content[0].bytes == [ord("t")] and content[0].logprob == -0.5
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("t", -0.5), ("u", -1.5)]
    bare = client.chat.completions.create(model="fake", messages=HELLO, max_tokens=3, logprobs=True)
    assert bare.choices[0].logprobs.content[0].top_logprobs == []
    assert client.chat.completions.create(model="fake", messages=HELLO, max_tokens=3).choices[0].logprobs is None


def test_streamed_logprobs_are_the_same_as_whole_ones(client):
    ask = {"model": "fake", "messages": HELLO, "max_tokens": 7, "logprobs": True, "top_logprobs": 1}
    whole = client.chat.completions.create(**ask).choices[0].logprobs.content
    parts = [c.choices[0].logprobs for c in client.chat.completions.create(**ask, stream=True)]
    assert [each for part in parts if part for each in part.content] == whole


def test_completion_logprobs_and_echo(client):
    answer = client.completions.create(model="fake", prompt="ab", max_tokens=3, logprobs=1, echo=True).choices[0]
    assert answer.text == "abthe"
    assert answer.logprobs.tokens == ["a", "b", "t", "h", "e"]
    assert answer.logprobs.token_logprobs == [None, -0.5, -0.5, -0.5, -0.5]
    assert answer.logprobs.text_offset == [0, 1, 2, 3, 4]
    assert answer.logprobs.top_logprobs[0] is None and answer.logprobs.top_logprobs[1] == {"b": -0.5}
    chunks = list(client.completions.create(model="fake", prompt="ab", max_tokens=3, logprobs=1, echo=True,
                                            stream=True))
    assert "".join(c.choices[0].text for c in chunks) == "abthe"
    assert sum((c.choices[0].logprobs.text_offset for c in chunks if c.choices[0].logprobs), []) == [0, 1, 2, 3, 4]


def test_echo_of_the_prompt_alone(client):
    answer = client.completions.create(model="fake", prompt=[97, 98], max_tokens=0, logprobs=0, echo=True).choices[0]
    assert (answer.text, answer.logprobs.tokens, answer.finish_reason) == ("ab", ["a", "b"], "length")


def test_stop_string_ends_the_answer(client):
    answer = client.chat.completions.create(model="fake", messages=HELLO, stop=["brown", "fox"])
    assert answer.choices[0].message.content == "the quick "
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", "brown")


def test_speculation_metrics_come_when_asked_for(client):
    ask = {"model": "fake", "messages": HELLO, "max_tokens": 9}
    assert getattr(client.chat.completions.create(**ask), "metrics", None) is None
    answer = client.chat.completions.create(**ask, extra_body={"return_metrics": True})
    spec = answer.metrics["speculative_decoding"]
    assert spec["num_spec_steps"] == 4 and spec["num_accepted_draft_tokens"] == 4
    assert spec["acceptance_histogram"] == [0, 4] and spec["mean_acceptance_length"] == 2.0
    last = list(client.chat.completions.create(**ask, stream=True, extra_body={"return_metrics": True}))[-1]
    assert last.choices == [] and last.metrics["speculative_decoding"] == spec and last.usage.completion_tokens == 9


def test_errors_have_openai_classes_params_and_codes(client):
    def refused(kind, **ask):
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**({"model": "fake", "messages": HELLO} | ask))
        return caught.value

    assert refused(openai.BadRequestError, temperature=-1).param == "temperature"
    assert refused(openai.BadRequestError, max_tokens=10**6).code == "context_length_exceeded"
    assert refused(openai.BadRequestError, max_tokens=10**6, stream=True).code == "context_length_exceeded"
    assert refused(openai.NotFoundError, model="other").code == "model_not_found"
    error = refused(openai.BadRequestError, extra_body={"temprature": 0})
    assert "did you mean 'temperature'" in error.message and error.param == "temprature"
    error = refused(openai.BadRequestError, tools=[{"type": "function", "function": {"name": "f"}}])
    assert "not available" in error.message and error.param == "tools"
    error = refused(openai.BadRequestError, response_format={"type": "json_object"})
    assert error.param == "response_format"
    error = refused(openai.BadRequestError, response_format={"type": "json_schema", "json_schema": {"name": "x"}})
    assert error.param == "response_format"
    assert refused(openai.BadRequestError, top_logprobs=3).param == "top_logprobs"
    assert refused(openai.BadRequestError, logprobs=True, top_logprobs=21).param == "logprobs"
    assert refused(openai.BadRequestError, messages=[]).param == "messages"


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").max_model_len == 512


def strictly(kind, value: dict) -> None:
    """By the client's own types, without its leniency: names and types as they are declared."""
    kind.model_validate_json(json.dumps(value), strict=True)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("told", [True, False])
def test_bodies_hold_what_the_clients_types_declare(server, n, told):
    """But for two nulls that its types leave out and the API sends: the first logprob of an echo, the reason of a text that
    goes on."""
    from openai.types import Completion, Model
    from openai.types.chat import ChatCompletion, ChatCompletionChunk
    chat = {"messages": HELLO, "max_tokens": 4, "n": n, "stop": ["zzz"]} | ({"logprobs": True, "top_logprobs": 2} if told else {})
    text = {"prompt": ["ab", [97]], "max_tokens": 4, "n": n} | ({"logprobs": 2} if told else {})
    strictly(ChatCompletion, server.http.post("/v1/chat/completions", json=chat).json())
    strictly(Completion, server.http.post("/v1/completions", json=text).json())
    chat |= {"stream": True, "stream_options": {"include_usage": True}}
    for line in server.http.post("/v1/chat/completions", json=chat).text.split("\n\n")[:-2]:
        strictly(ChatCompletionChunk, json.loads(line.removeprefix("data: ")))
    strictly(Model, server.http.get("/v1/models/fake").json())


def test_errors_hold_what_the_clients_types_declare(server):
    from openai.types.shared import ErrorObject
    for wrong in ({"messages": []}, {"model": "other"}, {"n": "x"}, {"max_tokens": 10**6}):
        strictly(ErrorObject, server.http.post("/v1/chat/completions", json={"messages": HELLO} | wrong).json()["error"])
    for path in ("/nothing", "/v1/chat/completions"):
        strictly(ErrorObject, server.http.get(path).json()["error"])
