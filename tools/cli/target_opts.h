/* tools/cli/target_opts.h - options and report that `publish` and `pull` have in common. */
#ifndef LLMQ_TOOLS_CLI_TARGET_OPTS_H
#define LLMQ_TOOLS_CLI_TARGET_OPTS_H

#include "publish/target.h"
#include "tools/cli/opt.h"

typedef struct {
    const char *branch, *username, *password_file, *ca;
    bool plain_http;
    int64_t timeout;
} opt_target;

enum { OPT_TARGET_N = 6 };
extern const opt_row opt_target_rows[OPT_TARGET_N];

/* LQ_EUSAGE: an option that this kind of target does not have. */
lq_status target_opts_check(const opt_target *o, const char *target, lq_err *err);
pub_opts target_opts(const opt_target *o, const cmd_ctx *c);
/* What was done, as a line or as JSON: target, digest, files, bytes, sent; path (may be NULL): where it
 * is now. */
lq_status target_report(const cmd_ctx *c, const char *target, const pub_files *fs,
                        const pub_result *r, const char *verb, const char *path, lq_err *err);

#endif
