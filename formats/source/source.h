/* formats/source/source.h - a model in any format: an HF folder (plain or in a published quantized
 * layout), a GGUF file, a .llmq file. Every command that takes MODEL opens it here.
 *
 * A source maps its files and yields tensors as views under their Hugging Face names; several
 * stored tensors that make one quantized weight appear as one (name "....weight"). Views live until
 * src_close. Threads: any, after src_open.
 *
 * Where a stored layout differs from ours, src_load translates the planes, which take memory until
 * src_unload.
 *
 * A folder or GGUF file that llmq converted has the recipe of its source, in llmq.json or in keys
 * llmq.*, with hashes that tie it to these weights. */
#ifndef LLMQ_FORMATS_SOURCE_SOURCE_H
#define LLMQ_FORMATS_SOURCE_SOURCE_H

#include "base/hash.h"
#include "formats/arch/arch.h"
#include "formats/tensor/qtensor.h"

typedef struct src_made src_made;
typedef struct {
    const char *name; /* "model.layers.0.mlp.up_proj.weight" */
    qt_tensor t;      /* vectors: N = 1, K = length, QT_DENSE. More than two dims: K is the last.
                         Data of a safetensors file may be unaligned. Planes to be translated have
                         data NULL here: src_load */
    int n_dims;
    int64_t shape[LQ_MAX_DIMS]; /* as stored logically */
    bool plain; /* false: not a float tensor that qt describes (foreign side data, integers): only
                   `raw` holds */
    lq_dtype raw_dtype;
    qt_span raw;    /* the stored bytes where the tensor is one plain run of bytes; else NULL */
    bool scanned;   /* src_scan was here: */
    float largest;  /* magnitude in a dense tensor; infinity or NaN when one is not finite */
    src_made *made; /* for formats/source/ */
} src_tensor;

/* Files that travel with a model: tokenizer.json, tokenizer.model, *.tiktoken, vocab.json,
 * merges.txt, added_tokens.json, tokenizer_config.json, config.json,
 * generation_config.json, those of (pre)processors, special_tokens_map.json, chat_template.jinja and .json,
 * additional_chat_templates/NAME.jinja (as "chat_template.NAME.jinja"), LICENSE..., README.md;
 * and "tokenizer.blob" (tok_compile's output) in a .llmq. */
typedef struct {
    const char *name;
    const uint8_t *data;
    size_t bytes;
} src_blob;

typedef struct src_source src_source;
typedef struct {
    bool verify;      /* .llmq: check every plane's checksum now */
    bool need_config; /* fail when config.json is missing or its architecture unknown */
    bool uint_blocks; /* src_matrix gives GGUF's blocks as QT_UINT (blk_to_uint): for devices */
    bool no_tensors;  /* tokenizer and config only: weights may be absent */
    bool draft; /* may be one that runs beside a model alone (EAGLE-3), which is refused else */
    const char *rope;      /* arch_rope_rescale's text; NULL: as the config says */
    const char *tokenizer; /* take the tokenizer of this folder or model; NULL: the model's own */
} src_opts;

/* Is this the name of a model in one file (of a split one of its first part)? */
bool src_is_whole(const char *name);
/* The model file of a folder without safetensors: the one .llmq or .gguf in it (of a split
 * one the first part); any other path as it is. src_open begins with it. LQ_EUSAGE names several,
 * and the snapshots in a folder of Hugging Face's cache; LQ_EVALUE: too long. */
lq_status src_locate(char *out, size_t n, const char *path, lq_err *err);
/* `path`: folder or file (.llmq, .gguf, .safetensors with its folder's config.json). Errors say
 * which file, what was expected and found. */
