/* tools/cli/shard.c - see shard.h. */
#include "tools/cli/shard.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

/* A number of the environment, or what is meant where it has none. */
static lq_status env_number(int *v, const char *name, int none, lq_err *err)
{
    const char *text = getenv(name);
    char *end;
    *v = none;
    if (!text) return LQ_OK;
    const long n = strtol(text, &end, 10);
    if (end == text || *end || n < 0 || n > INT_MAX / 2)
        return lq_fail(err, LQ_EUSAGE, "%s: expected a number, found '%.60s'", name, text);
    *v = (int)n;
    return LQ_OK;
}

/* Of a Slurm array, 4-10:2 say: ids from the least in steps. */
static lq_status slurm_shard(int *i, int *n, lq_err *err)
{
    int id, least, step;
    lq_status s = env_number(&id, "SLURM_ARRAY_TASK_ID", 1, err);
    if (!s) s = env_number(n, "SLURM_ARRAY_TASK_COUNT", 0, err);
    if (!s) s = env_number(&least, "SLURM_ARRAY_TASK_MIN", 1, err);
    if (!s) s = env_number(&step, "SLURM_ARRAY_TASK_STEP", 1, err);
    if (s) return s;
    if (*n < 1 || id < least || step < 1 || (id - least) % step)
        return lq_fail(err, LQ_EUSAGE,
                       "--shard: expected i/N, as SLURM_ARRAY_TASK_ID does not say which of how "
                       "many: %d from %d in steps of %d, of %d",
                       id, least, step, *n);
    *i = (id - least) / step + 1;
    return LQ_OK;
}

lq_status shard_read(int *shard, int *of, const char *text, lq_err *err)
{
    int i = 1, n = 1, end = 0;
    lq_status s = LQ_OK;
    if (text && strcmp(text, "auto") == 0) {
        if (!getenv("SLURM_ARRAY_TASK_ID"))
            return lq_fail(err, LQ_EUSAGE,
                           "--shard auto: expected an array of Slurm (SLURM_ARRAY_TASK_ID), found "
                           "none");
        s = slurm_shard(&i, &n, err);
    } else if (text && sscanf(text, "%9d/%9d%n", &i, &n, &end) == 2 && !text[end]) {
    } else if (text && getenv("JOB_COMPLETION_INDEX") && sscanf(text, "%9d%n", &n, &end) == 1 &&
               !text[end]) {
        s = env_number(&i, "JOB_COMPLETION_INDEX", 0, err);
        i++;
    } else if (text) {
        return lq_fail(err, LQ_EUSAGE, "--shard: expected i/N, such as 1/8, or auto, found '%s'",
                       text);
    }
    if (s) return s;
    if (n < 1 || i < 1 || i > n)
        return lq_fail(err, LQ_EUSAGE, "--shard: expected 1 to %d of %d, found %d", n, n, i);
    *shard = i - 1;
    *of = n;
    return LQ_OK;
}
