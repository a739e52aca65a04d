/* tests/unit/test_grammar_left.c - rules that begin with themselves: random grammars take the texts that their rules
 * derive, found by deriving them all, and no others. */
#include "tests/support/grammar_takes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 6, TEXTS = (2 << LONGEST) - 1, RULES = 4, WAYS = 3, ITEMS = 3 };

/* Text i of the letters a and b: its length is that of i + 1 in bits less 1, its letters the bits below the first. */
static int length_of(int i) { return 31 - __builtin_clz((unsigned)i + 1); }
static int joined(int i, int k)
{
    const int n = length_of(k);
    return length_of(i) + n > LONGEST ? -1 : ((i + 1) << n | (k + 1 - (1 << n))) - 1;
}
static void spell(char *out, int i)
{
    const int n = length_of(i);
    for (int b = 0; b < n; b++)
        out[b] = (i + 1) >> (n - 1 - b) & 1 ? 'b' : 'a';
    out[n] = 0;
}

typedef struct {
    int what; /* a rule; RULES: 'a'; RULES + 1: 'b' */
    char times;
} item;
typedef struct {
    int n_rules, n_ways[RULES], n_items[RULES][WAYS];
    item items[RULES][WAYS][ITEMS];
    bool derived[RULES][TEXTS];
    bool plain; /* nothing may be empty */
} rules;

static uint64_t rng = 7;
static int draw(int n)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (int)((uint32_t)(rng >> 33) % (unsigned)n);
}

static void draw_rules(rules *g)
{
    static const char times[] = "        ?*+";
    memset(g, 0, sizeof *g);
    g->n_rules = 1 + draw(RULES);
    g->plain = draw(2);
    for (int r = 0; r < g->n_rules; r++) {
        g->n_ways[r] = 1 + draw(WAYS);
        for (int w = 0; w < g->n_ways[r]; w++) {
            g->n_items[r][w] = g->plain ? 1 + draw(ITEMS) : draw(ITEMS + 1);
            for (int i = 0; i < g->n_items[r][w]; i++) {
                const int k = w ? draw(2 * g->n_rules + 2) : draw(3); /* most end somewhere */
                g->items[r][w][i].what = k < 2 ? RULES + k : (k - 2) / 2;
                g->items[r][w][i].times = g->plain ? ' ' : times[draw((int)sizeof times - 1)];
            }
        }
    }
}

static void print_rules(char *out, const rules *g)
{
    out += sprintf(out, "root ::= r0\n");
    for (int r = 0; r < g->n_rules; r++) {
        out += sprintf(out, "r%d ::= ", r);
        for (int w = 0; w < g->n_ways[r]; w++) {
            out +=
                sprintf(out, "%s", w ? " | " : ""); /* an empty one in quotes: a | may end a line */
            out += sprintf(out, "%s", g->n_items[r][w] ? "" : "\"\" ");
            for (int i = 0; i < g->n_items[r][w]; i++) {
                const item x = g->items[r][w][i];
                if (x.what < RULES)
                    out += sprintf(out, "r%d%c ", x.what, x.times);
                else
                    out += sprintf(out, "\"%c\"%c ", 'a' + x.what - RULES, x.times);
            }
        }
        out += sprintf(out, "\n");
    }
}

/* to: with all texts of an item behind all of `from`. */
static void follow(const rules *g, item x, const bool *from, bool *to)
{
    bool one[TEXTS] = { false };
    if (x.what >= RULES)
        one[1 + x.what - RULES] = true;
    else
        memcpy(one, g->derived[x.what], sizeof one);
    memset(to, 0, TEXTS);
    if (x.times == '?' || x.times == '*') memcpy(to, from, TEXTS);
    bool more = true;
    while (more) {
        const bool first = x.times == ' ' || x.times == '?';
        more = false;
        for (int i = 0; i < TEXTS; i++)
            for (int k = 0; k < TEXTS && (from[i] || (!first && to[i])); k++) {
                const int t = one[k] ? joined(i, k) : -1;
                if (t < 0 || to[t]) continue;
                to[t] = true;
                more = !first;
            }
    }
}

