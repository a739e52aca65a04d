/* runtime/api/api_files.h - files of clients, for batches: in memory, all together at most so many bytes.
 * What is full takes no more: nothing is dropped for it. Any thread. */
#ifndef LLMQ_RUNTIME_API_API_FILES_H
#define LLMQ_RUNTIME_API_API_FILES_H

#include "base/buf.h"
#include "base/hash.h"
#include "runtime/http/http.h"

typedef struct api_files api_files;

typedef struct api_file api_file;
struct api_file {
    api_file *next; /* older; the store's, as refs */
    int64_t refs;
    char id[48], name[256], purpose[32];
    lq_hash owner;            /* http_client's: others do not see it */
    int64_t created, expires; /* Unix seconds; expires 0: never */
    lq_buf data;
};

api_files *api_files_open(size_t most_bytes); /* NULL: out of memory, or it is 0 */
void api_files_close(api_files *s);           /* NULL allowed */

/* Bytes that are about to be kept; false: there is no room for them. What is not kept after all is
 * given back. */
bool api_files_claim(api_files *s, size_t n);
void api_files_give_back(api_files *s, size_t n);
/* Takes data over; its cap bytes and those of an api_file are claimed. f has name, purpose, owner and expires. The copy that
 * the caller gets is to be unref'd; NULL: out of memory, and data is freed and given back. */
api_file *api_files_add(api_files *s, const api_file *f, lq_buf *data);
/* NULL: there is no such file of this owner. To be unref'd. */
api_file *api_files_get(api_files *s, const char *id, const lq_hash *owner);
void api_file_unref(api_files *s, api_file *f); /* NULL allowed */

/* An id that nobody can guess: the prefix and 32 digits. */
void api_secret_id(char out[48], const char *prefix);

/* A page of a list, as OpenAI's clients ask: `limit` (1..most, else `def`) and `after` of the query.
 * False: answered, since one of them is wrong. */
typedef struct {
    int64_t limit;
    const char *after; /* NULL: from the beginning */
} api_page;
bool api_read_page(http_req *r, api_page *p, int64_t def, int64_t most);
void api_write_page(jw *w, const char *first, const char *last, bool more); /* behind "data" */

#endif
