/* tests/support/covered.h - the golden checkpoints that backward passes cover. */
#ifndef LLMQ_TESTS_SUPPORT_COVERED_H
#define LLMQ_TESTS_SUPPORT_COVERED_H

#include "calib/dense_layer.h"
#include "tests/support/archs.h"

/* Calls `each` with the folder and config of every one, in order; how many. */
static int each_covered(void (*each)(const char *folder, const arch_config *c))
{
    static arch_list all;
    int n = 0;
    archs_find(&all, "config.json");
    for (int i = 0; i < all.n; i++) {
        src_source *src;
        char path[160];
        snprintf(path, sizeof path, "tests/golden/arch/%s", all.name[i]);
        if (src_open(&src, path, &(src_opts){ .need_config = true }, NULL)) continue;
        if (grad_covers(src_config(src))) {
            each(path, src_config(src));
            n++;
        }
        src_close(src);
    }
    return n;
}

#endif
