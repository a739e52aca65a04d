/* A model that answers, without HTTP: what comes before what. */
#include "runtime/service.h"

#include <stdlib.h>

#include "base/version.h"
#include "kernels/ops.h"
#include "tests/support/check.h"

static const char ask[] = "{\"model\":\"m\",\"prompt\":\"the\",\"max_tokens\":1}";
static const char *const names[] = { "m" };

/* The status that a completion ends with; -1: none. */
static int status_of(lm *l)
{
    lq_err err;
    lm_answer a;
    if (lm_submit(l, "/v1/completions", ask, sizeof ask - 1, 7, &err)) return -1;
    for (int i = 0; i < 400 && !lm_step(l, 1); i++)
        ;
    if (!lm_poll(l, &a)) return -1;
    free(a.body);
    return a.status;
}

typedef struct {
    lm *l;
    lq_status says;
    int calls, status;
} hook;

static lq_status on_loaded(void *user, lq_err *err)
{
    hook *h = user;
    h->calls++;
    h->status = status_of(h->l);
    return h->says ? lq_fail(err, h->says, "not so") : LQ_OK;
}

/* What the process gives up is gone before anybody's bytes reach the model. */
TEST(before_ready_comes_before_the_first_answer)
{
    static const struct {
        const char *why;
        lq_status says;
        int after;
    } cases[] = { { "it agrees", LQ_OK, 200 }, { "it refuses", LQ_EUNSUPPORTED, 503 } };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        lq_err err;
        hook h = { .says = cases[i].says };
        pool *p = NULL;
        const api_opts o = { .names = names, .n_names = 1, .version = LLMQ_VERSION };
        lq_status s = pool_open(&p, 1, &err);
        if (!s) s = lm_open(&h.l, &o, &err);
        CHECK(!s, "%s: %s", cases[i].why, s ? err.msg : "");
        if (!s) {
            const lm_source src = {
                .path = "models/novels-1m", .p = p, .before_ready = on_loaded, .user = &h
            };
            s = lm_load(h.l, &src, &err);
            CHECK(s == cases[i].says, "%s: loading ends with %d", cases[i].why, (int)s);
            CHECK(h.calls == 1 && h.status == 503, "%s: %d calls, a request within ends with %d",
                  cases[i].why, h.calls, h.status);
            const int after = status_of(h.l);
            CHECK(after == cases[i].after, "%s: afterwards %d", cases[i].why, after);
        }
        lm_close(h.l);
        pool_close(p);
    }
}

int main(int argc, char **argv)
{
    lq_err err;
    if (k_init(NULL, &err)) return 1;
    RUN(before_ready_comes_before_the_first_answer);
    return check_end();
}