lq_status src_open(src_source **s, const char *path, const src_opts *o, lq_err *err);
void src_close(src_source *s);
/* A dense tensor that a derived source has in place of its base's of the same name, or besides. */
typedef struct {
    const char *name;
    lq_dtype dtype;
    int n_dims;
    int64_t shape[LQ_MAX_DIMS];
    const void *data;                          /* its bytes, or NULL: */
    void (*make)(void *dst, const void *from); /* writes them whenever somebody loads it */
    const void *from;
} src_change;
/* `base` seen through n changes. Base and changes (names, data, from) stay as they are until the
 * derived source is closed; `make` may load tensors of the base. untied: its config has an output head of its own.
 * Errors: LQ_ENOMEM. */
lq_status src_derive(src_source **out, const src_source *base, const src_change *changes, size_t n,
                     bool untied, lq_err *err);
/* A tensor as it will be. */
typedef struct {
    const char *name;
    qt_scheme scheme;
    int64_t N, K;
    int n_dims;
    const int64_t *shape;
} src_coming;
/* `base` with the schemes and shapes that n of its tensors will have (or that come besides), to ask what
 * can be made of it: of its tensors there are no bytes to read. Errors: LQ_ENOMEM. */
lq_status src_plan(src_source **out, const src_source *base, const src_coming *t, size_t n,
                   bool tied, lq_err *err);
/* `base` with weights as GGUF's architecture of it has them, where config.json's has others (another order of
 * heads, factors that are in the weights: source_form.c); *out NULL: they are the same. base stays open
 * longer. Errors: LQ_ENOMEM, LQ_ESHAPE; LQ_EUNSUPPORTED: a weight that would change has codes. */
lq_status src_gguf_form(src_source **out, const src_source *base, lq_err *err);
const src_source *src_base(const src_source *s); /* of a derived source; else s itself */
/* The MTP head of `base`: its tensors by the roles of arch_config_mtp. base stays open longer. Errors:
 * LQ_EUNSUPPORTED (of arch_config_mtp; the base was rotated, the head was not), LQ_ENOENT: the files have none, LQ_ENOMEM. */
lq_status src_mtp(src_source **out, const src_source *base, lq_err *err);
const char *src_path(const src_source *s);   /* as src_locate found it */
const char *src_format(const src_source *s); /* "safetensors", "llmq", ... */
/* "gptq, gptq_v2": of a quantized folder the layout, and which kind of it; else NULL. */
const char *src_layout(const src_source *s);
/* Why llmq cannot run a model that it can list (opened without need_config): its architecture, a
 * setting or its layout is not known; *as (may be NULL) is the status that need_config gives. NULL:
 * nothing that its config and layout say speaks against it. */
const char *src_unfit(const src_source *s, lq_status *as);
/* The metadata of a GGUF file; NULL: the source is none. */
const struct gguf_file *src_gguf(const src_source *s);
bool src_has_other_tokenizer(const src_source *s); /* src_opts.tokenizer was given */
/* Why a tokenizer that the files have is not used; NULL: none is left out. */
const char *src_why_no_tokenizer(const src_source *s);
const char *src_license(const src_source *s); /* GGUF: general.license; else NULL */
/* The files that hold tensors, as paths, and the bytes of all. */
size_t src_n_files(const src_source *s);
const char *src_file_at(const src_source *s, size_t i);
uint64_t src_file_bytes(const src_source *s);
/* Names of the config's labels, a list of as many texts, which the caller deletes; NULL: no memory. */
typedef enum {
    SRC_LABELS_ONE_OF, /* one of them is true */
    SRC_LABELS_EACH, /* each is true or not: a single one, or problem_type multi_label_classification */
    SRC_LABELS_NUMBER /* problem_type regression */
} src_label_kind;
cJSON *src_labels(const src_source *s, src_label_kind *kind);
const arch_config *src_config(const src_source *s); /* NULL without need_config and config.json */
int64_t src_n_tensors(const src_source *s);
const src_tensor *src_tensor_at(const src_source *s, int64_t i); /* in the order of names */
const src_tensor *src_find(const src_source *s, const char *name);
/* The tensor with all its planes there: translated if need be, by the first who asks. Each src_load
 * of a tensor is paired with a src_unload, which may give the memory back (translations, and pages
 * of mapped files: what is read later comes from the file again), or with src_close. */
