/* base/base64.c */
#include "base/base64.h"

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool lq_base64(lq_buf *out, const char *s, size_t n)
{
    if (n % 4) return false;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = 0, given = 4;
        while (i + 4 == n && given > 2 && s[i + given - 1] == '=')
            given--;
        for (uint32_t k = 0; k < 4; k++) {
            int d = k < given ? base64_digit(s[i + k]) : 0;
            if (d < 0) return false;
            bits = bits << 6 | (uint32_t)d;
        }
        const uint8_t bytes[3] = { (uint8_t)(bits >> 16), (uint8_t)(bits >> 8), (uint8_t)bits };
        lq_buf_add(out, bytes, given - 1);
    }
    return true;
}
