/* runtime/tokenizer/tok_bytes.c - bytes as tokens spell them. */
#include "runtime/tokenizer/tok_int.h"

/* GPT-2 prints the visible Latin-1 characters as themselves and the other 68 bytes from U+0100 on.
 */
static bool visible(uint32_t b) { return (b >= 33 && b <= 126) || (b >= 161 && b != 173); }

uint32_t tok_byte_char(uint8_t byte)
{
    if (visible(byte)) return byte;
    if (byte <= 32) return 256u + byte;
    if (byte <= 160) return 256u + 33 + (byte - 127u);
    return 256u + 67; /* 173 */
}

int tok_char_byte(uint32_t cp)
{
    if (cp < 256) return visible(cp) ? (int)cp : -1;
    if (cp <= 256 + 32) return (int)cp - 256;
    if (cp < 256 + 67) return (int)cp - 256 - 33 + 127;
    return cp == 256 + 67 ? 173 : -1;
}

int tok_byte_token(const uint8_t *s, size_t n)
{
    int v = 0;
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        int d = s[i] >= '0' && s[i] <= '9'   ? s[i] - '0'
                : s[i] >= 'A' && s[i] <= 'F' ? s[i] - 'A' + 10
                : s[i] >= 'a' && s[i] <= 'f' ? s[i] - 'a' + 10
                                             : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
    }
    return v;
}
