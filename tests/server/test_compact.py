"""/v1/responses/compact: a conversation as the user's messages and a summary that the model writes."""

import openai
import pytest

from helpers import check_error
from test_responses import PATH, WEATHER, keeping, message  # noqa: F401

pytestmark = pytest.mark.case("C133")

COMPACT = PATH + "/compact"


def ask(input, **more):
    return {"input": input, "temperature": 0, "max_output_tokens": 250, **more}


def texts(items):
    return [x["content"][0]["text"] for x in items if x["type"] == "message"]


def test_a_talk_becomes_shorter(scripted):
    talk = [message("user", "first"), message("assistant", "answered"),
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "result"},
            {"role": "user", "content": [{"type": "input_text", "text": "[think]"}]}]
    a = scripted.post_json(COMPACT, ask(talk, instructions="Be brief."))
    assert a["object"] == "response.compaction" and a["id"].startswith("resp_")
    assert [x["type"] for x in a["output"]] == ["message", "message", "compaction"] and texts(a["output"]) == ["first", "[think]"]
    assert all(x["role"] == "user" and x["id"] and x["status"] == "completed" for x in a["output"][:2])
    shown = scripted.post_json(PATH, ask(talk))["output"]  # the same script: its thought is no part of the summary
    said = [x["content"][0]["text"] for x in shown if x["type"] == "message"]
    assert shown[0]["type"] == "reasoning" and a["output"][-1]["encrypted_content"] == "llmq:" + "".join(said)
    assert a["usage"]["total_tokens"] == a["usage"]["input_tokens"] + a["usage"]["output_tokens"]
    longer = scripted.post_json(PATH + "/input_tokens", {"input": talk, "instructions": "Be brief."})["input_tokens"]
    assert a["usage"]["input_tokens"] > longer  # it was asked for a summary of all of it


def test_the_summary_is_read_again(scripted):
    """As a text of the user's, between what was before it and what comes after."""
    a = scripted.post_json(COMPACT, ask("[abc]"))
    summary = a["output"][-1]["encrypted_content"].removeprefix("llmq:")
    assert texts(a["output"]) == ["[abc]"] and summary
    n = scripted.post_json(PATH + "/input_tokens", {"input": [*a["output"], message("user", "and now?")]})["input_tokens"]
    told = f"[abc]\nA summary of our conversation until here:\n{summary}\nand now?"
    assert n == scripted.post_json(PATH + "/input_tokens", {"input": told})["input_tokens"]
    again = scripted.post_json(COMPACT, ask([*a["output"], message("user", "[abc]")]))
    assert [x["type"] for x in again["output"]] == ["message", "message", "compaction"]  # the old summary is in the new


def test_a_kept_talk_becomes_shorter_by_the_sdk(keeping):  # noqa: F811
    with openai.OpenAI(base_url=keeping.url + "/v1", api_key="none", max_retries=0) as c:
        name = c.models.list().data[0].id
        first = c.responses.create(model=name, input="[abc]", temperature=0, max_output_tokens=250)
        a = c.responses.compact(model=name, input="[think]", previous_response_id=first.id)
        assert (a.object, [x.type for x in a.output]) == ("response.compaction", ["message", "message", "compaction"])
        assert [x.content[0].text for x in a.output[:2]] == ["[abc]", "[think]"]
        b = c.responses.create(model=name, input=[*a.output, {"role": "user", "content": "[abc]"}], temperature=0, max_output_tokens=250)
        assert b.status == "completed" and b.output_text
        alone = c.responses.compact(model=name, previous_response_id=b.id)
        assert [x.type for x in alone.output] == ["message", "message", "message", "compaction"]
        with pytest.raises(openai.NotFoundError):
            c.responses.retrieve(a.id)


@pytest.mark.parametrize("more, param, part", [
    ({"stream": True}, "stream", "not supported"),
    ({"background": True}, "background", "not supported"),
    ({"tools": [WEATHER]}, "tools", "not supported"),
    ({"text": {}}, "text", "not supported"),
    ({"max_output_tokens": 2}, "max_output_tokens", "not whole after 2 tokens"),
    ({"input": []}, "input", "found nothing"),
    ({"input": [{"role": "developer", "content": "x"}]}, "input", "found nothing"),
    ({"input": None}, "input", "required"),
    ({"input": [{"type": "compaction", "encrypted_content": "gAAAA"}]}, "input", "input[0]: only who wrote"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "--response-store"),
])
def test_what_is_refused(scripted, more, param, part):
    assert part in check_error(scripted.post(COMPACT, {**ask("[abc]"), **more}), 400, param)
    assert scripted.post_json(COMPACT, ask("[abc]", stream=False, background=None))["output"]
