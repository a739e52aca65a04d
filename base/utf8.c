/* base/utf8.c - see utf8.h. */
#include "base/utf8.h"

lq_utf8 lq_utf8_step(const uint8_t *s, size_t n, size_t *len)
{
    uint8_t a = s[0], lo = 0x80, hi = 0xBF;
    size_t want;
    *len = 1;
    if (a < 0x80) return LQ_UTF8_CHAR;
    if (a < 0xC2 || a > 0xF4) return LQ_UTF8_INVALID;
    if (a < 0xE0)
        want = 2;
    else if (a < 0xF0)
        want = 3, lo = a == 0xE0 ? 0xA0 : lo, hi = a == 0xED ? 0x9F : hi;
    else
        want = 4, lo = a == 0xF0 ? 0x90 : lo, hi = a == 0xF4 ? 0x8F : hi;
    for (size_t i = 1; i < want; i++) {
        if (i == n) return *len = i, LQ_UTF8_PARTIAL;
        if (s[i] < lo || s[i] > hi) return *len = i, LQ_UTF8_INVALID;
        lo = 0x80, hi = 0xBF;
    }
    *len = want;
    return LQ_UTF8_CHAR;
}

uint32_t lq_utf8_get(const uint8_t *s, size_t *len)
{
    if (s[0] < 0x80) return *len = 1, s[0];
    if (s[0] < 0xE0) return *len = 2, (uint32_t)(s[0] & 31) << 6 | (s[1] & 63);
    if (s[0] < 0xF0)
        return *len = 3, (uint32_t)(s[0] & 15) << 12 | (uint32_t)(s[1] & 63) << 6 | (s[2] & 63);
    return *len = 4, (uint32_t)(s[0] & 7) << 18 | (uint32_t)(s[1] & 63) << 12 |
                         (uint32_t)(s[2] & 63) << 6 | (s[3] & 63);
}

size_t lq_utf8_put(uint8_t out[4], uint32_t cp)
{
    static const uint8_t marks[5] = { 0, 0, 0xC0, 0xE0, 0xF0 }; /* of the first of so many bytes */
    const size_t len = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--, cp >>= 6)
        out[i] = (uint8_t)(0x80 | (cp & 63));
    out[0] = (uint8_t)(marks[len] | cp);
    return len;
}

size_t lq_ascii_run(const uint8_t *s, size_t n)
{
    size_t i = 0;
    for (uint64_t w; n - i >= sizeof w; i += sizeof w) {
        memcpy(&w, s + i, sizeof w);
        if (w & 0x8080808080808080u) break;
    }
    return i;
}

bool lq_utf8_valid(const void *text, size_t n, size_t *bad)
{
    const uint8_t *s = text;
    for (size_t i = 0, len; i < n; i += len) {
        if (s[i] < 0x80 && (len = lq_ascii_run(s + i, n - i)) > 0) continue;
        if (lq_utf8_step(s + i, n - i, &len) != LQ_UTF8_CHAR) {
            if (bad) *bad = i;
            return false;
        }
    }
    return true;
}
