/* tools/report/plan_quantize.c - see plan_quantize.h. */
#include "tools/report/plan_quantize.h"

#include "quantize/methods/effort.h"
#include "quantize/methods/methods.h"
#include "tools/report/quantize_calib.h"

static bool need_of(qz_memory *n, const qz_method *m, const src_source *src, int threads)
{
    qz_opts q = { .method = m, .outer = QZ_OUTER };
    const qz_effort *e;
    if (qz_effort_find(&e, QZ_EFFORT_DEFAULT, NULL)) return false;
    const cal_samples text = { .n = quantize_effort(&q, e, src), .len = QUANTIZE_LEN };
    const bool calibrated = qz_calibrated(&q);
    const cal_samples check = { .n = calibrated ? QZ_CHECK_WINDOWS : 0, .len = QUANTIZE_LEN };
    const qz_job j = { .o = &q,
                       .samples = calibrated ? &text : NULL,
                       .self_windows = quantize_self_windows(&q, src, text.n),
                       .check = &check };
    qz_plan plan;
    if (qz_plan_make(&plan, src, &q, &(plan_voice){ 0 }, NULL)) return false;
    const bool ok = !qz_job_memory(n, &j, &plan, threads, NULL);
    qz_plan_free(&plan);
    return ok;
}

/* The method at a place of what is shown, or NULL. */
static const qz_method *shown(int place)
{
    const qz_method *m;
    for (size_t i = 0; (m = qz_method_at(i)); i++)
        if (m->plan == place) return m;
    return NULL;
}

int plan_quantize(plan_need need[PLAN_METHODS], const src_source *src, int threads)
{
    int n = 0;
    for (int place = 1; place <= PLAN_METHODS; place++) {
        const qz_method *m = shown(place);
        if (m && need_of(&need[n].memory, m, src, threads)) need[n++].method = m;
    }
    return n;
}
