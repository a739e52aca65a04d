"""Expressions and statements of chat templates, one by one, rendered by Jinja2 itself.

usage: templates_more.py > tests/golden/templates/more.jsonl      (needs jinja2)

one object per line: source, vars, and rendered or error
"""
import json
import sys

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise RuntimeError(message)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
VARS = dict(
    s="Hello, World", u="Grüße 한국 😀 ß", sp="  pad\t\n", e="", i=7, n=-3, f=2.5, big=12345678901234, t=True, no=None,
    l=[3, 1, 2], m=["b", "A", "c"], d=dict(b=1, a=[1, {"x": None}], items=5, c="z"), empty=[], ed={},
    p=[dict(n="x", v=2, ok=True), dict(n="Y", v=1, ok=False), dict(n="x", v=3, ok=True)], nul="a\x00b", q="it's \"q\"\n\\",
)
EXPR = """
s | s ~ i ~ f ~ no ~ t | [s, i, f, no, t, l, d] | q | [q] | {'k': q} | [u] | nul | [nul] | (1,) | (1, 2) | () | []
i + 1 | i - 10 | i * 3 | i / 2 | i // 2 | i % 3 | n // 2 | n % 2 | n / 2 | 2 ** 10 | 2 ** -1 | -i | +i | -f | 7.0 // 2 | -7.5 % 2
1e16 | 1e15 | 123456.789 | 1e-4 | 1e-5 | 0.1 + 0.2 | 1/3 | 100.0 | 1e100 | -0.0 | big * 3 | 0x1F | 1_000 | 1.5e3
s + '!' | s * 2 | 2 * s | l + [4] | l * 2 | (1,) + (2,) | 'a' 'b' | "\\n\\t\\x41\\u00e9\\\\" | '\\q'
i == 7 | i == 7.0 | t == 1 | 'a' == 'a' | l == [3,1,2] | d == d | no == none | i != 7 | 1 < 2 < 3 | 1 < 3 < 2 | 'a' < 'b' | [1,2] < [1,3]
'World' in s | 'x' not in s | 3 in l | 'a' in d | 9 in l | none in [none] | '' in s
t and i | e or 'x' | not e | not t and t | t or raise_exception('never') | e and raise_exception('never') | 'y' if e else 'n' | 'y' if t | ('y' if e) is defined
s[0] | s[-1] | s[1:4] | s[::-1] | s[::2] | s[5:1:-1] | s[-3:] | s[:100] | u[1:4] | u[-1] | l[0] | l[-1] | l[1:] | l[::-1] | l[5:] | d['a'] | d.a | d['a'][1].x | d['items'] | d.nope | d['nope'] is defined | l[9] is defined | l.0
nope | nope is defined | nope is undefined | nope | default('x') | e | default('x') | e | default('x', true) | no | default('x') | no | default('x', boolean=true)
s is string | i is number | f is number | t is number | i is integer | t is integer | f is float | t is boolean | d is mapping | l is mapping | l is iterable | s is iterable | i is iterable | l is sequence | no is none | s is none | i is odd | i is even | i is divisibleby 7 | i is divisibleby(2) | t is true | t is false | s is eq 'x' | i is eq 7 | i is gt 3 | i is in [7] | i is not in [7] | 'abc' is lower | 'ABC' is upper | raise_exception is callable | no is sameas none
s | upper | s | lower | 'hELLO wORLD' | capitalize | "it's a-b c" | title | sp | trim | 'xxaxx' | trim('x') | s | length | u | length | l | length | d | length | s | replace('l', 'L') | s | replace('l', 'L', 1) | s | reverse | l | reverse | list | s | first | s | last | l | first | l | last
l | sort | l | sort(reverse=true) | m | sort | m | sort(case_sensitive=true) | p | sort(attribute='v') | map(attribute='v') | list | m | join(', ') | l | join | p | join('-', attribute='n') | l | sum | p | sum(attribute='v') | l | min | l | max | m | min | [1,1,2] | unique | list | ['a','A'] | unique | list
p | map(attribute='n') | list | m | map('upper') | list | m | map('replace', 'b', 'x') | list | l | select('odd') | list | l | reject('odd') | list | l | select('gt', 1) | list | p | selectattr('ok') | list | length | p | rejectattr('ok') | list | length | p | selectattr('n', 'equalto', 'x') | map(attribute='v') | list | [0, 1, '', 'a'] | select | list | p | map(attribute='zz', default='-') | list
d | tojson | l | tojson | s | tojson | u | tojson | u | tojson(ensure_ascii=true) | d | tojson(indent=2) | d | tojson(indent=0) | ed | tojson(indent=2) | empty | tojson(indent=2) | d | tojson(separators=(',', ':')) | d | tojson(sort_keys=true) | f | tojson | no | tojson | t | tojson | nul | tojson | q | tojson | 1e20 | tojson | (1, 2) | tojson
d | dictsort | {'B':1,'a':2} | dictsort | {'B':1,'a':2} | dictsort(true) | {'x':2,'y':1} | dictsort(by='value') | d | items | list | length | d | list | s | list | first
'3.7' | int | '12' | int | 'x' | int | 'x' | int(9) | 3.9 | int | '0x1f' | int(base=16) | '3.5' | float | 'x' | float | '1e3' | float | i | float | -5 | abs | 2.567 | round(2) | 2.5 | round | 3.5 | round | 2.1 | round(method='ceil') | 2.9 | round(0, 'floor') | 42 | round | i | string | l | string
'a\\nb\\n\\nc' | indent | 'a\\nb' | indent(2, true) | 'a\\n\\nb' | indent(2, blank=true) | '<a & "b">' | e | 'x' | safe | 'x' | center(5) | 'ab' | center(5)
l | batch(2) | list | p | groupby('n') | map('first') | list | 'a' | list | 'ab' | attr('upper') is defined
'%s-%d' | format('a', 3) | '%s' % 'x' | '%s %r' % ('x', 'y') | '%05.2f|%5d|%-5d|%x|%%' % (3.14159, 42, 42, 255) | '%(a)s' % {'a': 1} | '%s' % no | '%d' % 3.9 | '%.3s' % 'abcdef' | '%5s|' % 'é' | '%e' % 12345.678 | '%g' % 0.00001
sp.strip() ~ '|' | sp.lstrip() ~ '|' | sp.rstrip() ~ '|' | 'xyax'.strip('xy') | s.split() | s.split(', ') | 'a,b,c'.split(',', 1) | 'a,b,c'.rsplit(',', 1) | ' a  b '.split() | ' a  b '.split(' ') | ' a b c '.split(none, 1) | 'a\\nb\\r\\nc'.splitlines() | 'a\\nb'.splitlines(true) | s.startswith('He') | s.endswith(('x', 'd')) | s.find('W') | s.find('zz') | s.rfind('o') | s.index('W') | s.count('l') | s.replace('o', '0') | 'abc'.replace('', '-') | s.upper() | s.lower() | s.title() | 'aB'.swapcase() | s.capitalize() | '12'.isdigit() | 'a1'.isalnum() | 'ab'.isalpha() | ' '.isspace() | 'AB'.isupper() | 'ab'.islower() | '5'.zfill(3) | '-5'.zfill(4) | 'a'.ljust(3) ~ '|' | 'a'.rjust(3) | 'a'.center(4) ~ '|' | '-'.join(m) | 'a=b=c'.partition('=') | 'a=b=c'.rpartition('=') | 'abc'.partition('x') | 'prefix-x'.removeprefix('prefix-') | 'x.txt'.removesuffix('.txt') | '{} {}'.format(1, 'x') | '{0}{1}{0}'.format('a', 'b') | '{x}'.format(x=3) | '{{}}'.format()
d.keys() | list | d.values() | list | length | ed.items() | list | d.get('b') | d.get('zz') | d.get('zz', 4) | l.index(1) | l.count(3) | d.copy() == d | dict(a=1, b=2) | dict(d, b=9).b
range(5) | list | range(1, 4) | list | range(10, 0, -3) | list | range(3) | length | namespace(a=1).a
u | upper | u | lower | 'ß' | upper | 'ǆ' | title | 'İ' | lower | length | 'ﬁ' | length
'abc' | upper ~ 'd' | -i | abs | 1 + 2 ~ 3 | 2 * 3 ~ 4 | not i == 7 | i is odd and t | 'a' ~ 'b' == 'ab' | 2 ** 3 ** 2 | -2 ** 2 | (1, 2)[0] | {'a': {'b': 1}}.a.b | [[1, 2], [3]][0][1] | ('a' ~ 'b') | upper
i + s | s + i | nope + 1 | nope.x | no.x | no.x.y | l.append(1) | d.a.b.c | 1 / 0 | i() | 'a' < 1 | nope() | s.nope() | l | join(nope) | nope | length | nope | list | no | length | i | list | raise_exception('boom: ' ~ i) | {}['x'].y | [] + 'a' | 'a' - 1 | -s | 5 in 5 | 3 in 'abc' | range(100001) | length | nope | tojson | s[nope]
"""
STMT = [
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in [] %}a{% else %}none{% endfor %}", "{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}", "{% for c in 'añ' %}[{{ c }}]{% endfor %}",
    "{% for x in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}", "{% for x in l %}{% for y in m %}{{ loop.depth }}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{{ x }}{% set x = y %}{% endfor %}{{ x }}", "{% set ns = namespace(x=0) %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set x %}<{{ s }}>{% endset %}{{ x | length }}", "{% set x | upper %}{{ s }}{% endset %}{{ x }}",
    "{% if e %}1{% elif i %}2{% else %}3{% endif %}", "{% if nope %}1{% else %}2{% endif %}", "{% if t %}{% set z = 1 %}{% endif %}{{ z }}",
    "{% macro f(a, b=2, c=b) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(a=4, c=5) }}", "{% macro f() %}{{ caller() }}!{% endmacro %}{% call f() %}x{% endcall %}",
    "{% macro f() %}({{ caller(1) }}){% endmacro %}{% call(v) f() %}<{{ v }}>{% endcall %}", "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(4) }}",
    "{% set g = 5 %}{% macro f() %}{{ g }}{% endmacro %}{{ f() }}", "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aXa{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% raw %}{{ x }}{% endraw %}", "{%- raw -%} {% a %} {%- endraw -%} x",
    "a\n{% if t %}\nb\n{% endif %}\nc\n", "a\n  {% if t %}  \n  b\n  {% endif %}  \nc", "a  {%- if t -%}  b  {%- endif -%}  c", "a\n  {%+ if t %}x{% endif +%}\nb", "a {# c #}\n b", "  {# c #}\nb", "{{ s -}}  \n x", "x \n {{- s }}",
    "x{% if t %} y{% endif %}\n\nz\n\n", "{{ '{{' }}{{ '}}' }}{{ \"%}\" }}", "{{ {'a': {'b': 1}}['a']['b'] }}", "{{ s }}\r\n{{ i }}\r", "\n\n{% set x = 1 %}\n\n{{ x }}", "  {{ s }}  \n  {% set a = 1 %}  x",
    "{% for x in l -%}\n  {{ x }}\n{%- endfor %}", "{% for x in l %}\n{{ x }}\n{% endfor %}\n", "{%- for x in l %}\n  - {{ x }}\n{%- endfor %}\nend", "{% set x = [] %}{% set x = x + [1] %}{{ x }}",
    "{{ s }", "{% if %}", "{% endif %}", "{% for x in %}{% endfor %}", "{{ 1 + }}", "{{ 'a }}", "{% foo %}", "{{ x | nofilter }}", "{{ x is notest }}", "{% if t %}", "{{ (1 }}", "{{ [1 }}", "{# a", "{% raw %} x", "{% set 1 = 2 %}", "{{ a b }}", "{% break %}", "{% for x in l %}{% endif %}{% endfor %}",
    "{% for a, b in l %}{% endfor %}", "{% set ns = 1 %}{% set ns.x = 1 %}", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "{% for x in 5 %}{% endfor %}", "{% for x in nope %}a{% endfor %}b", "{% for x in nope.y %}a{% endfor %}",
]


def split(line):
    """Expressions are separated by " | " where what follows is no filter: tried by compiling."""
    parts, out = line.split(" | "), []
    while parts:
        for k in range(len(parts), 0, -1):
            text = " | ".join(parts[:k])
            ok = all(p.split("(")[0].split(" ")[0] in env.filters for p in parts[1:k])
            if ok:
                out.append(text)
                parts = parts[k:]
                break
    return out


SHADOWED = {"l", "e", "d"}
sources = []
for line in EXPR.strip().splitlines():
    for x in split(line):
        sources.append("{{ " + x + " }}")
for source in sources + STMT:
    case = dict(source=source)
    try:
        case["rendered"] = env.from_string(source).render(**VARS)
    except Exception as e:
        case["error"] = type(e).__name__
        case["error_message"] = str(e)
    print(json.dumps(case))
print(json.dumps(dict(vars=VARS)))
print(len(sources), "expressions,", len(STMT), "statements", file=sys.stderr)
