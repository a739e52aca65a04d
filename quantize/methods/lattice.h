/* quantize/methods/lattice.h - the nearest points of the lattices that IQ2 and IQ3 blocks name by number (blk_book).
 *
 * Eight weights at a time, a unit, since eight share signs: one point of eight sizes or two of four, and a sign for
 * each weight; of some types an even number of the eight is negative. A value is scale * sign * size.
 *
 * Codes are those of blocks.h. Source: the lattices: ggml-common.h; the searches: own. */
#ifndef LLMQ_QUANTIZE_METHODS_LATTICE_H
#define LLMQ_QUANTIZE_METHODS_LATTICE_H

#include "quantize/methods/rows.h"

enum { LAT_UNIT = 8, LAT_PIECES = 24, LAT_POINTS = 4 };

typedef struct lattice lattice;
/* NULL: the type's codes are each their own. Made once, then shared by all threads. */
const lattice *lattice_of(const blk_type *t);
int lattice_sizes(const lattice *l, const int8_t **sizes); /* how many a weight can have, rising */

/* The least error of up to 32 weights for every scale, in pieces: of each point the scale from which on it is best. */
typedef struct {
    float from, A, B; /* error: scale * (scale * B - A), beside the weights' own */
} lat_piece;
typedef struct {
    int n_points, n_pieces[2 * LAT_POINTS];
    lat_piece piece[2 * LAT_POINTS][LAT_PIECES];
    float ww; /* sum imp w^2 */
} lat_lines;

/* Of n weights, a multiple of LAT_UNIT; imp may be NULL. Exact between lo and hi, above 0. */
void lattice_lines(lat_lines *lines, const lattice *l, const float *w, const float *imp, int64_t n,
                   float lo, float hi);
/* e, vv and wv at a scale above 0. */
rows_sums lattice_sums(const lat_lines *lines, float scale);

/* The unit with the least sum imp (w - scale v)^2; imp may be NULL. */
void lattice_nearest(uint8_t code[LAT_UNIT], const lattice *l, const float *w, const float *imp,
                     float scale);
/* A unit with little (w - q) M (w - q), q = scale v: the nearest by M's diagonal, descended from. M [8][8] symmetric,
 * not negative. */
void lattice_choose(uint8_t code[LAT_UNIT], const lattice *l, const float *M, const float *w,
                    float scale);
/* From these codes q0 down to a local least of (q - q0) M (q - q0) - 2 r (q - q0): in turns the best point with all
 * signs held, over the whole book, and the best changes of signs. Whether any changed. */
bool lattice_descend(uint8_t code[LAT_UNIT], const lattice *l, const float *M, const float *r,
                     float scale);

#endif
