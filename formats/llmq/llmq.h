/* formats/llmq/llmq.h - the .llmq file: docs/formats/llmq.md is the specification.
 *
 * Writing streams: tensors are appended one by one (memory is one tensor), the header is patched in
 * last, and the file gets its name only when it is complete. The bytes depend only on what was
 * added, not on the order in which blobs were. */
#ifndef LLMQ_FORMATS_LLMQ_LLMQ_H
#define LLMQ_FORMATS_LLMQ_LLMQ_H

#include "base/file.h"
#include "base/hash.h"
#include "formats/arch/arch.h"
#include "formats/tensor/qtensor.h"

enum {
    LLMQ_MAJOR = 1,
    LLMQ_MINOR = 0,
    LLMQ_PREAMBLE = 64, /* bytes before the zeros up to the first page */
    LLMQ_PAGE = 4096,   /* tensors begin at multiples of it */
    LLMQ_ALIGN = 64,    /* planes, blobs and the header do */
    LLMQ_MAX_HEADER = 1 << 28,
};

typedef struct lqf_writer lqf_writer;

/* To path.tmp-XXXXXX, renamed at the end. */
lq_status lqf_create(lqf_writer **w, const char *path, lq_err *err);
/* Called with each piece of a plane once it is written: mapped input can be dropped. */
void lqf_on_written(lqf_writer *w, void (*fn)(void *user, const void *p, size_t n), void *user);
/* Shape as in the source (n_dims 1..LQ_MAX_DIMS; for linears [N,K]). Tensors are written in the order
 * of the calls. */
lq_status lqf_add_tensor(lqf_writer *w, const char *name, const qt_tensor *t, int n_dims,
                         const int64_t *shape, lq_err *err);
/* A tensor that is not a weight (integers, foreign side data), byte for byte. n_dims 0..LQ_MAX_DIMS. */
lq_status lqf_add_raw(lqf_writer *w, const char *name, lq_dtype d, int n_dims, const int64_t *shape,
                      const void *data, size_t bytes, lq_err *err);
/* Copied. */
lq_status lqf_add_blob(lqf_writer *w, const char *name, const void *data, size_t bytes,
                       lq_err *err);
/* Objects are copied, keys sorted. config: arch_config_json. */
lq_status lqf_set_config(lqf_writer *w, const cJSON *config, lq_err *err);
lq_status lqf_set_recipe(lqf_writer *w, const cJSON *recipe, lq_err *err);
lq_status lqf_set_provenance(lqf_writer *w, const cJSON *provenance, lq_err *err);
lq_status lqf_commit(lqf_writer *w, lq_err *err); /* frees w, whatever happens */
void lqf_abort(lqf_writer *w);                    /* NULL allowed */

/* Reading: header and table are verified always; see formats/source/source.h for the view that commands
 * use. */
typedef struct {
    const char *name;
    const char *role; /* "q", "embed", ... or NULL */
    qt_tensor t;
    int n_dims;
    int64_t shape[LQ_MAX_DIMS];
    bool plain; /* false: raw, the bytes are the codes plane */
    lq_dtype raw_dtype;
    lq_hash hash[QT_N_PLANES]; /* of each plane that is there */
} lqf_tensor;
typedef struct {
    const char *name;
    qt_span span;
    lq_hash hash;
} lqf_blob;
typedef struct {
    lq_map map;
    qt_span bytes; /* the whole file */
    lq_arena arena;
    cJSON *header;
    lqf_tensor *tensors; /* in file order */
    size_t n_tensors;
    lqf_blob *blobs; /* by name, in file order */
    size_t n_blobs;
    const cJSON *config, *recipe, *provenance; /* inside header; NULL where the file has none */
    uint32_t minor;
} lqf_file;
/* Errors: LQ_EFORMAT, LQ_EUNSUPPORTED (a version, scheme or layout we do not know) name the field,
 * what was expected and found. After an error f is closed. */
lq_status lqf_open(lqf_file *f, const char *path, lq_err *err);
/* The same over bytes that the caller keeps, aligned to 64. */
lq_status lqf_open_bytes(lqf_file *f, const uint8_t *data, size_t n, lq_err *err);
void lqf_close(lqf_file *f);
/* Check planes, blobs and padding; bad(user, name, what) per failure; returns LQ_ECHECK when any.
 */
lq_status lqf_verify(const lqf_file *f, const lq_job *job,
                     void (*bad)(void *user, const char *name, const char *what), void *user,
                     lq_err *err);

/* ---- for formats/llmq*.c ---- */
/* {"kind":"uint","bits":4,...}: only the fields that apply. NULL: out of memory. */
cJSON *lqf_scheme_json(const qt_scheme *s);
/* LQ_EUNSUPPORTED: unknown kind; LQ_EFORMAT: fields missing, wrong or too many. */
lq_status lqf_scheme_from_json(qt_scheme *s, const cJSON *j, lq_err *err);
/* The checksum in the preamble: over its first 48 bytes and the header. False: out of memory. */
bool lqf_header_hash(lq_hash *out, const uint8_t *preamble, const void *header, size_t n);
/* The name of a file. Of a model's .llmq it is one that model_blob allows, which src_open looks at. */
bool lqf_blob_name_fits(const char *name);
extern const uint8_t lqf_magic[8];

#endif
