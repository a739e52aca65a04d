/* convert/gguf_meta.h - what a GGUF file says besides its tensors: the model's numbers (gguf_meta.c)
 * its tokenizer (gguf_vocab.c) and its vectors (gguf_modules.c), from a source's config and tokenizer files. */
#ifndef LLMQ_CONVERT_GGUF_META_H
#define LLMQ_CONVERT_GGUF_META_H

#include "base/json.h"
#include "convert/convert.h"
#include "formats/gguf/gguf.h"
#include "formats/gguf/gguf_names.h"
#include "formats/source/source.h"

/* Key-value pairs, one after the other, and how many. */
typedef struct {
    lq_buf b;
    uint64_t n;
} gguf_pairs;

void gguf_pair_int(gguf_pairs *p, const char *key, int64_t v); /* u32 */
void gguf_pair_str(gguf_pairs *p, const char *key, const char *v);
void gguf_pair_bool(gguf_pairs *p, const char *key, bool v);
void gguf_pair_array(gguf_pairs *p, const char *key, gguf_type of,
                     uint64_t n);                                /* elements follow */
void gguf_pair_key(gguf_pairs *p, const char *key, gguf_type t); /* a value follows */
void gguf_put_f32(gguf_pairs *p, double v);                      /* an element */
void gguf_put_le(lq_buf *b, uint64_t v, int bytes);
void gguf_put_str(lq_buf *b, const char *s, size_t n);

/* The row of the model's architecture, and the model's numbers. LQ_EUNSUPPORTED: llama.cpp's form
 * of it is not known here, or the model is not what the file would say. */
lq_status gguf_put_model(gguf_pairs *p, const gguf_arch **a, const src_source *src, lq_err *err);
lq_status gguf_can_say(const src_source *src, lq_err *err); /* the same, without pairs */
/* Of gguf_arch.compress: its lists; and does llama.cpp run such numbers (it aborts on others)? */
void gguf_put_compress(gguf_pairs *p, const gguf_arch *a, const arch_config *c);
bool gguf_runs_compressed(const arch_config *c);
/* Of gguf_arch.ngrams; LQ_EUNSUPPORTED: the file has no place for so many. Does llama.cpp run such numbers? */
void gguf_put_ngrams(gguf_pairs *p, const gguf_arch *a, const arch_config *c);
lq_status gguf_check_ngrams(const gguf_arch *a, const arch_config *c, lq_err *err);
bool gguf_runs_ngrams(const arch_config *c);
/* Has the source an MTP head that goes along? */
bool gguf_has_head(const src_source *src, const gguf_arch *a);
/* Pairs of dims that a list of factors is for: of the layer that turns most, in one that turns fewer the first of them. */
int64_t gguf_rope_pairs(const arch_config *c);
/* Factors of the frequencies, in the arena: one for each pair of Llama 3's scaling and of proportional
 * angles, twice as many of longrope (short, then long); NULL: none. And how many tensors that is, and
 * their names. */
int gguf_rope_lists(arch_rope_kind kind);
const char *gguf_rope_name(arch_rope_kind kind, int list);
lq_status gguf_rope_factors(float **out, const arch_config *c, lq_arena *a, lq_err *err);
/* Of gguf_arch.q_factor: tensor i of two a layer, its name, and the number that it has head_dim times. */
float gguf_q_factor(char name[64], const arch_config *c, int64_t i);
/* Where the model came from (formats/source/history.h). Two texts of it are blanks until all tensors are written:
 * where they begin in the pairs, which begin at `at` of what is before the data. */
typedef struct {
    cJSON *from; /* to be deleted; NULL: there is no history */
    size_t at, converted, hash;
} gguf_history;
/* changes: codes that the source has do not stay. */
lq_status gguf_put_history(gguf_history *h, gguf_pairs *p, const src_source *src, bool changes,
                           lq_err *err);
/* The two texts, in head; t [n]: the tensors, which are sorted. */
lq_status gguf_end_history(const gguf_history *h, char *head, gguf_tensor *t, size_t n,
                           const src_source *src, const conv_report *r, lq_err *err);
/* A note says why there is no tokenizer. LQ_EFORMAT: a tokenizer.json that is none. */
lq_status gguf_put_tokenizer(gguf_pairs *p, const src_source *src, conv_report *r, lq_err *err);
/* How sentence-transformers' modules beside the model make one vector of a text; a note names what is left out. */
void gguf_put_modules(gguf_pairs *p, const gguf_arch *a, const src_source *src, conv_report *r);
/* The two matrices of such modules that go along as dense_2 and dense_3 (views; names are nothing); 0: they have no
 * place. */
int gguf_dense(src_tensor out[2], const src_source *src, const gguf_arch *a);
/* The pairs of a GGUF source whose keys begin so, but for those that are written otherwise; returns
 * how many. */
size_t gguf_carry(gguf_pairs *p, const src_source *src, const char *prefix);
/* Sampling and the licence's name; of a GGUF source all of general.*; a note names the files and settings that have no place. */
lq_status gguf_put_about(gguf_pairs *p, const src_source *src, conv_report *r, lq_err *err);

#endif
