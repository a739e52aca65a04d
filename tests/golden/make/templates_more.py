"""Expressions and statements of chat templates, one by one, rendered by Jinja2 itself.

usage: templates_more.py > tests/golden/templates/more.jsonl      (needs jinja2)

one object per line: source, vars, and rendered or error
"""
import datetime
import json
import sys

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise RuntimeError(message)


class Generation(Extension):
    """The scope that transformers gives to a generation block."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: datetime.datetime.now().strftime(f)
VARS = dict(
    s="Hello, World", u="Grüße 한국 😀 ß", sp="  pad\t\n", e="", i=7, n=-3, f=2.5, big=12345678901234, t=True, no=None,
    l=[3, 1, 2], m=["b", "A", "c"], d=dict(b=1, a=[1, {"x": None}], items=5, c="z"), empty=[], ed={},
    p=[dict(n="x", v=2, ok=True), dict(n="Y", v=1, ok=False), dict(n="x", v=3, ok=True)], nul="a\x00b", q="it's \"q\"\n\\",
    huge=123456789012345678901234567890,
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
# One template a line, ⏎ for a newline within it.
EDGE = r"""
{{ l | map('string') | tojson }}
{{ l | map('string') | length }}
{% if [] | map('upper') %}yes{% else %}no{% endif %}
{% if [] | select %}yes{% endif %}
{% set g = m | map('upper') %}{{ g | list }}{{ g | list }}
{% set g = m | map('upper') %}{{ g | first }}{{ g | list }}
{{ (m | map('upper'))[0] is defined }}{{ (m | map('upper'))[0] }}
{{ m | map('upper') | join(',') }}
{{ 'B' in (m | map('upper')) }}
{{ no | map('upper') | list }}{{ no | select | list }}{{ no | selectattr('a') | list }}{{ 0 | map('upper') | list }}
{{ d.keys() }}|{{ d.values() }}|{{ d.items() }}
{{ d.keys() | list }}{{ d.keys() | length }}{{ 'a' in d.keys() }}{{ 5 in d.values() }}
{{ d.keys() | tojson }}
{{ d.items() | tojson }}
{{ d.keys()[0] is defined }}{{ d.values() is iterable }}{{ d.keys() is sequence }}{{ range(3) is sequence }}{{ (l | map('abs')) is sequence }}{{ (l | map('abs')) is iterable }}
{{ range(3) }}{{ range(1, 5) }}{{ range(5, 1, -2) }}{{ range(3)[1] }}{{ range(3)[-1] }}{{ range(10)[2:5] }}{{ range(10)[::-3] }}{{ range(3) | tojson }}
{{ range(3) + [1] }}
{{ range(3) == [0, 1, 2] }}{{ range(3) == range(0, 3) }}{{ range(0) | length }}{{ range(4) | sum }}{{ range(4) | last }}{{ range(4) | reverse | list }}
{{ (l | reverse) | length }}
{{ 'abc' | reverse }}{{ 'abc' | list | reverse | join }}
{{ l | unique | length }}
{{ l | batch(2) | length }}
{{ p | groupby('n') | length }}{% for k, g in p | groupby('n') %}{{ k }}:{{ g | map(attribute='v') | list }};{% endfor %}
{% for g in p | groupby('n') %}{{ g.grouper }}={{ g.list | length }};{% endfor %}
{{ p | groupby('ok', default=1) | length }}
{{ range(7) | slice(3) | list }}{{ range(7) | slice(3, 'x') | list }}{{ [] | slice(2) | list }}
{{ range(7) | batch(3) | list }}{{ range(7) | batch(3, 'x') | list }}
{{ 'a b  c-d' | wordcount }}{{ 'é1_x, 나 다' | wordcount }}
{{ 'The quick brown fox' | truncate(9) }}|{{ 'The quick brown fox' | truncate(9, true) }}|{{ 'The quick brown fox' | truncate(16) }}|{{ 'The quick' | truncate(9, leeway=0) }}|{{ 'Thequickbrown' | truncate(8, false, '…', 0) }}
{{ 'a b/c?d=é&f' | urlencode }}|{{ {'a b': 'c/d', 'x': 1} | urlencode }}|{{ [('q', 'ü')] | urlencode }}
{{ {'class': 'x "y"', 'id': none, 'n': 3} | xmlattr }}|{{ {'a': 'b'} | xmlattr(false) }}
{{ '<a>' | safe + '<b>' }}|{{ '<a>' + '<b>' | safe }}|{{ '<a>' | safe ~ '<b>' }}|{{ '<a>' | e + '<b>' }}
{{ ('<a>' | safe) is escaped }}{{ '<a>' is escaped }}{{ ('<a>' | safe | upper) + '&' }}{{ ('<a>' | safe).strip('<') + '&' }}{{ ('<a>' | safe)[1:] + '&' }}{{ ('<' | safe) * 2 + '&' }}
{{ ('<a>' | safe | replace('a', 'b')) + '<' }}|{{ ('<a>' | safe | trim) + '<' }}|{{ ('<a>' | safe | string) + '<' }}|{{ ['<', '<' | safe] | join('&') }}|{{ ('<' | safe | tojson) }}|{{ ['<' | safe] }}
{{ '<' | forceescape }}{{ '<' | e | e }}{{ '<' | e | forceescape }}{{ 5 | e }}{{ no | e }}
{{ ('a<' | safe).split('a') }}{{ ('x,<' | safe).split(',')[1] + '<' }}
{% set x %}<{{ s }}{% endset %}{{ x + '<' }}
{% macro f() %}<{% endmacro %}{{ f() + '<' }}
{{ [1, 2][[]] is defined }}{{ {}[[]] is defined }}{{ {}[{}] is defined }}{{ d[nope] is defined }}{{ d[none] is defined }}{{ {none: 1}[none] }}{{ {1: 'a'}[true] }}{{ {(1, 2): 3}[(1, 2)] }}
{{ [] in {} }}
{{ {}.get([]) }}
{{ l[0].x is defined }}{{ l['0'] is defined }}{{ s['0'] is defined }}{{ l[1.0] is defined }}{{ l[true] }}
{{ l[9] }}|{{ l[9].x }}
{{ d.nope.x }}
{{ no.x.y }}
{{ s[99].y }}
{{ nope['a']['b'] }}
{{ l['x'].y }}
{{ d[3].y }}
{{ d[no].y }}
{{ d[(1, 2)].y }}
{{ ([] | first).x }}
{{ ([] | last).x }}
{{ ([] | min).x }}
{{ ('x' if false).y }}
{{ ns_undefined.x is defined }}
{{ (no | default('x', true)).upper() }}{{ (nope | default).x is defined }}
{{ l.append }}|{{ l.append is defined }}|{{ l.append is callable }}
{{ l.append(1) }}
{{ d.update({}) }}
{{ d.pop('a') }}{{ d['pop'] is defined }}
{{ {'pop': 1}.pop is defined }}{{ {'pop': 1}['pop'] }}{{ {'items': 1}['items'] }}{{ {'keys': 1}.keys is callable }}
{{ s.__class__ is defined }}{{ s['__class__'] is defined }}{{ d.__len__ is defined }}{{ {'__x': 1}['__x'] }}{{ {'_x': 1}._x }}
{{ s.__class__.__mro__ }}
{{ s.__class__() }}
{{ f_undefined.__globals__ }}
{{ raise_exception.__globals__ }}
{{ range.__self__.x }}
{{ s | attr('upper') is defined }}{{ (s | attr('nope')) is defined }}{{ (d | attr('b')) is defined }}{{ s | attr('__class__') is defined }}
{% for a in [[1, [2, [3]]], 4] recursive %}{% if a is iterable %}<{{ loop(a) }}>{% else %}{{ a }}@{{ loop.depth }}/{{ loop.depth0 }} {% endif %}{% endfor %}
{% for n in [{'n': 'a', 'c': [{'n': 'b', 'c': []}, {'n': 'c', 'c': [{'n': 'd'}]}]}] recursive %}{{ loop.index }}{{ n.n }}({{ loop(n.c) if n.c }}){% endfor %}
{% for x in l recursive if x > 1 %}{{ x }}{% endfor %}
{% for x in l if x > 1 recursive %}{{ x }}{% endfor %}
{% for x in l %}{{ loop(l) }}{% endfor %}
{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, a=3) }}{{ f() }}
{% macro f(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ f(1, 2, 3) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, b=2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}
{% macro f(a) %}{{ a is defined }}{{ a }}{% endmacro %}{{ f() }}
{% macro f(a) %}{{ a.x }}{% endmacro %}{{ f() }}
{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1]) }}{{ f(*[1, 2]) }}{{ f(**{'a': 1, 'b': 5}) }}{{ f(*[1], **{'b': 7}) }}
{% macro f(a, b='x') %}{{ f.name }}{{ f.arguments }}{{ f.catch_kwargs }}{{ f.catch_varargs }}{{ f.caller }}{% endmacro %}{{ f() }}
{% macro f() %}{{ kwargs.a }}{{ caller is defined }}{{ caller() if caller }}{% endmacro %}{{ f(a=1) }}{% call f(a=2) %}z{% endcall %}
{% macro f() %}a{% endmacro %}{% call f() %}z{% endcall %}
{% macro f(x) %}{{ caller(x, y=2) }}{% endmacro %}{% call(a, y=1) f(3) %}{{ a }}{{ y }}{% endcall %}
{% macro outer() %}{% macro inner() %}{{ caller() }}{% endmacro %}{% call inner() %}i{% endcall %}{{ caller() }}{% endmacro %}{% call outer() %}o{% endcall %}
{% macro f() %}{% set g = 9 %}{{ g }}{% endmacro %}{% set g = 1 %}{{ f() }}{{ g }}
{% macro f(x) %}{% if x %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
{% macro f() %}{{ loop is defined }}{% endmacro %}{% for x in [1] %}{{ f() }}{% endfor %}
{% for x in [1] %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}{% endfor %}
{{ dict(*[[('a', 1)]], **{'b': 2}) }}{{ dict([('x', 1)]) }}{{ dict({'a': 1}, a=2) }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns['a'] }}{% set ns.c = ns.a + 1 %}{{ ns.c }}{{ ns.zz is defined }}
{{ namespace(a=1) }}
{% set ns = namespace() %}{% set ns.x, ns.y = 1, 2 %}{{ ns.x }}{{ ns.y }}
{% set ns = namespace() %}{% set ns.x %}abc{% endset %}{{ ns.x }}
{% set ns = namespace(a=1) %}{{ ns.b }}|{{ ns.b.c }}
{% set a = b = 1 %}
{% set (a, b) = (1, 2) %}{{ a }}{{ b }}{% set a, (b, c) = 1, (2, 3) %}{{ c }}
{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for k, v in {'a': 1} | items %}{{ k }}{{ v }}{% endfor %}{% for k, v in {'a': 1} | dictsort %}{{ k }}{{ v }}{% endfor %}
{% for a in [1, 2, 3] %}{% if loop.changed(a // 2) %}c{% endif %}{{ loop.cycle('x', 'y') }}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}
{% for a in [1] %}{{ loop.previtem.x }}{% endfor %}
{% for a in [1, 2] %}{{ loop }}{% endfor %}
{% for a in [1, 2] %}{% for b in [1, 2] %}{{ loop.index }}{% if b == a %}{% break %}{% endif %}{% else %}e{% endfor %}{% endfor %}
{% for a in [] %}x{% else %}{% for b in [1] %}{{ b }}{% endfor %}{% endfor %}
{% for a in [1, 2, 3] %}{% if a == 2 %}{% continue %}{% endif %}{% set z = a %}{{ z }}{% endfor %}{{ z is defined }}
{% for a in [1, 2] %}{% set outer = loop %}{% for b in [1, 2] %}{{ outer.index }}.{{ loop.index }} {% endfor %}{% endfor %}
{% for x in nope or [] %}a{% else %}b{% endfor %}{% for c in 'ab' %}{{ loop.length }}{{ c }}{% endfor %}{% for x in d %}{{ x }}{% endfor %}
{% for x in l | sort(reverse=true) if x != 2 %}{{ loop.index }}/{{ loop.length }}{{ x }}{% endfor %}
{% if x is defined and x.y %}a{% elif not nope %}b{% endif %}
{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q | length }}
{% with a = 1, b = a %}{{ a }}{{ b is defined }}{% endwith %}
{% filter indent(2) | upper %}a⏎b{% endfilter %}
{% set x | trim | upper %} a {% endset %}[{{ x }}]
{{ 1 if false }}|{{ (1 if false) is defined }}|{{ 'a' ~ (1 if false) ~ 'b' }}|{{ 1 if true else 2 if true else 3 }}
{{ 'x' | nofilter if false }}ok{% if false %}{{ 'x' | nofilter }}{{ 1 is notest }}{% endif %}
{% if true %}{{ 'x' | nofilter }}{% endif %}
{% for x in [] %}{{ 'x' | nofilter }}{% endfor %}
{% if false %}{% for x in [] %}{{ 'x' | nofilter }}{% endfor %}{% endif %}
{{ 7 // 2 }}{{ -7 // 2 }}{{ 7 // -2 }}{{ 7 % -3 }}{{ -7 % 3 }}{{ 7.5 // 2 }}{{ -7.5 // 2 }}{{ 7.5 % -2 }}{{ 2 ** 0.5 }}{{ 2 ** -2 }}{{ 0 ** 0 }}{{ 1.0 // 0.1 }}{{ -0.0 // 1 }}{{ 6 / 3 }}{{ 1e300 * 1e10 }}{{ 3.0 }}{{ 1e22 }}{{ 1.5e-7 }}{{ 123456789012345678 }}
{{ true + true }}{{ true * 3 }}{{ -true }}{{ 1 + 1.0 }}{{ 3 * 'ab' }}{{ [1] * 2 }}{{ 'ab' * -1 }}{{ (1,) * 2 }}{{ 2 - -1 }}{{ - -1 }}
{{ 9223372036854775807 }}{{ -9223372036854775807 - 1 }}
{{ huge }}{{ huge | tojson }}{{ [huge] }}{{ huge is integer }}{{ huge is number }}{{ huge == huge }}{{ huge | string | length }}{{ huge is string }}
{{ 1 < 2 < 3 == 3 }}{{ 1 < 2 > 1 }}{{ 1 == 1.0 == true }}{{ 'a' in 'abc' in ['abc'] }}{{ 1 in [1] == true }}{{ not 1 in [2] }}{{ 1 not in [2] }}{{ (1, 2) < (1, 3) }}{{ [1] == (1,) }}{{ 'a' < 'B' }}{{ none == false }}{{ '' == false }}
{{ 'a' < none }}
{{ none < 1 }}
{{ [] < {} }}
{{ nope == nope }}{{ nope == '' }}{{ nope != none }}{{ nope in [nope] }}{{ nope ~ 'x' }}{{ nope | length }}{{ nope | list }}{{ nope | string }}{{ nope | upper }}{{ nope is none }}{{ nope | join }}{{ nope | tojson if false }}
{{ nope + 'x' }}
{{ 'x' + nope }}
{{ nope | int }}
{{ nope | float }}
{{ -nope }}
{{ nope < 1 }}
{{ 1 < nope }}
{{ nope in 'abc' }}
{{ 'a' in nope }}
{{ nope[0] }}
{{ nope[1:] }}
{{ nope.upper() }}
{{ nope | abs }}
{{ nope | round }}
{{ nope | sum }}
{{ nope | first }}|{{ nope | min }}|{{ nope | sort }}|{{ nope | unique | list }}|{{ nope | reverse | list }}|{{ nope | dictsort if false }}|{{ nope | items | list }}
{{ '%s' % nope }}|{{ '%s' | format(nope) }}
{{ '%d' % 'x' }}
{{ '%s %s' % 'x' }}
{{ '%s' % ('a', 'b') }}
{{ '%s' % [1, 'a'] }}|{{ '%s' % {'a': 1} }}|{{ '%(a)s %(b)d' % {'a': 1, 'b': 2} }}|{{ '%5.1f|%-6s|%06d|%+d|% d|%x|%X|%o|%#x|%e|%g|%c|%%' % (3.14159, 'ab', 42, 5, 7, 255, 255, 8, 255, 12345.678, 0.0001, 'z') }}
{{ '%r %s' % ('é', 'é') }}|{{ '%s' % true }}|{{ '%d' % true }}|{{ '%5s|%-5s|%.2s' % ('a', 'b', 'xyz') }}|{{ '%i' % 3.99 }}|{{ '%*d' % (5, 3) }}
{{ '{} {}'.format('a', 1) }}|{{ '{1}{0}'.format('a', 'b') }}|{{ '{a}{b}'.format(a=1, b='x') }}|{{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') }}|{{ '{:05d}|{:+d}|{:,}|{:_}|{:x}|{:#x}|{:o}|{:e}|{:.2f}|{:.1%}|{:g}'.format(42, 5, 1234567, 1234567, 255, 255, 8, 1234.5, 3.14159, 0.256, 0.0001) }}|{{ '{!r}|{!s}|{:5}|{:.2}'.format('a', 'b', 3, 'xyz') }}|{{ '{{}}{}'.format(1) }}|{{ '{0[a]}{0.a}'.format({'a': 1}) if false }}|{{ '{0[a]}'.format({'a': 1}) }}|{{ '{0[1]}'.format([1, 2]) }}|{{ '{:{}}|'.format('a', 4) }}|{{ '{:8.3f}|{:<8}|{}'.format(3.14159, 1.5, 1.0) }}|{{ '{:d}'.format(true) }}|{{ '{}'.format(none) }}
{{ '{}'.format() }}
{{ '{x}'.format() }}
{{ '{'.format() }}
{{ '}'.format() }}
{{ '{:d}'.format('x') }}
{{ 'a,b,,c'.split(',') }}{{ ' a b '.split() }}{{ 'a b c'.split(' ', 1) }}{{ 'a b c'.split(maxsplit=1) }}{{ 'a b c'.rsplit(' ', 1) }}{{ 'a  b  c'.rsplit(none, 1) }}{{ 'a b c'.rsplit() }}{{ ''.split() }}{{ ''.split(',') }}{{ 'abc'.split('') if false }}{{ 'a-b-c'.split('-', 0) }}{{ 'aXbXc'.split(sep='X') }}
{{ 'abc'.split('') }}
{{ 'hello'.find('l', 3) }}{{ 'hello'.find('l', 0, 2) }}{{ 'hello'.rfind('l', 0, 3) }}{{ 'hello'.count('l', 3) }}{{ 'hello'.index('l', 1) }}{{ 'hello'.rindex('l') }}{{ 'hello'.startswith('ll', 2) }}{{ 'hello'.endswith('ll', 0, 4) }}{{ 'héllo'.find('l', -3) }}{{ 'abc'.find('') }}{{ 'abc'.find('', 3) }}{{ 'abc'.find('', 4) }}{{ 'abc'.count('') }}{{ 'aaa'.count('aa') }}
{{ 'hello'.index('z') }}
{{ 'hello'.startswith(1) }}
{{ 'hello'.startswith(('x', 'he')) }}{{ ''.startswith('') }}{{ 'a'.endswith(()) }}
{{ 'a\tb\n\tc'.expandtabs() }}|{{ 'a\tb'.expandtabs(4) }}
{{ 'abc'.isascii() }}{{ 'é'.isascii() }}{{ ''.isascii() }}{{ 'a b'.isprintable() }}{{ 'a\n'.isprintable() }}{{ 'a1_'.isidentifier() }}{{ '1a'.isidentifier() }}{{ 'Ab Cd'.istitle() }}{{ 'Ab cd'.istitle() }}{{ '²'.isdigit() }}{{ '²'.isdecimal() }}{{ '½'.isnumeric() }}{{ 'ab'.isalpha() }}{{ ''.isalpha() }}{{ ' \t'.isspace() }}{{ 'aB'.swapcase() }}{{ 'a1'.isalnum() }}{{ 'A1'.isupper() }}{{ '1'.isupper() }}
{{ 'ß'.upper() }}{{ 'ΑΣ'.lower() }}{{ 'ΑΣΑ'.lower() }}{{ 'ﬁx'.upper() }}{{ 'ŉ'.upper() }}{{ 'ß'.casefold() }}{{ 'ﬁ'.title() }}{{ 'éa'.capitalize() }}{{ "they're bill's".title() }}{{ "they're bill's" | title }}{{ 'x-ray (foo) [bar]' | title }}{{ 'ÀB c' | title }}
{{ 'abc'.zfill(5) }}{{ '-1'.zfill(5) }}{{ '+1'.zfill(4) }}{{ 'a'.center(4, '*') }}{{ 'ab'.center(5, '*') }}{{ 'a'.ljust(3, '.') }}{{ 'a'.rjust(3, '.') }}{{ 'abc'.center(2) }}
{{ 'www.x.com'.strip('cmow.') }}{{ 'xxaxx'.lstrip('x') }}{{ 'xxaxx'.rstrip('x') }}{{ '  a '.strip(none) }}{{ 'a  b' .replace(' ', '') }}{{ 'aaa'.replace('a', 'b', 2) }}{{ 'abc'.replace('', '-', 2) }}{{ '\u00a0a\u3000'.strip() }}
{{ 'a\nb\r\nc\x0bd\u2028e'.splitlines() }}{{ 'a\n\nb\n'.splitlines(true) }}{{ ''.splitlines() }}
{{ ','.join(['a', 'b']) }}{{ ','.join('abc') }}{{ ','.join({'x': 1}) }}{{ ','.join([]) }}
{{ ','.join([1]) }}
{{ 'a=b=c'.partition('=') }}{{ 'abc'.partition('=') }}{{ 'abc'.rpartition('=') }}{{ 'aabb'.removeprefix('a') }}{{ 'aabb'.removesuffix('b') }}
{{ 'x'.upper(1) }}
{{ 'x' | upper(1) }}
{{ l | length(1) }}
{{ 'abc' | replace('a') }}
{{ 'a1b1' | replace(1, 'x') }}{{ 11 | replace('1', 2) }}{{ 'aaa' | replace('a', 'b', count=1) }}{{ 'aaa' | replace('a', 'b', 0) }}
{{ 'abc' | indent }}|{{ 'a⏎b⏎⏎c' | indent(2) }}|{{ 'a⏎b' | indent(2, first=true) }}|{{ 'a⏎⏎b' | indent(2, blank=true) }}|{{ 'a⏎b' | indent('> ') }}|{{ 'a⏎b⏎' | indent(2) }}|{{ '⏎a' | indent(1, true) }}
{{ 3.14159 | round(2) }}{{ 2.5 | round }}{{ -2.5 | round }}{{ 1234 | round(-2) }}{{ 7 | round(1) }}{{ 2.675 | round(2) }}{{ 2.1 | round(0, 'ceil') }}{{ 2.15 | round(1, 'floor') }}{{ 3 | round(0, 'ceil') }}{{ true | round }}{{ 1e20 | round }}{{ 0.5 | round | int }}
{{ '42' | int }}{{ ' 42 ' | int }}{{ '4_2' | int }}{{ '1e3' | int }}{{ '3.9' | int }}{{ '-3.9' | int }}{{ 'x' | int }}{{ 'x' | int(default=-1) }}{{ 'ff' | int(0, 16) }}{{ '0xff' | int(0, 16) }}{{ '0b11' | int(0, 2) }}{{ '' | int }}{{ no | int }}{{ true | int }}{{ 1e3 | int }}{{ -1.7 | int }}{{ [] | int }}{{ 'inf' | int }}{{ '+5' | int }}{{ '٣' | int }}
{{ '3.5' | float }}{{ 'x' | float }}{{ 'x' | float(1.5) }}{{ 'inf' | float }}{{ 'nan' | float }}{{ '1_0.5' | float }}{{ 3 | float }}{{ true | float }}{{ no | float }}{{ ' 2 ' | float }}{{ '1e400' | float }}
{{ [1, 2.5] | sum }}{{ [[1], [2]] | sum(start=[]) }}{{ [] | sum }}{{ p | sum('v') }}{{ p | sum(attribute='v', start=10) }}{{ [true, true] | sum }}
{{ ['a'] | sum }}
{{ [3, 1] | min }}{{ ['b', 'A'] | max }}{{ ['b', 'A'] | min(case_sensitive=true) }}{{ p | max(attribute='v') }}{{ [] | max is defined }}{{ [1, 'a'] | min if false }}
{{ [1, 'a'] | sort }}
{{ ['b', 'A', 'a', 'B'] | sort }}{{ ['b', 'A', 'a'] | sort(case_sensitive=true) }}{{ ['b', 'A', 'a', 'B'] | sort(true) }}{{ p | sort(attribute='n,v') | map(attribute='v') | list }}{{ p | sort(attribute='n,v', reverse=true) | map(attribute='v') | list }}{{ {'b': 1, 'a': 2} | sort }}{{ 'bca' | sort }}
{{ ['A', 'a', 'b', 1, 1.0, true] | unique | list }}{{ ['A', 'a'] | unique(true) | list }}{{ p | unique(attribute='n') | map(attribute='v') | list }}
{{ p | map(attribute='n') | map('upper') | join('+') }}{{ p | map(attribute='zz') | list | length }}{{ p | map(attribute='zz', default='q') | join }}{{ ['a b'] | map('replace', ' ', '_') | list }}{{ [[1, 2]] | map('join', '-') | list }}{{ [1] | map('float') | list }}{{ [{'a': {'b': 1}}] | map(attribute='a.b') | list }}{{ [[1, 2], [3, 4]] | map(attribute=1) | list }}{{ [[5, 6]] | map(attribute='0') | list }}
{{ p | map(attribute='zz.0.q', default='-') | list }}{{ [{'a': [{'b': 1}]}, {}] | map(attribute='a.0.b', default='') | list }}
{{ l | map('nofilter') | list }}
{{ l | map | list }}
{{ [] | map('nofilter') | list }}
{{ l | select('nofilter') | list }}
{{ l | select('>', 1) | list }}{{ l | select('in', [1, 3]) | list }}{{ l | reject('==', 1) | list }}{{ [none, 0, '', 'a'] | select | list }}{{ [none, 1] | reject('none') | list }}{{ p | selectattr('v', '>', 1) | map(attribute='v') | list }}{{ p | selectattr('zz') | list }}{{ p | selectattr('zz', 'defined') | list }}{{ p | rejectattr('zz', 'undefined') | list }}{{ p | rejectattr('n', 'in', ['x']) | list | length }}{{ [1, 2, 3, 4] | select('divisibleby', 2) | list }}{{ ['a', 1] | select('string') | list }}
{{ {'b': 1, 'a': 2} | dictsort }}{{ {'b': 1, 'A': 2} | dictsort(true) }}{{ {'b': 1, 'a': 2} | dictsort(by='value') }}{{ {'b': 1, 'a': 2} | dictsort(reverse=true) }}
{{ {'b': 1} | dictsort(by='zz') }}
{{ l | dictsort }}
{{ {'a': 1} | items | list }}{{ {'a': 1}.items() | list }}{{ {'a': 1} | list }}{{ {'a': 1} | first }}{{ {'a': 1, 'b': 2} | last }}{{ 'abc' | first }}{{ 'abc' | last }}{{ {'a': 1} | length }}{{ {'a': [1, 'x', none, true, 1.0]} }}
{{ [1, 2] | tojson }}{{ {'a': [1, {'b': none}], 'c': true} | tojson(indent=2) }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}{{ [1, 2] | tojson(separators=(',', ':')) }}{{ {'a': 1} | tojson(indent=1, separators=(', ', ' : ')) }}{{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}{{ '</script>&\'"' | tojson }}{{ 'é😀\u2028\x7f\x01' | tojson }}{{ 'é😀\x7f' | tojson(ensure_ascii=true) }}{{ 1e5 | tojson }}{{ 1.0 | tojson }}{{ 1e16 | tojson }}{{ -0.0 | tojson }}{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=2) }}{{ [[], {}] | tojson(indent=4) }}{{ [1] | tojson(indent='--') }}{{ [1, 2] | tojson(indent=0) }}{{ [1, [2]] | tojson(false, 2) }}{{ (1, 2) | tojson }}
{{ nope | tojson }}
{{ {(1, 2): 3} | tojson }}
{{ {'b': 1, 2: 3} | tojson(sort_keys=true) }}
{{ raise_exception | tojson }}
{{ 1 is integer }}{{ true is integer }}{{ 1.0 is float }}{{ 1 is number }}{{ true is number }}{{ 'a' is string }}{{ [] is sequence }}{{ {} is sequence }}{{ {} is mapping }}{{ none is none }}{{ none is mapping }}{{ nope is mapping }}{{ nope is iterable }}{{ nope is sequence }}{{ 'a' is iterable }}{{ 1 is iterable }}{{ true is boolean }}{{ 1 is boolean }}{{ 0 is false }}{{ false is false }}{{ 1 is true }}{{ range is callable }}{{ 'x' is callable }}{{ 'abc' is lower }}{{ 'Abc' is upper }}{{ 4 is even }}{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 4 is divisibleby(3) }}{{ 'upper' is filter }}{{ 'nofilter' is filter }}{{ 'odd' is test }}{{ 'zz' is test }}
{{ 1 is eq 1 }}{{ 1 is equalto 2 }}{{ 1 is ne 2 }}{{ 1 is lt 2 }}{{ 1 is lessthan 2 }}{{ 2 is gt 1 }}{{ 2 is greaterthan 1 }}{{ 2 is ge 2 }}{{ 2 is le 1 }}{{ 1 is in [1] }}{{ 'a' is in 'abc' }}{{ 1 is sameas 1 }}{{ true is sameas 1 }}{{ none is sameas none }}{{ 1 is not eq 1 }}{{ not 1 is eq 2 }}{{ 1 is == 1 }}
{{ 1 is not defined }}{{ nope is not defined }}{{ nope is undefined and true }}{{ 1 is number and 'a' is string or false }}{{ 1 + 1 is number }}{{ 'a' ~ 'b' is string }}{{ [1] | length is gt 0 }}{{ 3 is divisibleby 3 and true }}{{ not nope is defined }}{{ nope is defined is false }}
{{ s[1:3] }}{{ s[:-1] }}{{ s[-3:] }}{{ s[::2] }}{{ s[::-1] }}{{ s[5:2] }}{{ s[5:2:-1] }}{{ s[100:] }}{{ l[:2] }}{{ l[-2:] }}{{ l[::-1] }}{{ l[1:][0] }}{{ (1, 2, 3)[1:] }}{{ s[none:2] }}{{ 'é나😀x'[1:3] }}{{ 'é나😀x'[-2] }}{{ l[:-1] | length }}{{ s[1:nope] if false }}
{{ s['a':] }}
{{ s[::0] }}
{{ d[1:] }}
{{ 'a' 'b' ~ "c" }}{{ "a\"b" }}{{ 'a\\b' }}{{ '\x41\u00e9\101' }}{{ 'a\⏎b' }}{{ '\q' }}
{{ 0x1F }}{{ 0o17 }}{{ 0b101 }}{{ 1_000 }}{{ 1e3 }}{{ 1.5E-2 }}{{ 10.0 }}{{ 1_0.5_0 }}
{{ [1, 2,] }}{{ (1,) }}{{ {'a': 1,} }}{{ () }}{{ (1) }}{{ 1, 2 }}{{ ((1, 2), 3)[0][1] }}{{ [[]] }}
{{ true }}{{ True }}{{ false }}{{ none }}{{ None }}{{ not true }}{{ 1 and 0 or 2 }}{{ '' or [] or 'z' }}{{ 1 and [] }}
{{ d.a }}{{ d['a'] }}{{ d.get('zz', 'q') }}{{ d.get('b') }}
{{ d.zz.get('a') }}
{{ no.get('a') }}
{{ s.nope }}|{{ s.nope is defined }}
{{ s.nope() }}
{{ 5() }}
{{ 'x'() }}
{{ 'Ünï'.lower() }}{% set größe = 3 %}{{ größe }}{{ {'ключ': 1}.ключ }}
{% set ns = namespace(x=1) %}{{ ns['x'] }}{{ ns | string }}
{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}{% set k = joiner() %}{{ k() }}{{ k() }}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}
  {%- if true -%}  a  {%- endif -%}  b
  {%+ if true +%}  a  {%+ endif +%}  b
  {%- set x = 1 +%}⏎ y
  {{- 'a' -}}  ⏎  {{ 'b' -}}⏎ {{- 'c' }}⏎
a⏎  {#- c -#}  ⏎b  {# c #}⏎  {# d #}  ⏎e{#+ f +#}⏎g
a {% raw %} {{ x }} {% if %} {# #} {% endraw %} b
a  {%- raw -%}  {{ x }}  {%- endraw -%}  b
  {% raw %}⏎ x⏎  {% endraw %}⏎y
  {% if true %}⏎    a⏎  {% else %}⏎    b⏎  {% endif %}⏎  c
⏎⏎{% if true %}⏎⏎x⏎⏎{% endif %}⏎⏎
x {% if true %} {% endif %} y
	{% set a = 1 %}	⏎z
{% if true %}a{% endif %}⏎⏎b⏎
{{ 'a' }}⏎{{ 'b' }}⏎⏎
  {{ 'a' }}  ⏎  {% set x = 1 %}{{ x }}  ⏎
{%if true%}a{%endif%}{{'b'}}{{-'c'-}}
{% set x = {'a': {'b': [1, 2, {'c': 'd'}]}} %}{{ x.a.b[2].c }}{{ x['a']['b'][2]['c'] }}{{ x.a['b'].0 }}{{ x.a.b.1 }}
{{ {'a': '}}'} }}{{ '%}' }}{{ "{#" }}{{ '{{' }}{{ {'a': {}} }}
{{ [1, 2, 3] | join(', ') | upper | length }}{{ ('a' if true else 'b') | upper }}{{ -1 | abs }}{{ (-1) | abs }}{{ 2 ** 3 | string }}{{ 'a' + 'b' | upper }}
{{ 1.1 + 2.2 }}{{ 0.1 * 3 }}{{ 1 / 3 }}{{ 100 / 10 }}{{ 5e-324 }}{{ 1.7976931348623157e308 }}{{ 123456.789e3 }}{{ 0.00001 }}{{ 0.0001 }}{{ 1e15 }}{{ 9999999999999998.0 }}{{ 1e-10 }}
{{ 1 / 0 }}
{{ 1 // 0 }}
{{ 1 % 0 }}
{{ 1.0 / 0 }}
{{ 5 % 0.0 }}
{{ 'a' - 1 }}
{{ [] - [] }}
{{ {} + {} }}
{{ none + 1 }}
{{ 'a' * 'b' }}
{{ 1 in 5 }}
{{ 1 in none }}
{{ 1 in 'abc' }}
{{ range('a') }}
{{ range() }}
{{ range(1, 2, 0) }}
{{ range(100000) | length }}
{{ range(100001) }}
{{ raise_exception('é "x" ' ~ 5) }}
{{ raise_exception() }}
{{ strftime_now('%Y') | length }}{{ strftime_now('%d %b %Y') | length }}{{ strftime_now('%%') }}{{ strftime_now('') | length }}{{ strftime_now('%f') | length }}{{ strftime_now('x%Zy%z') }}
{% generation %}a{{ s }}{% endgeneration %}b
  {% generation %}⏎  x⏎  {% endgeneration %}⏎y
{% for m2 in [1, 2] %}{% generation %}{{ m2 }}{% set zz = m2 %}{% endgeneration %}{{ zz is defined }}{% endfor %}
{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}
{% set x = 1 %}{% if true %}{% set x = 2 %}{% endif %}{{ x }}{% for i in [1] %}{{ x }}{% set x = 3 %}{{ x }}{% endfor %}{{ x }}
{% set x = 1 %}{% for i in [1, 2] %}{% if i == 1 %}{% set x = 5 %}{% endif %}{{ x }}{% endfor %}
{% for x in [1] %}{% for x in [2] %}{{ x }}{% endfor %}{{ x }}{% endfor %}{{ x is defined }}
{% set messages = l[1:] %}{{ messages }}{% set l = 0 %}{{ l }}
{% do l.append(1) %}
{% include 'x' %}
{% import 'x' as y %}
{% extends 'x' %}
{% trans %}x{% endtrans %}
{% for %}{% endfor %}
{% for x l %}{% endfor %}
{% if true %}a{% else %}b{% else %}c{% endif %}
{% else %}
{% endfor %}
{% macro %}{% endmacro %}
{% set %}
{{ }}
{{ 'a' | }}
{{ a. }}
{{ (1, }}
{{ 1 if }}
{{ 'abc' is }}
{{ [1 2] }}
{{ "abc }}
{% raw %}{{ x }}
{{ x | default(1, 2, 3, 4) }}
{{ 'a' if 1 else }}
{{ ! }}
{{ a ? b : c }}
{{ 1 === 1 }}
{{ $x }}
{# unclosed
{% call 5 %}x{% endcall %}
{% continue %}
""".strip("\n")


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
for source in sources + STMT + [line.replace("⏎", "\n") for line in EDGE.splitlines()]:
    case = dict(source=source)
    try:
        case["rendered"] = env.from_string(source).render(**VARS)
    except Exception as e:
        case["error"] = type(e).__name__
        case["error_message"] = str(e)
    print(json.dumps(case))
print(json.dumps(dict(vars=VARS)))
print(len(sources), "expressions,", len(STMT), "statements", file=sys.stderr)
