/* quantize/tune/checkpoint.c - see checkpoint.h. */
#include "quantize/tune/checkpoint.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/out_file.h"
#include "base/path.h"
#include "calib/spill.h"

struct checkpoint {
    lq_out *out; /* NULL: it loads */
    lq_hasher *hash;
    int fd;
    size_t at, size; /* of the file that is read */
};

bool checkpoint_loads(const checkpoint *c) { return !c->out; }

lq_status checkpoint_piece(checkpoint *c, void *x, size_t bytes, lq_err *err)
{
    if (c->out) {
        lq_hasher_add(c->hash, x, bytes);
        return lq_out_write(c->out, x, bytes, err);
    }
    const lq_status s = spill_get(c->fd, x, bytes, c->at, err);
    c->at += bytes;
    return s;
}

lq_status checkpoint_save(const char *dir, const char *name, checkpoint_pieces *pieces, void *user,
                          lq_err *err)
{
    char path[4200];
    lq_hash h = { { 0 } };
    bool fits = true;
    checkpoint c = { .hash = lq_hasher_new(), .fd = -1 };
    lq_status s = c.hash ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for a checksum");
    if (!s) s = lq_path_join(path, sizeof path, dir, name, err);
    if (!s) s = lq_out_open(&c.out, path, err);
    if (!s) s = lq_out_write(c.out, &h, sizeof h, err);
    if (!s) s = pieces(user, &c, &fits, err);
    if (c.hash) h = lq_hasher_end(c.hash);
    if (!s) s = lq_out_pwrite(c.out, &h, sizeof h, 0, err);
    if (!s) return lq_out_commit(c.out, err);
    lq_out_abort(c.out);
    return s;
}

/* *whole: the file's bytes are those that were saved, and can be read. */
static lq_status verify(bool *whole, const checkpoint *c, lq_err *err)
{
    enum { WINDOW = 1 << 20 };
    lq_hash said, h;
    lq_hasher *hash = lq_hasher_new();
    uint8_t *box = malloc(WINDOW);
    const lq_status s = hash && box ? LQ_OK : lq_fail(err, LQ_ENOMEM, "no memory for a checksum");
    bool read = !s && spill_get(c->fd, &said, sizeof said, 0, NULL) == LQ_OK;
    for (size_t at = sizeof h; at < c->size && read; at += WINDOW) {
        const size_t n = c->size - at < WINDOW ? c->size - at : WINDOW;
        read = spill_get(c->fd, box, n, at, NULL) == LQ_OK;
        if (read) lq_hasher_add(hash, box, n);
    }
    if (hash) h = lq_hasher_end(hash);
    free(box);
    *whole = read && memcmp(&said, &h, sizeof h) == 0;
    return s;
}

lq_status checkpoint_load(bool *found, const char *dir, const char *name, checkpoint_pieces *pieces,
                          void *user, lq_err *err)
{
    char path[4200];
    struct stat st;
    *found = false;
    lq_status s = lq_path_join(path, sizeof path, dir, name, err);
    if (s) return s;
    checkpoint c = { .fd = open(path, O_RDONLY | O_CLOEXEC), .at = sizeof(lq_hash) };
    if (c.fd < 0) return LQ_OK;
    if (fstat(c.fd, &st) == 0 && st.st_size > (off_t)sizeof(lq_hash)) {
        c.size = (size_t)st.st_size;
        s = verify(found, &c, err);
    }
    if (!s && *found) s = pieces(user, &c, found, err);
    close(c.fd);
    return s;
}
