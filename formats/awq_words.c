/* formats/awq_words.c */
#include "formats/awq_words.h"

#include "formats/qt.h"

const int AWQ_ORDER[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };

/* Eight words of eight nibbles at a time, turned; 16 words of a row, a line of the cache, before
 * the next rows. `pack` is known where this is inlined. */
static inline void turn(uint8_t *to, const uint8_t *from, bool pack, size_t row_bytes, int64_t rows,
                        int64_t N)
{
    enum { WORDS = 16 };
    for (int64_t c0 = 0; c0 < N / 8; c0 += WORDS)
        for (int64_t k = 0; k < rows; k += 8)
            for (int64_t c = c0; c < N / 8 && c < c0 + WORDS; c++) {
                const int64_t n = rows - k < 8 ? rows - k : 8;
                const size_t part = (size_t)(n + 1) / 2; /* of a row of nibbles */
                uint32_t w[8] = { 0 };
                for (int64_t i = 0; i < 8; i++) {
                    const size_t nibble =
                        (size_t)(8 * c + AWQ_ORDER[i]) * row_bytes + (size_t)k / 2;
                    const size_t word = 4 * (size_t)((k + i) * (N / 8) + c);
                    if (pack)
                        memcpy(&w[i], from + nibble, part);
                    else if (i < n)
                        memcpy(&w[i], from + word, 4);
                }
                qt_transpose_nibbles(w);
                for (int64_t i = 0; i < 8; i++) {
                    const size_t nibble =
                        (size_t)(8 * c + AWQ_ORDER[i]) * row_bytes + (size_t)k / 2;
                    const size_t word = 4 * (size_t)((k + i) * (N / 8) + c);
                    if (!pack)
                        memcpy(to + nibble, &w[i], part);
                    else if (i < n)
                        memcpy(to + word, &w[i], 4);
                }
            }
}

void awq_unpack(uint8_t *nibbles, size_t row_bytes, const uint8_t *words, int64_t rows, int64_t N)
{
    turn(nibbles, words, false, row_bytes, rows, N);
}

void awq_pack(uint8_t *words, const uint8_t *nibbles, size_t row_bytes, int64_t rows, int64_t N)
{
    turn(words, nibbles, true, row_bytes, rows, N);
}
