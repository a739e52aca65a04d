"""Which replica a request is for. Its conversation is named by how it begins, and each name has an order of the
replicas (rendezvous hashing): every gateway finds the same one without being told, and a replica that comes or goes
moves its own share of the conversations alone."""
import dataclasses
import hashlib
import json
import math

BLOCK_TEXT = 64  # characters: about the 16 tokens of a KV block; a shorter beginning is never in the cache
BLOCK_IDS = 16


@dataclasses.dataclass
class Ask:
    """What a request's replica is chosen by. (Here, as Ray copies the classes of a deployment's module, and a copy is
    another class.)"""

    conversation: str
    tried: list[str]  # replicas that did not answer it
    load: dict[str, int]  # this gateway's requests by replica


def _first_turns(messages) -> list:
    """Up to the user's first message: later turns of the conversation have that in common, and others do not."""
    turns = []
    for m in messages if isinstance(messages, list) else [messages]:
        turns.append(m)
        if not isinstance(m, dict) or m.get("role", "user") == "user":
            break
    return turns


def _beginning(prompt):
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt[:BLOCK_TEXT]
    return prompt[:BLOCK_IDS] if isinstance(prompt, list) else prompt


def conversation(path: str, body: bytes) -> str:
    """The name of a request's conversation; "" where it has none and any replica will do."""
    try:
        doc = json.loads(body)
    except ValueError:
        return ""
    if not isinstance(doc, dict):
        return ""
    if isinstance(doc.get("prompt_cache_key"), str):  # OpenAI's field for it
        begins = doc["prompt_cache_key"]
    elif doc.get("messages"):
        begins = [doc.get("system"), _first_turns(doc["messages"])]
    elif doc.get("prompt"):
        begins = [doc.get("system"), _beginning(doc["prompt"])]
    elif doc.get("input") and path.endswith("/responses"):
        begins = [doc.get("instructions"), _first_turns(doc["input"])]
    else:
        return ""
    text = json.dumps([doc.get("model"), begins], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def order(name: str, replicas: list[str], load: dict[str, int], room: int) -> list[str]:
    """The replicas, the one to take first. One that has more than `room` requests, and more than a quarter above its
    share, waits behind those that have less: a beginning that all requests share must not make one replica do it all.
    Without a name the least loaded is first."""
    if not name:
        return sorted(replicas, key=lambda r: (load.get(r, 0), r))
    bound = max(room, math.ceil(1.25 * (sum(load.get(r, 0) for r in replicas) + 1) / max(len(replicas), 1)))
    return sorted(replicas, key=lambda r: (load.get(r, 0) >= bound, hashlib.sha256(f"{name} {r}".encode()).digest()))
