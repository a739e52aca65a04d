/* runtime/api/api_file_parts.c - see api_part in api_files.h. */
#include "runtime/api/api_files_int.h"

#include "base/out_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

lq_status api_part_open(api_part *p, api_files *s, const char *name, lq_err *err)
{
    *p = (api_part){ .s = s, .fd = -1 };
    snprintf(p->name, sizeof p->name, "%s.part", name);
    if (!s->disk) return LQ_OK;
    p->fd = api_disk_append(s->disk, p->name);
    const off_t end = p->fd < 0 ? -1 : lseek(p->fd, 0, SEEK_END);
    if (end < 0) return lq_fail(err, LQ_EIO, "%s: %s", p->name, strerror(errno));
    p->n = (size_t)end;
    pthread_mutex_lock(&s->mu);
    s->bytes += p->n; /* it is there, whatever may be */
    pthread_mutex_unlock(&s->mu);
    return LQ_OK;
}

static bool add_to_memory(api_part *p, const void *data, size_t n)
{
    lq_buf *to = &p->mem;
    const size_t cap = to->n + n + to->n / 4;
    if (n > to->cap - to->n) {
        if (!api_files_claim(p->s, cap - to->cap)) return false;
        char *more = realloc(to->p, cap);
        if (!more) {
            api_files_give_back(p->s, cap - to->cap);
            return false;
        }
        to->p = more;
        to->cap = cap;
    }
    lq_buf_add(to, data, n);
    p->n = to->n;
    return true;
}

bool api_part_add(api_part *p, const void *data, size_t n)
{
    if (p->fd < 0) return add_to_memory(p, data, n);
    if (!api_files_claim(p->s, n)) return false;
    const bool ok = !lq_write_all(p->fd, data, n, p->name, NULL);
    if (ok) {
        p->n += n;
        return true;
    }
    api_files_give_back(p->s, n);
    (void)!ftruncate(p->fd, (off_t)p->n); /* no half of a line */
    return false;
}

lq_status api_part_map(const api_part *p, lq_map *m)
{
    return p->fd < 0 || !p->n ? LQ_ENOENT : api_disk_map(p->s->disk, m, p->name, NULL);
}

void api_part_cut(api_part *p, size_t n)
{
    if (p->fd < 0 || n >= p->n || ftruncate(p->fd, (off_t)n) != 0) return;
    api_files_give_back(p->s, p->n - n);
    p->n = n;
}

void api_part_close(api_part *p)
{
    if (p->fd >= 0) close(p->fd);
    api_files_give_back(p->s, p->fd >= 0 ? p->n : p->mem.cap);
    lq_buf_free(&p->mem);
    p->fd = -1;
    p->n = 0;
}

void api_part_drop(api_part *p)
{
    if (p->fd >= 0) api_disk_remove(p->s->disk, p->name, "");
    if (p->s) api_part_close(p);
}

/* The grown file takes the file's name. Where the disk has no room for what is known of it, it is there as long as
 * this server. */
static api_file *keep_grown(api_part *p, const api_file *like, bool *lasts)
{
    api_files *s = p->s;
    api_file *f = api_files_make(s, like);
    const bool named = f && fsync(p->fd) == 0 && api_disk_rename(s->disk, p->name, f->id);
    *lasts = named && !api_files_settle(s, f, NULL);
    const bool ok = named && f->data.n > 0;
    if (!ok && f) api_files_remove_names(s, f);
    close(p->fd);
    p->fd = -1;
    if (ok) {
        api_files_enlist(s, f);
        return f;
    }
    api_files_give_back(s, p->n + sizeof *f);
    free(f);
    return NULL;
}

api_file *api_part_keep(api_part *p, const api_file *like, bool *lasts)
{
    api_file *f = NULL;
    *lasts = true;
    if (!p->n || !api_files_claim(p->s, sizeof *f)) {
        api_part_drop(p);
        return NULL;
    }
    f = p->fd >= 0 ? keep_grown(p, like, lasts) : api_files_add(p->s, like, &p->mem, NULL);
    p->mem = (lq_buf){ .n = 0 };
    p->n = 0;
    return f;
}
