/* formats/source/source_impl.h - what a kind of source fills in; only formats/source/ includes this.
 *
 * A new kind is one file with src_KIND_open and one row in source_open.c. If it fails, src_open
 * closes the source again, so each field is owned or zero at any time. */
#ifndef LLMQ_FORMATS_SOURCE_SOURCE_IMPL_H
#define LLMQ_FORMATS_SOURCE_SOURCE_IMPL_H

#include "base/file.h"
#include "base/hash.h"
#include "base/mapped.h"
#include "formats/gguf/gguf.h"
#include "formats/hf/safetensors.h"
#include "formats/llmq/llmq.h"
#include "formats/source/source.h"

/* A file as it was when it was opened. */
typedef struct {
    const char *path; /* in arena */
    uint64_t dev, ino, size;
    int64_t sec, nsec; /* of the last change */
} src_stamp;

struct src_source {
    const char *format;
    char *path;        /* as given, or of the one file in a folder that was (src_locate) */
    const char *unfit; /* in arena: why llmq cannot run it, or NULL */
    lq_status unfit_as;
    char layout[64];     /* "gptq, gptq_v2": the published layout that was read, or "" */
    const char *license; /* in arena, or NULL */
    arch_config config;
    bool has_config, uint_blocks;
    arch_config head; /* of a GGUF file's MTP head, where it has one */
    bool has_head;
    int64_t mtp_said;                /* num_nextn_predict_layers of a folder; -1: silent */
    src_tensor *tensors;             /* by name, in arena */
    lq_hash (*hashes)[QT_N_PLANES];  /* [n_tensors] known checksums of the planes, or NULL */
    lq_hash (*scanned)[QT_N_PLANES]; /* likewise, [i] known where tensors[i].scanned */
    size_t n_tensors;
    src_blob *blobs; /* in arena */
    size_t n_blobs, cap_blobs;
    const cJSON *recipe, *provenance, *conversion;
    cJSON *history; /* of a folder or GGUF file that llmq converted: what they are in; owned */
    lq_arena arena;
    /* what the views point into */
    st_file *shards; /* in arena; opened ones */
    size_t n_shards;
    cJSON *quant; /* a folder's quantization_config while it is opened; owned */
    struct src_region *region;
    const char *no_tokenizer; /* in arena: why, or NULL */
    src_source *tokenizer;    /* where the tokenizer's files are from instead; owned */
    const char *notes[16];
    size_t n_notes;
    src_stamp *stamps; /* of the files that hold tensors; owned */
    size_t n_stamps;
    lq_map *blob_maps; /* [n_blobs] of a folder, in arena */
    lqf_file llmq;
    gguf_file gguf;    /* of several the first, with the tensors of all */
    gguf_file *splits; /* the others, in arena; opened ones */
    size_t n_splits;
    const src_source *base; /* of a derived source */
};

int src_by_name(const void *a, const void *b); /* src_tensor, for qsort */

/* ---- formats/source/source_about.c ---- */
/* One line, once however often it is said. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
lq_status
src_note(src_source *s, lq_err *err, const char *fmt, ...);
/* The same, kept as the reason why the source has no tokenizer. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
lq_status
src_no_tokenizer(src_source *s, lq_err *err, const char *fmt, ...);
/* err says why llmq cannot run what can be listed all the same: the first reason stays. */
lq_status src_set_unfit(src_source *s, lq_status why, const lq_err *said, lq_err *err);
/* Take `history` (owned from here on): { "recipe", "provenance", "converted" }, each may be absent.
 */
void src_set_history(src_source *s, cJSON *history);
/* llmq.json of the folder, when it is of these very files; else a note says that it is not. */
lq_status src_read_history(src_source *s, const char *dir, lq_err *err);

/* ---- formats/source/source_derived.c ---- */
/* Nothing yet but what it shares with the base; NULL: LQ_ENOMEM. */
src_source *src_begin_derived(const src_source *base, lq_err *err);
lq_status src_copy_config(src_source *s, const src_source *base, lq_err *err);

