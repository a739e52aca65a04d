/* tests/support/families.h - walk through the kernel families that this machine has. */
#ifndef LLMQ_TESTS_SUPPORT_FAMILIES_H
#define LLMQ_TESTS_SUPPORT_FAMILIES_H

#include "kernels/ops.h"
#include "tests/support/check.h"

/* The i-th family's name in `name`, chosen; false behind the last. */
static inline bool family_use(int i, char name[16])
{
    const char *p = k_list();
    for (; i > 0 && *p; i--) {
        p += strcspn(p, " ");
        p += *p == ' ';
    }
    if (!*p) return false;
    snprintf(name, 16, "%.*s", (int)strcspn(p, " "), p);
    lq_err err = { "" };
    CHECK(!k_init(name, &err), "%s", err.msg);
    CHECK(strcmp(k_name(), name) == 0, "asked for %s, got %s", name, k_name());
    return true;
}

#endif
