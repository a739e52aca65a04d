"""The first ranks of a tekken.json, and what mistral-common makes of texts with them.

usage: tekken.py TEKKEN_JSON OUT     (of mistral-common's package: data/tekken_240911.json; needs mistral-common 1.13)
"""
import json
import pathlib
import sys

from mistral_common.tokens.tokenizers.tekken import Tekkenizer

KEPT, SPECIAL = 700, 1000
TEXTS = ["", " ", "Hello world", "Hello  world\n\n  indented", "1234567", "it's they'LL", "naïve café", "한국어 テスト",
         "🙂🙃", "UPPERlower CamelCase", "a/b//c\r\nd", "\t\ttabs", "the thing that they ate then"]
source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
j = json.loads(source.read_text(encoding="utf-8"))
j["vocab"] = j["vocab"][:KEPT + 50]  # more than are used, as in the real file
j["config"].update(num_vocab_tokens=KEPT + 50, default_vocab_size=SPECIAL + KEPT)
j.pop("image", None)
out.mkdir(exist_ok=True)
(out / "tekken.json").write_text(json.dumps(j), encoding="utf-8")
t = Tekkenizer.from_file(out / "tekken.json")
with open(out / "cases.jsonl", "w", encoding="utf-8") as f:
    for text in TEXTS:
        print(json.dumps({"text": text, "ids": t.encode(text, bos=True, eos=False)}, ensure_ascii=False), file=f)
