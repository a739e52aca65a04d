"""Cases of structured output: grammars with texts that are theirs and texts that are not.

    python tests/golden/make/make_grammar.py     (needs jsonschema and rfc3339-validator)

Writes tests/golden/grammar/cases.jsonl: {"kind", "text", "yes": [...], "no": [...]} and
{"kind", "text", "error": "part of the message"}. What regexes and schemas say here is checked against
Python's re and jsonschema: every `yes` must be valid there and every `no` invalid, but for those in
`narrow`, which are valid and which llmq does not make (white space, order, spelling)."""
import json
import pathlib
import re

import jsonschema

OUT = pathlib.Path(__file__).resolve().parents[1] / "grammar/cases.jsonl"
rows = []


def regex(text, yes, no, narrow=()):
    for s in yes:
        assert re.fullmatch(text, s, re.A), (text, s)
    for s in no:
        assert not re.fullmatch(text, s, re.A), (text, s)
    rows.append({"kind": "regex", "text": text, "yes": yes, "no": no + list(narrow)})


def schema(text, yes, no=(), narrow=()):
    cls = jsonschema.validators.validator_for(text if isinstance(text, dict) else {},
                                              jsonschema.Draft202012Validator)
    v = cls(text, format_checker=cls.FORMAT_CHECKER)
    for s in yes:
        assert v.is_valid(json.loads(s)), (text, s)
    for s in no:
        try:
            assert not v.is_valid(json.loads(s)), (text, s)
        except json.JSONDecodeError:
            pass
    for s in narrow:
        assert v.is_valid(json.loads(s)), (text, s)
    rows.append({"kind": "schema", "text": json.dumps(text), "yes": list(yes),
                 "no": list(no) + list(narrow)})


def gbnf(text, yes, no):
    rows.append({"kind": "grammar", "text": text, "yes": yes, "no": no})


def error(kind, text, message):
    text = text if isinstance(text, str) else json.dumps(text)
    rows.append({"kind": kind, "text": text, "error": message})


