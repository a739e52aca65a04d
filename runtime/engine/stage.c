/* runtime/engine/stage.c - see stage.h. */
#include "runtime/engine/stage.h"

#include "runtime/engine/stages/stages.h"

static bool has_nsigma(const smp_params *p) { return p->top_n_sigma > 0; }
static bool has_top_k(const smp_params *p) { return p->top_k > 0; }
static bool has_typical(const smp_params *p) { return p->typical_p > 0 && p->typical_p < 1; }
static bool has_top_p(const smp_params *p) { return p->top_p > 0 && p->top_p < 1; }
static bool has_min_p(const smp_params *p) { return p->min_p > 0; }
static bool has_xtc(const smp_params *p) { return p->xtc_probability > 0; }
static bool has_infill(const smp_params *p) { return p->infill.tok != NULL; }
static bool has_mirostat(const smp_params *p) { return p->mirostat != 0; }
static bool always(const smp_params *p)
{
    (void)p;
    return true;
}

/* In the order that holds where a request has none of its own. */
const smp_stage smp_stages[SMP_STAGES] = {
    { "top_n_sigma", "nsigma", has_nsigma, stage_top_n_sigma },
    { "temperature", "temp", always, stage_temperature },
    { "top_k", "top-k", has_top_k, stage_top_k },
    { "typ_p", "typical_p", has_typical, stage_typical },
    { "top_p", "top-p", has_top_p, stage_top_p },
    { "min_p", "min-p", has_min_p, stage_min_p },
    { "xtc", NULL, has_xtc, stage_xtc },
    { "infill", NULL, has_infill, stage_infill },
    /* With mirostat only the temperature is applied besides it, as in llama.cpp. */
    { "mirostat", NULL, has_mirostat, stage_mirostat },
};

bool stages_wanted(const smp_params *p)
{
    return p->order[0] || has_nsigma(p) || p->dynatemp_range > 0 || has_typical(p) || has_xtc(p) ||
           has_mirostat(p);
}

void stages_run(stage_ctx *c, float *x, const smp_params *p)
{
    if (has_mirostat(p)) {
        stage_temperature(c, x, p);
        stage_mirostat(c, x, p);
        return;
    }
    for (int i = 0; i < SMP_STAGES && (p->order[i] || !p->order[0]); i++) {
        const smp_stage *s = &smp_stages[p->order[0] ? p->order[i] - 1 : i];
        if (s->on(p)) s->run(c, x, p);
    }
}
