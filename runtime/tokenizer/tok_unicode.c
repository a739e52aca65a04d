/* runtime/tokenizer/tok_unicode.c - where the tokenizers library knows another Unicode than utf8proc: its
 * classes of characters are Unicode 8.0's, its normal forms 9.0's, its numbers and lower case
 * 17.0's. Tables by tests/golden/make/tok_unicode.py. */
#include "runtime/tokenizer/tok_text.h"

typedef struct {
    uint32_t first, last;
    uint32_t value;
} range;

static const range *find(const range *r, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (r[mid].last < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && r[lo].first <= cp ? &r[lo] : NULL;
}

/* Marks, punctuation, controls and what has a decomposition, by the version that brought them: 9,
 * or 10 for all later ones. Other characters between them may be in a range too. */
static const range ages[] = {
    { 0x61D, 0x61D, 10 },     { 0x7FD, 0x7FD, 10 },     { 0x890, 0x8D3, 10 },
    { 0x8D4, 0x8E1, 9 },      { 0x8E2, 0x8E2, 10 },     { 0x9FD, 0x9FE, 10 },
    { 0xA76, 0xA76, 10 },     { 0xAFA, 0xAFF, 10 },     { 0xB55, 0xB55, 10 },
    { 0xC04, 0xC3C, 10 },     { 0xC77, 0xC77, 10 },     { 0xC84, 0xC84, 10 },
    { 0xCF3, 0xD00, 10 },     { 0xD3B, 0xD3C, 10 },     { 0xD81, 0xD81, 10 },
    { 0xEBA, 0xEBA, 10 },     { 0xECE, 0xECE, 10 },     { 0x1715, 0x1715, 10 },
    { 0x180F, 0x180F, 10 },   { 0x1885, 0x1886, 9 },    { 0x1ABF, 0x1ACE, 10 },
    { 0x1B7D, 0x1B7E, 10 },   { 0x1CF7, 0x1CF7, 10 },   { 0x1DF6, 0x1DFA, 10 },
    { 0x1DFB, 0x1DFB, 9 },    { 0x2E43, 0x2E5D, 10 },   { 0x32FF, 0x32FF, 10 },
    { 0xA7F2, 0xA7F4, 10 },   { 0xA82C, 0xA82C, 10 },   { 0xA8C5, 0xA8C5, 9 },
    { 0xA8FF, 0xA8FF, 10 },   { 0xA9BD, 0xA9BD, 9 },    { 0xAB69, 0xAB69, 10 },
    { 0x10781, 0x107BA, 10 }, { 0x10D24, 0x10F89, 10 }, { 0x11070, 0x11074, 10 },
    { 0x110C2, 0x110CD, 10 }, { 0x11145, 0x11146, 10 }, { 0x111CE, 0x111CF, 10 },
    { 0x1123E, 0x1123E, 9 },  { 0x11241, 0x11241, 10 }, { 0x1133B, 0x1133B, 10 },
    { 0x11438, 0x1143F, 9 },  { 0x11442, 0x11444, 9 },  { 0x11446, 0x11446, 9 },
    { 0x1144B, 0x1145E, 10 }, { 0x11660, 0x1166C, 10 }, { 0x116B9, 0x116B9, 10 },
    { 0x1182C, 0x11B09, 10 }, { 0x11C30, 0x11C3D, 9 },  { 0x11C3F, 0x11C3F, 9 },
    { 0x11C41, 0x11C71, 10 }, { 0x11C92, 0x11CA7, 9 },  { 0x11CAA, 0x11CB0, 9 },
    { 0x11CB2, 0x11CB3, 9 },  { 0x11CB5, 0x11CB6, 9 },  { 0x11D31, 0x11FFF, 10 },
    { 0x12FF1, 0x13455, 10 }, { 0x16E97, 0x16F4F, 10 }, { 0x16F7F, 0x16F87, 10 },
    { 0x16FE2, 0x16FF1, 10 }, { 0x1CF00, 0x1CF46, 10 }, { 0x1E000, 0x1E02A, 9 },
    { 0x1E030, 0x1E4EF, 10 }, { 0x1E944, 0x1E94A, 9 },  { 0x1E95E, 0x1E95F, 10 },
    { 0x1F16C, 0x1F16C, 10 }, { 0x1FBF0, 0x1FBF9, 10 }
};

bool tok_newer_than(uint32_t cp, uint32_t version)
{
    const range *r = cp < ages[0].first ? NULL : find(ages, LQ_COUNT(ages), cp);
    return r && r->value > version;
}

bool tok_is_late_number(uint32_t cp)
{
    static const range late[] = { { 0x10D40, 0x10D49, 0 }, { 0x116D0, 0x116E3, 0 },
                                  { 0x11BF0, 0x11BF9, 0 }, { 0x11DE0, 0x11DE9, 0 },
                                  { 0x16130, 0x16139, 0 }, { 0x16D70, 0x16D79, 0 },
                                  { 0x16FF4, 0x16FF6, 0 }, { 0x1CCF0, 0x1CCF9, 0 },
                                  { 0x1E5F1, 0x1E5FA, 0 } };
    return find(late, LQ_COUNT(late), cp) != NULL;
}

uint32_t tok_late_lower(uint32_t cp)
{
    static const range late[] = { /* value: the lower case of the first */ { 0x1C89, 0x1C89,
                                                                             0x1C8A },
                                  { 0xA7CB, 0xA7CB, 0x264 },
                                  { 0xA7CC, 0xA7CC, 0xA7CD },
                                  { 0xA7CE, 0xA7CE, 0xA7CF },
                                  { 0xA7D2, 0xA7D2, 0xA7D3 },
                                  { 0xA7D4, 0xA7D4, 0xA7D5 },
                                  { 0xA7DA, 0xA7DA, 0xA7DB },
                                  { 0xA7DC, 0xA7DC, 0x19B },
                                  { 0x10D50, 0x10D65, 0x10D70 },
                                  { 0x16EA0, 0x16EB8, 0x16EBB } };
    const range *r = find(late, LQ_COUNT(late), cp);
    return r ? r->value + (cp - r->first) : cp;
}
