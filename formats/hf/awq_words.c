/* formats/hf/awq_words.c
 *
 * A tile is 16 words (128 outputs) by 32 inputs, 2 KB: on either side whole pieces of lines of the
 * cache, 64 bytes of 32 rows of words and 16 bytes of 128 rows of nibbles. Between the two each
 * block of 8 words of 8 nibbles is turned, 4 blocks at once. */
#include "formats/hf/awq_words.h"

#include "formats/tensor/qtensor.h"

const int AWQ_ORDER[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };

enum { WORDS = 16, PARTS = 4, INPUTS = 8 * PARTS, LANES = 4 };

/* [part][i][c]: of word c input 8 part + i, or, turned, of its output AWQ_ORDER[i] the nibbles of
 * 8 inputs. */
typedef uint32_t tile[PARTS][8][WORDS];
typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));

typedef struct {
    int64_t c, k;       /* its first word and input */
    int64_t n_c, n_k;   /* how many there are of them */
    int64_t row_words;  /* of all */
    size_t row_nibbles; /* bytes */
} piece;

/* Nibble i of word k becomes nibble k of word i: 8 x 8 nibbles, turned by halves. */
static inline void turn_block(lanes w[8])
{
    static const uint32_t low[3] = { 0x0000ffff, 0x00ff00ff, 0x0f0f0f0f };
    for (int step = 0, d = 4; d; step++, d /= 2)
        for (int i = 0; i < 8; i++) {
            if (i & d) continue;
            const lanes a = w[i], b = w[i + d], up = (lanes){ 0 } + 4 * (uint32_t)d;
            const uint32_t m = low[step];
            w[i] = (a & m) | (b & m) << up;
            w[i + d] = (a >> up & m) | (b & ~m);
        }
}

static void turn(tile t)
{
    for (int part = 0; part < PARTS; part++)
        for (int c = 0; c < WORDS; c += LANES) {
            lanes w[8];
            for (int i = 0; i < 8; i++)
                memcpy(&w[i], &t[part][i][c], sizeof w[i]);
            turn_block(w);
            for (int i = 0; i < 8; i++)
                memcpy(&t[part][i][c], &w[i], sizeof w[i]);
        }
}

static size_t row_of(const piece *p, int64_t c, int i)
{
    return (size_t)(8 * (p->c + c) + AWQ_ORDER[i]) * p->row_nibbles + (size_t)p->k / 2;
}

static void get_nibbles(tile t, const uint8_t *from, const piece *p)
{
    uint32_t line[PARTS] = { 0 };
    for (int64_t c = 0; c < p->n_c; c++)
        for (int i = 0; i < 8; i++) {
            if (p->n_k == INPUTS) /* of a size that is known: no call */
                memcpy(line, from + row_of(p, c, i), sizeof line);
            else
                memcpy(line, from + row_of(p, c, i), (size_t)(p->n_k + 1) / 2);
            for (int part = 0; part < PARTS; part++)
                t[part][i][c] = line[part];
        }
}

static void put_nibbles(uint8_t *to, tile t, const piece *p)
{
    uint32_t line[PARTS];
    for (int64_t c = 0; c < p->n_c; c++)
        for (int i = 0; i < 8; i++) {
            for (int part = 0; part < PARTS; part++)
                line[part] = t[part][i][c];
            if (p->n_k == INPUTS)
                memcpy(to + row_of(p, c, i), line, sizeof line);
            else
                memcpy(to + row_of(p, c, i), line, (size_t)(p->n_k + 1) / 2);
        }
}

static size_t word_of(const piece *p, int64_t k)
{
    return 4 * (size_t)((p->k + k) * p->row_words + p->c);
}

static void get_words(tile t, const uint8_t *from, const piece *p)
{
    for (int64_t k = 0; k < p->n_k; k++)
        if (p->n_c == WORDS)
            memcpy(t[k / 8][k % 8], from + word_of(p, k), 4 * WORDS);
        else
            memcpy(t[k / 8][k % 8], from + word_of(p, k), 4 * (size_t)p->n_c);
}

static void put_words(uint8_t *to, tile t, const piece *p)
{
    for (int64_t k = 0; k < p->n_k; k++)
        if (p->n_c == WORDS)
            memcpy(to + word_of(p, k), t[k / 8][k % 8], 4 * WORDS);
        else
            memcpy(to + word_of(p, k), t[k / 8][k % 8], 4 * (size_t)p->n_c);
}

/* `pack` is known where this is inlined. */
static inline void turn_all(uint8_t *to, const uint8_t *from, bool pack, size_t row_bytes,
                            int64_t rows, int64_t N)
{
    tile t = { { { 0 } } }; /* what an incomplete one lacks is of no account, but not unset */
    piece p = { .row_words = N / 8, .row_nibbles = row_bytes };
    for (p.c = 0; p.c < N / 8; p.c += WORDS)
        for (p.k = 0; p.k < rows; p.k += INPUTS) {
            p.n_c = N / 8 - p.c < WORDS ? N / 8 - p.c : WORDS;
            p.n_k = rows - p.k < INPUTS ? rows - p.k : INPUTS;
            if (p.n_k < INPUTS) memset(t, 0, sizeof t); /* half a byte behind an odd input is 0 */
            if (pack)
                get_nibbles(t, from, &p);
            else
                get_words(t, from, &p);
            turn(t);
            if (pack)
                put_words(to, t, &p);
            else
                put_nibbles(to, t, &p);
        }
}

void awq_unpack(uint8_t *nibbles, size_t row_bytes, const uint8_t *words, int64_t rows, int64_t N)
{
    turn_all(nibbles, words, false, row_bytes, rows, N);
}

void awq_pack(uint8_t *words, const uint8_t *nibbles, size_t row_bytes, int64_t rows, int64_t N)
{
    turn_all(words, nibbles, true, row_bytes, rows, N);
}