static void derive_all(rules *g)
{
    for (bool more = true; more;) {
        more = false;
        for (int r = 0; r < g->n_rules; r++)
            for (int w = 0; w < g->n_ways[r]; w++) {
                bool at[2][TEXTS] = { { true } };
                for (int i = 0; i < g->n_items[r][w]; i++)
                    follow(g, g->items[r][w][i], at[i % 2], at[(i + 1) % 2]);
                const bool *all = at[g->n_items[r][w] % 2];
                for (int i = 0; i < TEXTS; i++) {
                    more |= all[i] && !g->derived[r][i];
                    g->derived[r][i] |= all[i];
                }
            }
    }
}

TEST(random_rules_take_what_they_derive)
{
    int taken = 0, refused = 0, nothing = 0;
    for (int n = 0; n < 3000; n++) {
        static rules r;
        char text[1024], s[LONGEST + 1];
        grammar *g = NULL;
        lq_err err = { "" };
        draw_rules(&r);
        derive_all(&r);
        print_rules(text, &r);
        const gr_spec spec = { .kind = GR_GRAMMAR, .text = text, .n = strlen(text) };
        if (gr_compile(&g, &spec, NULL, &err)) {
            const bool left = strstr(err.msg, "recurses on the left");
            bool any = false;
            for (int i = 0; i < TEXTS; i++)
                any |= r.derived[0][i];
            CHECK(left ? !r.plain : strstr(err.msg, "matches no text") && !any, "%s%s", text,
                  err.msg);
            left ? refused++ : nothing++;
            continue;
        }
        taken++;
        for (int i = 0; i < TEXTS; i++) {
            spell(s, i);
            CHECK(grammar_takes(g, s) == r.derived[0][i], "%s'%s' is %sone of it", text, s,
                  r.derived[0][i] ? "" : "not ");
        }
        gr_unref(g);
    }
    CHECK(taken > 1000 && nothing > 100, "%d taken, %d refused, %d of nothing", taken, refused,
          nothing);
    printf("%d taken, %d refused, %d of nothing\n", taken, refused, nothing);
}

/* A list that is made from its left is as long as one likes: no deeper stack for each. */
TEST(a_list_from_the_left_is_of_any_length)
{
    static const char text[] =
        "root ::= list\nlist ::= list \",\" one | one\none ::= [0-9]+ | \"(\" list \")\"\n";
    grammar *g = NULL;
    lq_err err = { "" };
    char s[4001];
    for (int i = 0; i < 4000; i++)
        s[i] = i % 2 ? ',' : '7';
    s[3999] = 0;
    CHECK(!gr_compile(&g, &(gr_spec){ .kind = GR_GRAMMAR, .text = text, .n = strlen(text) }, NULL,
                      &err),
          "%s", err.msg);
    CHECK(grammar_takes(g, s) && grammar_takes(g, "1,(2,(3)),4") && !grammar_takes(g, "1,"),
          "a list");
    gr_unref(g);
}

/* Long chains of rules that begin with the next are looked at once each; too many that begin with each other are
 * refused. */
TEST(chains_and_large_cycles_end)
{
    static const struct {
        int n;
        bool up, cycle;
        const char *part;
    } cases[] = { { 30000, true, false, NULL },
                  { 30000, false, false, NULL },
                  { 60, true, true, NULL },
                  { 70, true, true, "more than 64 rules begin with themselves" } };
    for (size_t c = 0; c < LQ_COUNT(cases); c++) {
        char *text = malloc(1 << 20), *p = text;
        const int n = cases[c].n;
        grammar *g = NULL;
        lq_err err = { "" };
        for (int i = 0; i < n; i++) {
            const int r = cases[c].up ? i : n - 1 - i;
            p += sprintf(p, r + 1 < n ? "r%d ::= r%d \"x\"" : "r%d ::= \"y\"", r, r + 1);
            p += sprintf(p, r + 1 == n && cases[c].cycle ? " | r0 \"z\"\n" : "\n");
        }
        p += sprintf(p, "root ::= r%d\n", cases[c].cycle ? 0 : n - 100);
        const gr_spec spec = { .kind = GR_GRAMMAR, .text = text, .n = strlen(text) };
        const lq_status s = gr_compile(&g, &spec, NULL, &err);
        CHECK(cases[c].part ? s && strstr(err.msg, cases[c].part) : !s, "%d: %s", n, err.msg);
        gr_unref(g);
        free(text);
    }
}

int main(int argc, char **argv)
{
    RUN(random_rules_take_what_they_derive);
    RUN(a_list_from_the_left_is_of_any_length);
    RUN(chains_and_large_cycles_end);
    return check_end();
}