# ---- regular expressions ----
regex("", [""], ["a"])
regex("abc", ["abc"], ["", "ab", "abcd", "abd"])
regex("a|b|cd", ["a", "b", "cd"], ["", "c", "ab"])
regex("(a|b)*c", ["c", "abac"], ["ab", "ca"])
regex("a?b+", ["b", "abb"], ["a", "aab"])
regex("a{3}", ["aaa"], ["aa", "aaaa"])
regex("a{2,}", ["aa", "aaaaaa"], ["a"])
regex("a{1,3}b{0}", ["a", "aaa"], ["", "aaaa", "ab"])
regex("(ab){2,3}", ["abab", "ababab"], ["ab", "abababab", "aba"])
regex("((a{2}){3}){2}", ["a" * 12], ["a" * 11, "a" * 13])
regex("[a-c1-3]", ["a", "2"], ["d", "4", ""])
regex("[^a-c]", ["d", "\n", "é", "한", "😀"], ["a", "b", ""])
regex("[]a]+", ["]a]"], ["[", ""])
regex("[a\\]b-]+", ["a]-b"], ["c"])
regex("[\\w-]+", ["a-1_"], ["é", " "])
regex(".", ["a", "é", "한", "😀"], ["\n", "", "ab"])
regex("\\d{4}-\\d\\d", ["2024-01"], ["24-01", "2024-1"])
regex("\\w+@\\w+\\.com", ["ab@c.com"], ["ab@c,com", "@c.com"])
regex("\\s\\S", [" a", "\nb"], ["aa", "  "])
regex("[^\\d\\s]+", ["ab"], ["a1", "a b"])
regex("\\D\\W", ["a-", "--"], ["1-", "ab"])
regex("\\x41\\u00e9\\t", ["Aé\t"], ["aé\t"])
regex("(?:a|(?P<n>b))c", ["ac", "bc"], ["c"])
regex("^a$", ["a"], ["", "^a$"])
regex("^a|b$", ["a", "b"], ["ab"])
regex("a*?b+?", ["b", "aabb"], ["a"])
regex("[가-힣]+", ["한글"], ["han", "한a"])
regex("a{", ["a{"], ["a"])
regex("a{x}", ["a{x}"], ["a"])
regex("(a|ab)(c|bcd)", ["ac", "abc", "abcd", "abbcd"], ["ab", "abd"])
regex("(a*)*b", ["b", "aab"], ["a"])
regex("(a*|b)+c", ["c", "abc"], ["d"])
regex("(a+)+$", ["a", "aaaa"], ["", "ab"])
regex("-?(0|[1-9][0-9]*)", ["0", "-12"], ["01", "-", "+1"])
regex("[\\u0000-\\u007f]", ["\x00", "~"], ["é"])
regex("[\U00010000-\U0010ffff]", ["😀"], ["한"])
regex("(|a)(|b)", ["", "a", "b", "ab"], ["ba"])
for t, m in [("foo**", "nothing to repeat"), ("*a", "nothing to repeat"), ("^+[a-z]$", "nothing to repeat"),
             ("(a", "expected )"), ("a)", "without ("), ("[a", "without ]"), ("[b-a]", "does not rise"),
             ("a{3,1}", "n below m"), ("(?=a)b", "look-around"), ("(?<!a)b", "look-around"),
             ("(a)\\1", "reference to a group"), ("a\\b", "word boundary"), ("(?i)a", "flags"),
             ("a++", "possessive"), ("a^b", "^ or $"), ("a$b", "^ or $"), ("\\q", "escape"),
             ("[[:alpha:]]", "POSIX"), ("a{1,1000000}", "too long"), ("\\xg1", "hexadecimal"),
             ("a\\", "backslash at the end"), ("(" * 200, "nest too deeply"),
             ("((((a{1000}){1000}){1000}){1000}b{9999}){9999}" * 3 + "[^x]{9999}" * 30, "too large"),
             ("a{,3}", "{0,n}"), ("[^\\s\\S]", "matches no text")]:
    error("regex", t, m)

# ---- choices ----
rows.append({"kind": "choice", "text": json.dumps(["yes", "no", "not sure", "한글"]),
             "yes": ["yes", "no", "not sure", "한글"], "no": ["", "n", "not", "yess", "한"]})
error("choice", [], "strings that are not empty")
error("choice", [""], "strings that are not empty")
error("choice", ["a", 1], "strings that are not empty")
error("choice", "{", "JSON")

# ---- GBNF ----
gbnf('root ::= "a" | "b"', ["a", "b"], ["", "ab", "c"])
gbnf('# c\nroot ::= item ("," item)* # d\nitem ::= [0-9]+\n', ["1", "12,3"], ["", "1,", ",1"])
gbnf('root ::= "\\x41\\u00e9\\n\\"\\\\" [^\\n\\]] .', ['Aé\n"\\ab', 'Aé\n"\\한\n'], ['Aé\n"\\]b'])
gbnf('root ::= (\n  "a"\n  | "b" "c"\n)+', ["a", "bca"], ["b", ""])
gbnf('root ::=\n  "a" x |\n  "c"\nx ::= "b"{2} | "d"{1,} | "e"{0,2}',
     ["abb", "ad", "add", "a", "ae", "aee", "c"], ["ab", "aeee", "cd"])
