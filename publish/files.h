/* publish/files.h - the files of an artifact: which may be in one, under which names, their
 * digests, and SHA256SUMS.
 *
 * A name is "FILE", "additional_chat_templates/FILE.jinja" or that of a module (model_module_path), of a kind in the
 * table of formats/hf/model_files.c.
 * So what a remote side names can neither leave the folder nor be anything that a shell, git or an
 * engine would run. */
#ifndef LLMQ_PUBLISH_FILES_H
#define LLMQ_PUBLISH_FILES_H

#include "formats/hf/model_files.h"
#include "publish/sha256.h"

#define PUB_SUMS "SHA256SUMS"
#define PUB_PROVENANCE "provenance.json"
#define PUB_CARD "README.md"
#define PUB_BASE_CARD "README.base.md" /* the card that came with the model */
#define PUB_ATTRIBUTES ".gitattributes"

enum { PUB_MAX_FILES = 4096, PUB_MAX_NAME = 200, PUB_MAX_SMALL = 4 << 20 };
enum { PUB_PATIENCE = 60 }; /* seconds, of pub_opts */

typedef struct {
    char *name;              /* within the artifact */
    char *path;              /* where it is on this machine; or NULL: */
    uint8_t *data;           /* its bytes, or NULL: it is on the remote side */
    uint64_t bytes;          /* */
    char sha256[SHA_HEX];    /* "": not known yet */
    char git_sha1[SHA1_HEX]; /* git's name of its bytes; "": not known */
    bool large;              /* git: it is in git-lfs */
    const model_file *kind;
} pub_file;

/* Free with pub_files_free; a zeroed one is empty. */
typedef struct {
    pub_file *f;
    size_t n;
} pub_files;

void pub_files_free(pub_files *fs);

/* Above plus what the name's bytes may be. LQ_EFORMAT says what is wrong with it. */
lq_status pub_check_name(const char *name, lq_err *err);

/* One more file, at the end; *f (may be NULL) holds until the next. Errors: pub_check_name's;
 * LQ_EFORMAT - the name is there, be it in other letters' case, or there are PUB_MAX_FILES. */
lq_status pub_add(pub_files *fs, const char *name, pub_file **f, lq_err *err);
lq_status pub_add_path(pub_files *fs, const char *name, const char *path, lq_err *err);
lq_status pub_add_data(pub_files *fs, const char *name, const void *data, size_t n, lq_err *err);
void pub_remove(pub_files *fs, const char *name);
pub_file *pub_find(const pub_files *fs, const char *name); /* NULL */
void pub_sort(pub_files *fs);                              /* by name */
uint64_t pub_bytes(const pub_files *fs);                   /* of all of them */

/* Pass a file's bytes (from `off`) to `sink` in pieces, until it returns an error. Errors: LQ_EIO -
 * it cannot be read or has not f->bytes any more; LQ_EINTR. */
typedef lq_status pub_sink(void *user, const void *data, size_t n, lq_err *err);
lq_status pub_read(const pub_file *f, uint64_t off, pub_sink *sink, void *user, const lq_job *job,
                   lq_err *err);
/* Digests of all files, read once. */
lq_status pub_hash(pub_files *fs, const lq_job *job, lq_err *err);

/* Add SHA256SUMS of all files, in the order of names, as coreutils' sha256sum writes it. */
lq_status pub_add_sums(pub_files *fs, lq_err *err);
/* The names and digests in a SHA256SUMS' text, into an empty list. LQ_EFORMAT names the line. */
lq_status pub_read_sums(pub_files *out, const char *text, size_t n, lq_err *err);
/* Is `name` (not SHA256SUMS itself) in the sums, with this digest? LQ_ECHECK names both. */
lq_status pub_check_sum(const pub_files *sums, const char *name, const char *sha256, lq_err *err);

#endif
