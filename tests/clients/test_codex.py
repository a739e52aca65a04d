"""Codex, with an MCP server of a few lines."""
import json
import sys

MCP = """
import json, sys
TOOL = {"name": "weather", "description": "of a city", "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}}}
for line in sys.stdin:
    ask = json.loads(line)
    if "id" not in ask:
        continue
    method, params = ask["method"], ask.get("params", {})
    if method == "initialize":
        said = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "sky", "version": "1"}}
    elif method == "tools/list":
        said = {"tools": [TOOL]}
    elif method == "tools/call":
        with open(sys.argv[1], "w") as f:
            json.dump(params["arguments"], f)
        said = {"content": [{"type": "text", "text": "[abc] rain"}]}
    else:
        said = {}
    print(json.dumps({"jsonrpc": "2.0", "id": ask["id"], "result": said}), flush=True)
"""


def codex(program, server, prompt, *more):
    done = program("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "m",
                   "-c", "model_provider=llmq", "-c", "model_providers.llmq.name=llmq",
                   "-c", f"model_providers.llmq.base_url={server.url}/v1", "-c", "model_providers.llmq.wire_api=responses",
                   *more, prompt)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_codex(scripted, program):
    assert codex(program, scripted, "[abc]") == "The cat sat on x the mat."


def test_codex_calls_the_tool_of_an_mcp_server(scripted, program, tmp_path):
    (tmp_path / "mcp.py").write_text(MCP)
    args = json.dumps([str(tmp_path / "mcp.py"), str(tmp_path / "asked")])
    said = codex(program, scripted, "[sky once]", "-c", f"mcp_servers.sky.command={sys.executable}",
                 "-c", f"mcp_servers.sky.args={args}")
    assert said == "The cat sat on x the mat." and json.loads((tmp_path / "asked").read_text()) == {"city": "Paris"}