gbnf('root ::= "a"\n  | "b"', ["a", "b"], ["ab"])
gbnf('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x", "x)", "()"])
gbnf('root ::= s\ns ::= "" | "a" s "b" | "a" s "c"', ["", "ab", "aabc", "aaacbc"], ["a", "abc", "ba"])
gbnf('root ::= e\ne ::= t ("+" t)*\nt ::= f ("*" f)*\nf ::= [a-z] | "(" e ")"',
     ["a", "a+b*c", "(a+b)*c", "((a))"], ["a+", "(a", "a b"])
gbnf('root ::= l\nl ::= "x" l | "x"', ["x", "x" * 300], ["", "xy"])
gbnf('root ::= opt opt opt "!"\nopt ::= "a"? ws\nws ::= " "*', ["!", "aaa!", "a  a!"], ["aaaa!"])
gbnf('root ::= a a\na ::= b c\nb ::= "b"?\nc ::= "c"?', ["", "b", "c", "bc", "cb", "bcbc", "cc"], ["bbb", "ccc"])
gbnf('root ::= pal\npal ::= "" | "a" | "b" | "a" pal "a" | "b" pal "b"', ["", "abba", "ababa"], ["ab"])
gbnf('root ::= [가-힣]+ "😀"?', ["한국", "가😀"], ["", "a", "😀"])
gbnf('root ::= root "a" | "b"', ["b", "baaa"], ["", "a", "ab"])
gbnf('root ::= a\na ::= b\nb ::= a | "x"', ["x"], ["", "xx"])
gbnf('root ::= e\ne ::= e "+" t | t\nt ::= t "*" f | f\nf ::= "(" e ")" | [a-z]', ["a", "a+b*c+d", "(a+b)*c"], ["+a", "a+", "()"])
gbnf('root ::= "x" un | "y"\nun ::= "z" un', ["y"], ["x", "xz"])
for t, m in [('', "rule named root"), ('x ::= "a"', "rule named root"), ('root ::= "a', "end of a string"),
             ('root ::= b', "not defined"), ('root ::= "c" | root? root "a"', "recurses on the left"),
             ('root ::= a\na ::= b? a "x" | "y"\nb ::= "q"', "recurses on the left"),
             ('root ::= "a" root', "matches no text"), ('start: a', "lark: line 1"), ('root = "a"', "::="),
             ('root ::= "a" )', "expected"), ('root ::= ("a"', "expected )"), ('root ::= [b-a]', "lower to higher"),
             ('root ::= "a"{3,1}', "least"), ('root ::= "\\q"', "an escape"), ('root ::= "\\ud800"', "code point"),
             ('root ::= "a"\nroot ::= "b"', "twice"), ("root ::= " + "(" * 200, "100 nested"),
             ('root ::= "a"{1,1000000}', "too long"), ('root ::= <think>', "not supported"),
             ("root ::= " + " ".join(["[a-z]{9999}"] * 50), "too large")]:
    error("grammar", t, m)

# ---- JSON schemas ----
schema({}, ["1", '"a"', "null", "[1, {}]", '{"a":[true]}'], ["", "{", "01", "tru"])
schema(True, ["1", "{}"], ["x"])
schema({"type": "null"}, ["null"], ["0", "nul"])
schema({"type": "boolean"}, ["true", "false"], ["1", "True"])
schema({"type": "integer"}, ["0", "-1", "123456789012345678"], ["1.5", "01", "1e", '"1"'], ["1.0"])
schema({"type": "number"}, ["0", "-1.5", "1e5", "0.25E-3", "12"], [".5", "1.", "+1"])
schema({"type": "string"}, ['""', '"a"', '"é한😀"', '"\\n\\u00e9\\""', '"\\ud83d\\ude00"'],
       ['"', '"\n"', '"\\x"', "a", '"\\u12"'])
schema({"type": ["string", "null"]}, ['"a"', "null"], ["1"])
schema({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"한글"', '"a\\n😀"'], ['"a"', '"abcd"', '""'])
schema({"type": "string", "maxLength": 0}, ['""'], ['"a"'])
schema({"type": "string", "minLength": 2000}, ['"' + "a" * 2000 + '"'], ['"' + "a" * 1999 + '"'])
schema({"type": "string", "pattern": "^[a-z]+$"}, ['"abc"'], ['""', '"aB"'])
schema({"type": "string", "pattern": "b+"}, ['"b"', '"abc"', '"\\nbb\\""'], ['"a"', '""'])
schema({"type": "string", "pattern": "^a|z$"}, ['"ab"', '"a"', '"yz"'], ['"ba"', '"zy"'])
schema({"type": "string", "pattern": "^\"\\\\\n.$"}, ['"\\"\\\\\\nx"'], ['"x"'])
schema({"type": "string", "pattern": "^[^a]$"}, ['"b"', '"\\""', '"\\u0001"'], ['"a"', '"bb"'])
schema({"pattern": "^x$"}, ['"x"'], ['"y"'], ["1"])
schema({"type": "string", "format": "date"}, ['"2024-02-29"', '"1999-12-31"'],
       ['"2023-02-29"', '"2024-13-01"', '"2024-1-1"', '"2024-04-31"', '"1900-02-29"', '"0000-01-01"'])
schema({"type": "string", "format": "time"}, ['"23:59:59Z"', '"01:02:03.5+09:00"'], ['"24:00:00Z"', '"1:2:3"'])
schema({"type": "string", "format": "date-time"}, ['"2024-02-29T12:00:00Z"'], ['"2024-02-29"', '"2024-02-30T12:00:00Z"'])
schema({"type": "string", "format": "email"}, ['"a.b@c-d.org"'], ['"a"'], ['"a@b"', '"@"'])
schema({"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123e4567"'])
schema({"type": "string", "format": "ipv4"}, ['"0.0.0.0"', '"255.10.1.99"'], ['"256.0.0.1"', '"1.2.3"', '"01.2.3.4"'])
schema({"type": "string", "format": "ipv6"}, ['"::1"', '"1:2:3:4:5:6:7:8"', '"fe80::1"'], ['"1:2:3"', '"g::"'])
rows.append({"kind": "schema", "text": json.dumps({"type": "string", "format": "hostname"}),
             "yes": ['"a.b-c.de"'], "no": ['"-a"', '"a..b"']})
rows.append({"kind": "schema", "text": json.dumps({"type": "string", "format": "uri"}),
             "yes": ['"http://a.de/x?y#z"'], "no": ['"a"', '"http://"']})
rows.append({"kind": "schema", "text": json.dumps({"type": "string", "format": "duration"}),
             "yes": ['"P1D"', '"PT5M"', '"P3W"', '"P1Y2M3DT4H"' if False else '"P1Y2M3D"'], "no": ['"P"', '"1D"']})
schema({"type": "integer", "minimum": 0}, ["0", "7", "999999999999999999"], ["-1"])
schema({"type": "integer", "minimum": 3, "maximum": 17}, ["3", "9", "10", "17"], ["2", "18", "1", "100"])
schema({"type": "integer", "minimum": -12, "maximum": 105}, ["-12", "-9", "0", "99", "100", "105"], ["-13", "106", "-20"])
schema({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, ["1", "2"], ["0", "3"])
schema({"type": "integer", "minimum": 372, "maximum": 5918}, ["372", "999", "1000", "5918"], ["371", "5919", "99"])
schema({"type": "integer", "maximum": -5}, ["-5", "-10", "-999999"], ["-4", "0", "5"])
schema({"type": "integer", "minimum": 1.5, "maximum": 3.5}, ["2", "3"], ["1", "4"])
schema({"type": "integer", "multipleOf": 1}, ["5"], ["1.5"])
schema({"type": "number", "minimum": 0}, ["0", "0.0", "1.5", "12345.678"], ["-0.5", "-1"])
schema({"type": "number", "minimum": 0.25, "maximum": 1.5}, ["0.25", "0.3", "1", "1.49999", "1.5", "1.50"],
       ["0.2", "0.24999", "1.51", "2", "0"])
schema({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, ["0.5", "0.00001", "0.99"], ["0", "1", "0.0", "1.0"])
schema({"type": "number", "minimum": -2.5, "maximum": -0.5}, ["-2.5", "-1", "-0.5"], ["-2.6", "-0.4", "0", "1"])
schema({"type": "array"}, ["[]", "[1]", '[1, "a", []]'], ["[1,]", "["])
schema({"type": "array", "items": {"type": "integer"}}, ["[]", "[1]", "[1, 2,3]"], ['["a"]'])
schema({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}, ["[1,2]", "[1,2,3]"], ["[1]", "[]", "[1,2,3,4]"])
schema({"type": "array", "maxItems": 0}, ["[]"], ["[1]"])
schema({"type": "array", "items": False}, ["[]"], ["[1]"])
schema({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}, ["[]", "[1]", '[1,"a"]'],
       ['["a"]', '[1,2]'], ['[1,"a",2]'])
schema({"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}, "minItems": 2},
       ['[1,"a"]', '[1,"a","b"]'], ["[1]", "[1,2]"])
schema({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False, "minItems": 2}, ["[1, 2]"], ["[1]", "[1,2,3]", "[]"])
schema({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{"type": "integer"}],
        "additionalItems": {"type": "null"}, "minItems": 1}, ["[1]", "[1,null]"], ["[]", "[1,2]"])
schema({"type": "object"}, ["{}", '{"a":1}', '{"a": {"b": []}}'], ["[]", '{"a"}'])
ab = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"],
      "additionalProperties": False}
schema(ab, ['{"a":1}', '{"a": 1, "b": "x"}', '{"a":1,"b":""}', '{\n  "a": 1\n}'], ["{}", '{"b":"x"}', '{"a":1,"c":2}', '{"a":"x"}'],
       ['{"b":"x","a":1}', '{"a" :1}'])
schema({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}},
       ["{}", '{"a":1}', '{"b":2}', '{"c":3}', '{"a":1,"c":3}', '{"a":1,"b":2,"c":3}', '{"b":2,"c":3}'],
       ['{"a":2}', '{"a":1,}', '{,"b":2}'], ['{"d":4}', '{"c":3,"a":1}'])
schema({"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"type": "boolean"}},
       ["{}", '{"a":1}', '{"a":1,"b":true}', '{"ab":true,"c":false}'], ['{"b":1}', '{"a":true}', '{"b":true,"a":true}'])
schema({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
       ['{"a":1}', '{"a":1,"b":2}'], ["{}", '{"a":"x"}', '{"a":1,"b":2,"c":3}'])
schema({"type": "object", "required": ["z"]}, ['{"z":1}', '{"z":[]}'], ["{}", '{"y":1}'])
schema({"type": "object", "additionalProperties": False}, ["{}"], ['{"a":1}'])
schema({"type": "object", "patternProperties": {"^k[0-9]$": {"type": "integer"}}, "additionalProperties": False},
       ["{}", '{"k1":1}', '{"k1":1,"k2":2}'], ['{"k":1}', '{"k1":"a"}'])
schema({"type": "object", "propertyNames": {"pattern": "^[a-c]$"}}, ["{}", '{"a":1}'], ['{"d":1}'])
schema({"properties": {"q\"/\n": {"const": 1}}, "required": ["q\"/\n"]}, ['{"q\\"/\\n":1}'], ["{}"], ["5"])
schema({"enum": ["a", 1, None, True, {"b": [1]}]}, ['"a"', "1", "null", "true", '{"b":[1]}'], ['"b"', "2", "false"])
schema({"type": "string", "enum": ["a", 1]}, ['"a"'], ["1"])
schema({"const": "x\"y"}, ['"x\\"y"'], ['"x"'])
schema({"const": None}, ["null"], ["1"])
schema({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]}, ["1", '"a"'], ['"ab"', "null"])
schema({"type": "object", "properties": {"a": {"type": "integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
       ['{"a":1}', '{"b":1}', '{"a":1,"b":2}'], ["{}", '{"a":"x"}'])
schema({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["1", '"a"'], ["null"])
schema({"oneOf": [{"type": "object", "properties": {"k": {"const": c}, "v": {"type": t}}, "required": ["k", "v"],
                   "additionalProperties": False} for c, t in (("i", "integer"), ("s", "string"))]},
       ['{"k":"i","v":1}', '{"k":"s","v":"x"}'], ['{"k":"i","v":"x"}'])
schema({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, ["3", "5"], ["2", "6"])
schema({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                  {"properties": {"b": {"type": "string"}}, "required": ["b"]}]},
       ['{"a":1,"b":"x"}'], ['{"a":1}', '{"b":"x"}'])
schema({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}]}, ["2", "3"], ["1", "4"])
schema({"allOf": [{"anyOf": [{"const": 1}, {"const": 2}]}], "type": "integer"}, ["1", "2"], ["3"])
node = {"$defs": {"n": {"type": "object", "properties": {"v": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}, "required": ["v", "next"],
        "additionalProperties": False}}, "$ref": "#/$defs/n"}
schema(node, ['{"v":1,"next":null}', '{"v":1,"next":{"v":2,"next":null}}'], ['{"v":1}', '{"v":1,"next":{}}'])
schema({"type": "array", "items": {"$ref": "#"}}, ["[]", "[[],[[]]]"], ["[1]"])
schema({"properties": {"a/b": {"type": "null"}, "c": {"$ref": "#/properties/a~1b"}}, "required": ["c"], "type": "object"},
       ['{"c":null}'], ['{"c":1}'])
schema({"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "maxLength": 1}, ['"a"'], ['"ab"'])
rows.append({"kind": "schema", "text": json.dumps({"type": "integer", "nullable": True}), "yes": ["1", "null"], "no": ["{}"]})
schema({"type": "object", "title": "T", "description": "d", "x-own": 1, "default": {}, "properties": {}}, ["{}"], ["[]"])
schema({"type": "object", "properties": {"a": False, "b": {"const": 1}}}, ["{}", '{"b":1}'], ['{"a":1}'])
error("schema", False, "matches no text")
error("schema", {"type": "object", "properties": {"a": False}, "required": ["a"]}, "matches no text")
error("schema", {"$ref": "#"}, "#/$ref: it does not end")
error("schema", {"$ref": "#/$defs/x"}, "nothing is at")
error("schema", {"$ref": "http://x/y"}, "places in the schema itself")
error("schema", {"properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}}, "it does not end")
rows.append({"kind": "schema", "text": json.dumps({"anyOf": [{"$ref": "#"}, {"type": "null"}]}), "yes": ["null"],
             "no": ["0", ""]})  # jsonschema follows that $ref for ever
error("schema", {"type": "string", "minLength": 1000000000}, "#/minLength: expected an integer")
error("schema", {"type": "object", "properties": {"a": {"not": {"const": 1}}}}, "#/properties/a/not: this keyword")
schema({"type": "object", "properties": {"a": {"not": {}}, "b": {"const": 1}}}, ["{}", '{"b":1}'], ['{"a":1}'])
schema({"anyOf": [{"not": {}}, {"enum": ["a", "b"]}]}, ['"a"'], ["{}", '"c"'])
schema({"oneOf": [{"type": "string"}, {"type": "string", "not": {}}]}, ['"a"'], ["1"])
error("schema", {"type": "object", "properties": {"a": {"not": {}}}, "required": ["a"]}, "matches no text")
error("schema", {"if": {}}, "#/if")
error("schema", {"type": "array", "contains": {}}, "#/contains")
error("schema", {"type": "array", "uniqueItems": True}, "#/uniqueItems")
error("schema", {"type": "integer", "multipleOf": 3}, "#/multipleOf")
error("schema", {"type": "object", "dependentRequired": {}}, "#/dependentRequired")
error("schema", {"type": "object", "unevaluatedProperties": False}, "#/unevaluatedProperties")
error("schema", {"type": "sting"}, "expected a JSON type")
schema({"type": "string", "format": "password"}, ['"a"'], ["1"])
schema({"type": "string", "format": "file-path", "maxLength": 2}, ['"a"'], ['"abc"'])
schema({"type": "string", "format": "password", "pattern": "^a$"}, ['"a"'], ['"b"'])
schema({"$id": "https://a.de/b", "$defs": {"s": {"const": 1}}, "$ref": "https://a.de/b#/$defs/s"}, ["1"], ["2"])
error("schema", {"type": "string", "pattern": "(?=a)"}, "#/pattern: at byte")
error("schema", {"type": "string", "pattern": "^+[a-z]$"}, "nothing to repeat")
error("schema", {"type": "string", "pattern": "a", "minLength": 3}, "#/pattern: cannot be honoured with")
error("schema", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "may allow the same value")
error("schema", {"allOf": [{"type": "integer"}, {"type": "string"}]}, "no type is allowed")
error("schema", {"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "cannot be merged")
error("schema", {"type": "array", "minItems": 3, "maxItems": 2}, "it cannot be reached")
error("schema", {"enum": []}, "#/enum")
error("schema", {"type": "object", "properties": []}, "#/properties")
error("schema", {"type": "object", "properties": {"a": 1}}, "expected a schema")
error("schema", "[1", "JSON")
error("schema", "[]", "expected a schema")
error("schema", {"type": "integer", "minimum": 1e300}, "below 10^18")
error("schema", {"type": "integer", "minimum": 5, "maximum": 3}, "matches no text")
error("schema", {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}], "properties": {"c": {"$ref": "#/$defs/a"}}},
                           "b": {"properties": {"c": {"$ref": "#/$defs/b"}}}}, "$ref": "#/$defs/a"}, "merging")

# ---- any JSON object ----
rows.append({"kind": "json object", "text": "", "yes": ["{}", '{"a": [1, 2.5e3, "x\\n", null, {"b": true}]}', '{\n "a": 1\n}'],
             "no": ["[]", "1", '{"a":}', '{a:1}', '{"a":1,}', "{}x", " {}"]})

# draft 4's and OpenAPI 3.0's, which later drafts do not have
for schema4, yes, no in (({"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 3}, ["1", "3"], ["0", "4"]),
                         ({"type": "number", "minimum": 0, "maximum": 1, "exclusiveMaximum": True}, ["0", "0.5"], ["1", "1.0"]),
                         ({"type": "integer", "minimum": 0, "exclusiveMinimum": False}, ["0"], ["-1"])):
    rows.append({"kind": "schema", "text": json.dumps(schema4), "yes": yes, "no": no})

# bounds that are those of types
schema({"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}, ["0", "-1", "9007199254740991", "-9007199254740991"], ["9007199254740992", "-9007199254740992", "1.5"])
schema({"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991}, ["1", "9007199254740991"], ["0", "-1", "9007199254740992"])
schema({"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807}, ["0", "999999999999999999", "-999999999999999999"], [], ["1.0"])
schema({"type": "integer", "minimum": 0, "maximum": 18446744073709551615}, ["0", "7"], ["-1"])
schema({"type": "number", "minimum": 0, "maximum": 1.7976931348623157e+308}, ["0", "2.5", "99999.25"], ["-0.5", "-1"])
schema({"type": "number", "minimum": -1.7976931348623157e+308, "maximum": 3}, ["-2.5", "3", "-999999999999"], ["3.5", "4"])
schema({"type": "number", "minimum": 500000000000000.0, "maximum": 1e+300}, ["500000000000000", "500000000000000.5", "999999999999999"], ["5", "499999999999999"], ["1000000000000000"])
schema({"type": "number", "minimum": -1e+300, "maximum": -500000000000000.0}, ["-500000000000000"], ["5", "-5"])

with open(OUT, "w", encoding="utf-8") as f:
    for r in rows:
        f.write(json.dumps(r, ensure_ascii=True) + "\n")
print(len(rows), "rows,", sum(len(r.get("yes", [])) + len(r.get("no", [])) for r in rows), "texts")