/* ---- formats/source/source_tokenizer.c ---- */
/* The files of s->tokenizer in place of s's own. LQ_ENOENT: it has none. */
lq_status src_take_tokenizer(src_source *s, lq_err *err);

lq_status src_hf_open(src_source *s, const src_opts *o, lq_err *err);
lq_status src_gguf_open(src_source *s, const src_opts *o, lq_err *err);
lq_status src_gguf_read(src_source *s, const src_opts *o, lq_err *err); /* of s->gguf, opened */
lq_status src_llmq_open(src_source *s, const src_opts *o, lq_err *err);

/* ---- formats/source/source_layers.c ---- */
/* Of a folder: LQ_EVALUE: more layers are stored than config.json has, or other MTP layers than it says. */
lq_status src_check_layers(src_source *s, lq_err *err);

/* ---- formats/source/source_fit.c ---- */
/* Of a folder: a head that is stored and differs from the embedding unties the config, one that is
 * missing ties it; a note says so. A tied head with a bias becomes a tensor. */
lq_status src_fit_head(src_source *s, lq_err *err);
/* Of a folder: what R_ROPE_LOG holds goes to the config. */
lq_status src_fit_turn(src_source *s, lq_err *err);
/* LQ_EVALUE: a tensor or bias of the architecture is stored, and the config says that there is none. */
lq_status src_check_denied(const src_source *s, lq_err *err);
/* Of a folder: how many tensors its tables of n-grams are in. LQ_EVALUE: their numbers are others than the config's.
 * (source_ngrams.c) */
lq_status src_fit_ngrams(src_source *s, lq_err *err);
/* A folder that transformers saved: the model's own names. */
lq_status src_fit_saved(src_source *s, lq_err *err);
/* An EAGLE-3 draft whose layer has the other of its two names. */
void src_fit_draft(src_source *s);
/* Transformers beside the residual of which a folder stores each one's own tensors share none (transformers 5 ties them
 * only where it ties the head). */
void src_fit_asides(src_source *s);
/* Stacks that lie [experts, outputs, inputs] where the row has them turned: its variant is taken. */
void src_fit_stacked_rows(src_source *s);
/* Stacks of two dims (NAME_FLAT) become such of three. */
void src_fit_flat(src_source *s);
/* Experts stacked in one tensor, where the architecture names each: views of their parts. */
lq_status src_fit_experts(src_source *s, lq_err *err);

/* For each file that holds tensors, after it was opened (formats/source/source_scan.c). */
lq_status src_stamp_file(src_source *s, const char *path, lq_err *err);
/* Plane p of a tensor; the run of bytes of one that is not plain. */
static inline qt_span src_plane(const src_tensor *t, int p)
{
    return t->plain ? t->t.plane[p] : p == QT_CODES ? t->raw : (qt_span){ 0 };
}

/* One entry from a plain run of bytes: dense where the type is a float. LQ_EUNSUPPORTED: more than
 * 4 dims. */
lq_status src_fill_plain(src_tensor *out, const char *name, lq_dtype d, int n_dims,
                         const int64_t *shape, const void *data, size_t bytes, lq_err *err);

/* ---- tensors that are translated: formats/source/source_made.c ---- */
/* Write the planes w[p] that are not NULL (zeroed before) from what the reader recorded. Cannot
 * fail: everything was checked at open. Any thread. */
typedef void src_fill_fn(void *const w[QT_N_PLANES], const qt_tensor *t, const void *from);
/* t has its name, dims, and in t->t scheme, N, K and the planes that are views; the others are left
 * to `fill` (NULL: there are none). Errors: as qt_check; LQ_ESHAPE: a view of another size. */
lq_status src_make(src_source *s, src_tensor *t, src_fill_fn *fill, const void *from, lq_err *err);
/* After src_make: the stored bytes that `fill` reads for this tensor and no other; src_unload drops
 * their pages. LQ_ENOMEM. */
lq_status src_made_from(src_source *s, src_tensor *t, const qt_span *reads, size_t n, lq_err *err);
/* After the last src_make, with s->tensors in its final order. Tensors of another source have room there. */
lq_status src_make_room(src_source *s, lq_err *err);
void src_free_room(src_source *s);

#endif