void src_load(qt_tensor *out, const src_source *s, const src_tensor *t);
void src_unload(const src_source *s, const src_tensor *t);
/* Drop the pages of a tensor that was read in place (base/mapped.h). */
void src_release(const src_source *s, const src_tensor *t);
void src_drop(const src_source *s, qt_span span); /* a part of one; of no effect on other memory */
void src_scattered(const src_source *s, qt_span span); /* it is read here and there from now on */
/* Drop pages of all: the system maps neighbours of what is read too (64 KiB; 2 MiB of what it has in large pages), which stay
 * when the tensor itself is released. */
void src_release_all(const src_source *s);
/* Notes for the user on how the files were read: "zero points follow ...", in short lines. */
size_t src_n_notes(const src_source *s);
const char *src_note_at(const src_source *s, size_t i);
/* The stored tensor of a role, its shape checked against the config. layer, expert: -1 where the
 * role has none; of NAME_STACKED roles the whole, whatever `expert`. Absent optional roles and
 * roles that this layer lacks: LQ_OK with *t = NULL. R_HEAD of a tied model is the embedding. *bias
 * is NULL where there is none; bias may be NULL. LQ_ENOENT, LQ_ESHAPE, LQ_EVALUE name the tensor.
 */
lq_status src_role(const src_source *s, arch_role r, int64_t layer, int64_t expert,
                   const src_tensor **t, const src_tensor **bias, lq_err *err);
/* A role's matrix [N,K] (outputs, inputs), of one expert: a view where the stored bytes allow it,
 * else (NAME_TRANSPOSED, an expert in the middle of a row) a copy in `a`. N = 0: absent. It holds
 * until src_matrix_done for the same role (or src_close), which may give memory back. */
lq_status src_matrix(const src_source *s, arch_role r, int64_t layer, int64_t expert, qt_tensor *w,
                     lq_arena *a, lq_err *err);
/* The same of rows n0..n1 alone, of the others no byte is read; where these rows do not lie together, all of it: w->N
 * says. */
lq_status src_matrix_rows(const src_source *s, arch_role r, int64_t layer, int64_t expert,
                          int64_t n0, int64_t n1, qt_tensor *w, lq_arena *a, lq_err *err);
void src_matrix_done(const src_source *s, arch_role r, int64_t layer, int64_t expert);
/* The same of a role's stored tensor, from a source or not yet in one; c: of its layer (arch_at). An expert whose blocks begin
 * in another's comes as f32. Errors: LQ_ENOMEM, LQ_EUNSUPPORTED (tiles across experts). */
lq_status src_slice(qt_tensor *w, const arch_config *c, arch_role r, int64_t expert,
                    const qt_tensor *stored, lq_arena *a, lq_err *err);
/* The first rows (min(N, 16), or all) of a loaded tensor in the portable layout: itself, or its
 * first tile in `a`. LQ_ENOMEM; as tiles_unpack. */
lq_status src_first_rows(qt_tensor *plain, const qt_tensor *t, lq_arena *a, lq_err *err);
/* dst [N,K] = src [K,N]^T, elements of `size` bytes. */
void src_transpose(void *dst, const void *src, int64_t N, int64_t K, size_t size);
/* A vector role's weight or bias, or a matrix role's bias, as finite f32 in `a` [n], of all heads
 * one after another where it is stored by heads; *v = NULL: there is none. */
lq_status src_vector(const src_source *s, arch_role r, int64_t layer, int64_t expert, bool bias,
                     const float **v, lq_arena *a, lq_err *err);
