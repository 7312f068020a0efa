"""Chat templates: the default model's, word for word, and what templates may and may not do."""

from datetime import datetime

import pytest

from radiance_jax.errors import ModelError, UserError
from radiance_jax.text.chat import MAX_TEMPLATE_BYTES, ChatTemplate, read_template
from tiny_tokenizers import byte_level

# The template in the default model's GGUF (SmolLM2-135M-Instruct, Apache-2.0).
SMOLLM2 = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ \
'<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


def user(text):
    return {"role": "user", "content": text}


def test_the_default_models_prompt_word_for_word():
    template = ChatTemplate(SMOLLM2)
    assert template.render([user("What is the capital of France?")]) == (
        SYSTEM + "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    assert template.render([{"role": "system", "content": "Be brief."}, user("Hi"), {
        "role": "assistant", "content": "Hello."}, user("Bye")], add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello."
        "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n")


def test_text_parts_are_joined_and_missing_content_is_empty():
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template.render([user(parts), user(None), {"role": "assistant"}]) == "[a\nb][][]"


def test_tool_call_arguments_reach_the_template_as_objects():
    template = ChatTemplate(
        "{% for t in tools %}{{ t | tojson }}{% endfor %}"
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}"
        "{% endfor %}{% endfor %}")
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Åre"}'}}
    rendered = template.render([user("?"), {"role": "assistant", "content": None, "tool_calls": [call]}],
                               tools=[{"name": "<weather> & é"}])
    assert rendered == '{"name": "<weather> & é"}Åre'


def test_blocks_are_trimmed_and_helpers_are_there():
    template = ChatTemplate(
        "{% for m in messages %}\n    {% if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "{% generation %}{{ bos_token }}{{ m.content }}{% endgeneration %}\n{% endfor %}"
        "{{ strftime_now('%Y-%m-%d') }} {{ mood }}",
        {"bos_token": "<s>"}, now=lambda: datetime(2031, 2, 3))
    assert template.render([user("a"), {"role": "skip", "content": "b"}], mood="calm") == "<s>a2031-02-03 calm"


@pytest.mark.parametrize("messages, says", [
    ([], "at least one message"),
    (["hi"], r"messages\[0\] must be an object with a role"),
    ([{"content": "x"}], "with a role"),
    ([user(7)], "content must be text"),
    ([user([{"type": "image_url", "image_url": {}}])], "only text parts.*image_url"),
    ([user("x"), {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "valid JSON"),
    ([user("x"), {"role": "assistant", "tool_calls": [7]}], "function and its name"),
    ([user("x"), {"role": "assistant", "tool_calls": 7}], "tool_calls must be a list; got int"),
    ([user("x"), {"role": "assistant", "tool_calls": True}], "tool_calls must be a list; got bool"),
    ([user("x"), {"role": "assistant", "tool_calls": {"function": {}}}], "tool_calls must be a list; got dict"),
    ([user("bad")], "refused these messages: roles must alternate"),
    ([user("deep")], "refused these messages"),
])
def test_messages_that_cannot_be_rendered_are_the_users_error(messages, says):
    template = ChatTemplate("{% if messages[0].content == 'bad' %}{{ raise_exception('roles must alternate') }}"
                            "{% endif %}{{ messages[0].content.nothing.more }}")
    with pytest.raises(UserError, match=says) as caught:
        template.render(messages)
    assert caught.value.param == "messages"


@pytest.mark.parametrize("source", [
    "{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}",
    "{% for i in range(10**9) %}{% endfor %}"])
def test_a_template_cannot_leave_the_sandbox(source):
    messages = [user("x")]
    with pytest.raises(UserError):
        rendered = ChatTemplate(source).render(messages)
        assert rendered != "", "unsafe attributes render as undefined"
        raise UserError("nothing leaked" if "class" not in rendered else pytest.fail(rendered))
    assert len(messages) == 1


def test_kwargs_do_not_replace_the_messages():
    assert ChatTemplate("{{ messages[0].content }}").render([user("a")], **{"messages": [], "self": 1}) == "a"


class Files(dict):
    def file(self, name):
        return self.get(name)


def test_the_template_is_found_where_models_keep_it():
    tokenizer = byte_level()
    assert ChatTemplate.from_model(Files(), tokenizer) is None
    found = ChatTemplate.from_model(Files({"chat_template.jinja": b"{{ eos_token }}"}), tokenizer)
    assert found.render([user("a")]) == "<|im_end|>"
    tokenizer.config["chat_template"] = "in config"
    assert ChatTemplate.from_model(Files(), tokenizer).render([user("a")]) == "in config"
    tokenizer.config["chat_template"] = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    assert ChatTemplate.from_model(Files(), tokenizer).render([user("a")]) == "d"
    tokenizer.config["chat_template"] = [{"name": ["odd"], "template": "t"}, {"template": "t"}]
    assert ChatTemplate.from_model(Files(), tokenizer) is None


def test_a_template_that_does_not_compile_is_the_models_error():
    with pytest.raises(ModelError, match="valid jinja2"):
        ChatTemplate("{% for %}")


def test_a_template_of_the_users_own_goes_before_the_models(tmp_path):
    path = tmp_path / "own.jinja"
    path.write_text("own: {{ messages[0].content }} é")
    model, tokenizer = Files({"chat_template.jinja": b"the model's"}), byte_level()
    assert ChatTemplate.from_model(model, tokenizer).render([user("x")]) == "the model's"
    own = ChatTemplate.from_model(model, tokenizer, read_template(str(path)))
    assert own.render([user("x")]) == "own: x é"
    assert ChatTemplate.from_model(Files(), tokenizer, read_template(str(path))).render([user("y")]) == "own: y é"


def test_a_template_file_that_is_none_is_named(tmp_path):
    binary, empty, huge = tmp_path / "b", tmp_path / "e", tmp_path / "h"
    binary.write_bytes(b"\xff\xfe")
    empty.write_bytes(b" \n")
    huge.write_bytes(b"x" * (MAX_TEMPLATE_BYTES + 1))
    for path in (binary, empty, huge, tmp_path, tmp_path / "none", "a\0b"):
        with pytest.raises(UserError) as caught:
            read_template(str(path))
        assert caught.value.param == "chat_template"
    with pytest.raises(ModelError, match="UTF-8"):
        ChatTemplate.from_model(Files({"chat_template.jinja": b"\xff"}), byte_level())
