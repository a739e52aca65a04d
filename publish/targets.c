/* publish/targets.c - the table of targets. */
#include "publish/target.h"

static const pub_target *const targets[] = { &pub_dir, &pub_oci, &pub_git, &pub_hub };

lq_status pub_target_find(const pub_target **t, const char **where, const char *arg, lq_err *err)
{
    for (size_t i = 0; i < LQ_COUNT(targets); i++) {
        const size_t n = strlen(targets[i]->prefix);
        if (strncmp(arg, targets[i]->prefix, n) != 0 || !arg[n]) continue;
        *t = targets[i];
        *where = arg + n;
        return LQ_OK;
    }
    return lq_fail(err, LQ_EUSAGE,
                   "target: expected dir:PATH, oci://REGISTRY/NAME:TAG, git:URL or hf:ORG/NAME, "
                   "found '%.100s'",
                   arg);
}