/* Every tensor that the config asks for: is it there, of its shape? Errors as of src_role. */
lq_status src_check_roles(const src_source *s, lq_err *err);
/* LQ_ESHAPE: the table of a layer with n-grams has too many rows, or too few. */
lq_status src_check_ngrams(const src_source *s, int64_t layer, lq_err *err);
size_t src_n_blobs(const src_source *s);
const src_blob *src_blob_at(const src_source *s, size_t i);
/* The path of the blob in a model's folder `dir`. */
lq_status src_blob_file(char *out, size_t n, const char *dir, const char *blob, lq_err *err);
const src_blob *src_find_blob(const src_source *s, const char *name); /* NULL */
/* Recipe and provenance objects (borrowed) of a .llmq, or of what was converted from one; NULL
 * elsewhere. */
const cJSON *src_recipe(const src_source *s);
const cJSON *src_provenance(const src_source *s);
/* Of what llmq converted: { "llmq": its version, "from": { "format", "xxh3": src_fingerprint's,
 * where it was known }, "bit_exact", "requantized": weights, "floats": weights that had codes in
 * the source and have none here }; else NULL. Where several conversions changed values one after
 * the other: of the last of them, "requantized" and "floats" the most of one, and "times". */
const cJSON *src_conversion(const src_source *s);
/* One hash over names, shapes, dtypes and bytes of all tensors (canonical order): "which weights".
 * Reads every byte (a .llmq: only its table). A derived source has that of its base. LQ_ENOMEM. */
lq_status src_fingerprint(lq_hash *out, const src_source *s, lq_err *err);
/* NaN or infinity in a float tensor: LQ_EVALUE names the tensor and the first such element. Others,
 * and tensors whose planes are translated, are LQ_OK. */
lq_status src_check_finite(const src_tensor *t, lq_err *err);
/* The same of any tensor, and of a quantized one what val_check says (formats/tensor/finite.h), its
 * codes too: reads it whole. src_matrix has checked scales and the other small planes. */
lq_status src_check_values(const src_source *s, const src_tensor *t, lq_err *err);
/* The places of a GGUF's tensors in its files, as gguf_check_cover; src_open has checked those of
 * other formats. */
lq_status src_check_cover(const src_source *s,
                          void (*bad)(void *user, const char *name, const char *what), void *user,
                          lq_err *err);
/* Every checksum that the source stores: those of a .llmq (LQ_ECHECK), others have none. */
lq_status src_verify(const src_source *s, const lq_job *job, lq_err *err);
/* Read tensor i once, in windows: its checksums and its largest magnitude are then known, and
 * src_fingerprint, src_tensor_hash and src_check_finite read it no more. Tensors may be scanned by
 * several threads at once, each by one, before anybody else uses them; src_scan_room comes first.
 */
lq_status src_scan_room(src_source *s, lq_err *err);
void src_scan(src_source *s, int64_t i);
/* What that found, for another process that reads the same source. */
typedef struct {
    bool scanned;
    float largest;
    lq_hash hash[QT_N_PLANES]; /* where the source does not store them */
} src_scanned;
void src_scan_get(src_scanned *out, const src_source *s, int64_t i);
void src_scan_put(src_source *s, int64_t i, const src_scanned *found);
/* Over the sizes of the files that hold tensors, a few hundred places of each, and the files beside them: what tells
 * one model from another without reading it all, wherever a copy is. LQ_EIO, LQ_ENOMEM. */
lq_status src_sample(lq_hash *out, const src_source *s, lq_err *err);
/* Is `path` one of the files that the source was opened from? Nothing may be written there. */
bool src_reads(const src_source *s, const char *path);
/* Are the files that hold tensors still as they were opened? LQ_EIO names one that is not. */
lq_status src_unchanged(const src_source *s, lq_err *err);
/* Checksum of tensor i as `inspect` shows it: of its one plane's bytes, or where it has several of
 * their checksums in order. A .llmq has them; elsewhere the bytes are read. */
lq_hash src_tensor_hash(const src_source *s, int64_t i);
/* Elements, and bytes of all planes (raw tensors: of the run). */
int64_t src_elements(const src_tensor *t);
size_t src_bytes(const src_tensor *t);
/* "[4096,256]"; returns out. */
char *src_shape_text(char out[96], const src_tensor *t);

#endif
