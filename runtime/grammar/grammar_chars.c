/* runtime/grammar/grammar_chars.c - a character class inside a JSON string: each character as itself where it
 * may stand so, or escaped. Source: RFC 8259, section 7. */
#include "runtime/grammar/grammar_int.h"

#include <stdio.h>

static bool has(const ga_range *r, int n, uint32_t c)
{
    for (int i = 0; i < n; i++)
        if (c >= r[i].lo && c <= r[i].hi) return true;
    return false;
}

/* \u0000 to \u001f. */
static ga_node *all_controls(ga_builder *b)
{
    static const ga_range tens[] = { { '0', '1' } }, ones[] = { { '0', '9' }, { 'a', 'f' } };
    ga_node *t = ga_seq(b);
    ga_add(t, ga_text(b, "\\u00"));
    ga_add(t, ga_chars(b, tens, 1, false));
    ga_add(t, ga_chars(b, ones, 2, false));
    return t;
}

ga_node *gj_chars(ga_builder *b, const ga_range *r, int n, bool negated)
{
    static const char shorts[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs: the character, its letter */
    static const ga_range must[] = { { 0, 0x1f }, { '"', '"' }, { '\\', '\\' } };
    ga_node *set = ga_chars(b, r, n, negated), *alt = ga_alt(b);
    if (!set || !alt) return NULL;
    ga_range *plain = ga_push(b, ((size_t)set->n_ranges + 3) * sizeof *plain);
    if (!plain) {
        ga_fail(b, LQ_ENOMEM, "grammar: out of memory");
        return NULL;
    }
    int k = 0;
    for (int i = 0; i < set->n_ranges; i++) { /* without what must be escaped */
        uint32_t from = set->ranges[i].lo;
        for (int m = 0; m < 3; m++) {
            if (must[m].hi < from || must[m].lo > set->ranges[i].hi) continue;
            if (must[m].lo > from) plain[k++] = (ga_range){ from, must[m].lo - 1 };
            from = must[m].hi + 1;
        }
        if (from <= set->ranges[i].hi) plain[k++] = (ga_range){ from, set->ranges[i].hi };
    }
    if (k) ga_add(alt, ga_chars(b, plain, k, false));
    for (size_t i = 0; i + 1 < sizeof shorts; i += 2) {
        char text[3] = { '\\', shorts[i + 1], 0 };
        if (has(set->ranges, set->n_ranges, (uint8_t)shorts[i])) ga_add(alt, ga_text(b, text));
    }
    int n_control = 0;
    for (uint32_t c = 0; c < 0x20; c++)
        n_control += has(set->ranges, set->n_ranges, c);
    if (n_control == 0x20) {
        ga_add(alt, all_controls(b));
        return alt;
    }
    for (uint32_t c = 0; c < 0x20; c++) {
        char text[8];
        snprintf(text, sizeof text, "\\u%04x", c);
        if (has(set->ranges, set->n_ranges, c)) ga_add(alt, ga_text(b, text));
    }
    return alt;
}
