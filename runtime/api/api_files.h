/* runtime/api/api_files.h - files of clients, for batches: in memory or in a folder (api_disk.h), all
 * together at most so many bytes. What is full takes no more: nothing is dropped for it. Any thread. */
#ifndef LLMQ_RUNTIME_API_API_FILES_H
#define LLMQ_RUNTIME_API_API_FILES_H

#include "base/buf.h"
#include "base/hash.h"
#include "runtime/api/api_disk.h"
#include "runtime/http/http.h"

typedef struct api_files api_files;

typedef struct api_file api_file;
struct api_file {
    api_file *next; /* older; the store's, as refs */
    int64_t refs;
    char id[48], name[256], purpose[32];
    lq_hash owner;            /* http_client's: others do not see it */
    int64_t created, expires; /* Unix seconds; expires 0: never */
    int64_t order;            /* later ones have larger ones */
    lq_buf data;              /* a view of map, where that is open */
    lq_map map;
};

/* disk NULL: in memory; else with the files that are there. It is the caller's. LQ_ENOMEM, LQ_EIO. */
lq_status api_files_open(api_files **s, size_t most_bytes, const api_disk *disk, lq_err *err);
void api_files_close(api_files *s); /* NULL allowed; what is in a folder stays there */

/* Bytes that are about to be kept; false: there is no room for them. What is not kept after all is
 * given back. */
bool api_files_claim(api_files *s, size_t n);
void api_files_give_back(api_files *s, size_t n);
/* Takes data over; its cap bytes and those of an api_file are claimed. f has name, purpose, owner and expires. The copy that
 * the caller gets is to be unref'd; NULL: out of memory, or the folder takes it not (err), and data is freed and given back. */
api_file *api_files_add(api_files *s, const api_file *f, lq_buf *data, lq_err *err);
/* NULL: there is no such file of this owner. To be unref'd. */
api_file *api_files_get(api_files *s, const char *id, const lq_hash *owner);
bool api_files_remove(api_files *s, const char *id, const lq_hash *owner); /* false: likewise */
void api_file_unref(api_files *s, api_file *f);                            /* NULL allowed */

/* A file that grows: the answers of a batch. In a folder it is there after a restart. */
typedef struct {
    api_files *s;
    char name[96]; /* in the folder */
    int fd;        /* -1: in memory */
    lq_buf mem;
    size_t n; /* bytes */
} api_part;
lq_status api_part_open(api_part *p, api_files *s, const char *name, lq_err *err);
/* False: there is no room. */
bool api_part_add(api_part *p, const void *data, size_t n);
/* Its bytes so far, where it was there already: a view until the next call. LQ_ENOENT: none. */
lq_status api_part_map(const api_part *p, lq_map *m);
void api_part_cut(api_part *p, size_t n); /* to its first n bytes */
/* As api_files_add, of what it holds; closes it. *lasts: false where the disk had no room to note it, so that the next server
 * will not have it. */
api_file *api_part_keep(api_part *p, const api_file *f, bool *lasts);
void api_part_close(api_part *p); /* it stays in the folder */
void api_part_drop(api_part *p);  /* it does not; one that was not opened is zero, with fd -1 */

bool api_read_owner(lq_hash *to, const cJSON *j); /* {"owner": 32 digits} */

/* An id that nobody can guess: the prefix and 32 digits. */
void api_secret_id(char out[48], const char *prefix);

/* A page of a list, as OpenAI's clients ask: `limit` (1..most, else `def`) and `after` of the query.
 * False: answered, since one of them is wrong. */
typedef struct {
    int64_t limit;
    const char *after; /* NULL: from the beginning */
    bool begun, more;  /* more: there are items after the page; look no further */
    char first[128], last[128];
} api_page;
bool api_read_page(http_req *r, api_page *p, int64_t def, int64_t most);
/* Of item after item: is this one on the page? `listed`: it may be (it is the client's, say). */
bool api_page_takes(api_page *p, const char *id, bool listed);
void api_write_page(jw *w, const api_page *p); /* after "data" */

#endif
