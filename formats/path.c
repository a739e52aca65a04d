/* formats/path.c */
#include "formats/path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

lq_status lq_make_parents(const char *path, lq_err *err)
{
    char *copy = strdup(path);
    lq_status s = copy ? LQ_OK : lq_fail(err, LQ_ENOMEM, "%s: out of memory", path);
    for (char *c = copy; !s && *c; c++) {
        const bool at_end = c[strspn(c, "/")] == 0;
        if (*c != '/' || c == copy || at_end) continue;
        *c = 0;
        if (!lq_is_dir(copy) && mkdir(copy, 0777) != 0 && errno != EEXIST)
            s = lq_fail(err, LQ_EIO, "%s: no folder %s, and it cannot be made: %s", path, copy,
                        strerror(errno));
        else if (!lq_is_dir(copy))
            s = lq_fail(err, LQ_EIO, "%s: expected a folder %s, found a file", path, copy);
        *c = '/';
    }
    free(copy);
    return s;
}
