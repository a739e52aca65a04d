/* runtime/grammar/grammar_range.c - numbers between two bounds as rules over their digits.
 *
 * A decimal number with `places` digits behind the point is a whole number of units of 10^-places:
 * the rules are those of whole numbers, with a point put in. lo..hi is cut by the count of digits;
 * within one count, as 372..5918 is cut by its first digit: 3 then at least 72, 4 then anything,
 * ..., 5 then at most 918. */
#include "runtime/grammar/grammar_int.h"

typedef struct {
    ga_builder *b;
    int places;
} range;

static ga_node *digit(const range *r, int lo, int hi)
{
    if (lo > hi) return NULL;
    return ga_chars(r->b, &(ga_range){ (uint32_t)('0' + lo), (uint32_t)('0' + hi) }, 1, false);
}

/* The point, when `left` digits are still to come behind it. */
static void point(const range *r, ga_node *seq, int left)
{
    if (r->places > 0 && left == r->places) ga_add(seq, ga_text(r->b, "."));
}

/* n digits of any value, least to most of them; the point comes before the last `places`. */
static void any_digits(const range *r, ga_node *seq, int least, int most)
{
    int behind = least < r->places ? least : r->places;
    if (least < r->places) most = least; /* callers leave a choice before the point only */
    if (most > behind) ga_add(seq, ga_repeat(r->b, digit(r, 0, 9), least - behind, most - behind));
    if (behind == 0) return;
    point(r, seq, behind);
    ga_add(seq, ga_repeat(r->b, digit(r, 0, 9), behind, behind));
}

/* One digit of lo..hi and n digits of any value after it. */
static void digit_and_any(const range *r, ga_node *alt, int lo, int hi, int n)
{
    ga_node *first = digit(r, lo, hi), *seq = first ? ga_seq(r->b) : NULL;
    if (!seq) return;
    point(r, seq, n + 1);
    ga_add(seq, first);
    any_digits(r, seq, n, n);
    ga_add(alt, seq);
}

typedef enum { AT_LEAST = 1, AT_MOST = 2 } bound;

/* Numbers of n digits that are >= lo (AT_LEAST) and <= hi (AT_MOST), digit by digit. */
static ga_node *tight(const range *r, const char *lo, const char *hi, int n, int how)
{
    ga_node *seq = ga_seq(r->b);
    for (; n > 0 && how == (AT_LEAST | AT_MOST) && *lo == *hi; lo++, hi++, n--) {
        point(r, seq, n);
        ga_add(seq, digit(r, *lo - '0', *lo - '0'));
    }
    if (n == 0) return seq;
    ga_node *alt = ga_alt(r->b);
    int from = how & AT_LEAST ? *lo - '0' + 1 : 0, to = how & AT_MOST ? *hi - '0' - 1 : 9;
    for (int side = AT_LEAST; side <= AT_MOST; side++) {
        const char *s = side == AT_LEAST ? lo : hi;
        if (!(how & side)) continue;
        ga_node *one = ga_seq(r->b);
        point(r, one, n);
        ga_add(one, digit(r, *s - '0', *s - '0'));
        if (n > 1) ga_add(one, tight(r, lo + 1, hi + 1, n - 1, side));
        ga_add(alt, one);
    }
    digit_and_any(r, alt, from, to, n - 1);
    ga_add(seq, alt);
    return seq;
}

static int64_t power(int n)
{
    int64_t p = 1;
    while (n-- > 0)
        p *= 10;
    return p;
}

/* 0 <= lo <= hi; the whole part has no zero in front unless it is one. */
static void whole(const range *r, ga_node *alt, int64_t lo, int64_t hi)
{
    int first = r->places + 1; /* digits of the smallest: 0.05 is 005 */
    for (int n = first; n <= GR_MAX_DIGITS; n++) {
        int64_t least = n == first ? 0 : power(n - 1), most = power(n) - 1;
        int64_t a = lo > least ? lo : least, z = hi < most ? hi : most;
        char low[GR_MAX_DIGITS], high[GR_MAX_DIGITS];
        if (a > z) continue;
        if (n > first && a == least && z == most) { /* several counts of digits that are whole */
            int last = n;
            while (last < GR_MAX_DIGITS && hi >= power(last + 1) - 1)
                last++;
            ga_node *seq = ga_seq(r->b);
            ga_add(seq, digit(r, 1, 9));
            any_digits(r, seq, n - 1, last - 1);
            ga_add(alt, seq);
            n = last;
            continue;
        }
        for (int i = n; i-- > 0; a /= 10, z /= 10) {
            low[i] = (char)('0' + a % 10);
            high[i] = (char)('0' + z % 10);
        }
        ga_add(alt, tight(r, low, high, n, AT_LEAST | AT_MOST));
    }
}

ga_node *gj_range(ga_builder *b, int64_t lo, int64_t hi, int places)
{
    range r = { b, places };
    ga_node *alt = ga_alt(b);
    if (lo < 0) {
        ga_node *minus = ga_seq(b), *below = ga_alt(b);
        ga_add(minus, ga_text(b, "-"));
        whole(&r, below, hi < 0 ? -hi : 1, -lo);
        ga_add(minus, below);
        ga_add(alt, minus);
    }
    if (hi >= 0) whole(&r, alt, lo > 0 ? lo : 0, hi);
    return alt;
}
