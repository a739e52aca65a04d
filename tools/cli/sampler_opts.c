/* tools/cli/sampler_opts.c - see sampler_opts.h. */
#include "tools/cli/sampler_opts.h"

static const char *const versions[] = { "off", "2", NULL };

#define F(field) offsetof(opt_samplers, field)
const opt_row opt_samplers_rows[OPT_SAMPLERS_N] = {
    { "dry-multiplier", 0, OPT_FLOAT, F(dry_multiplier), .def = "0", .lo = 0, .hi = 100,
      .help = "DRY: subtracts X * base^(L - length) from what would go on with L repeated tokens" },
    { "dry-base", 0, OPT_FLOAT, F(dry_base), .def = "1.75", .lo = 1, .hi = 100,
      .help = "its base" },
    { "dry-allowed-length", 0, OPT_INT, F(dry_allowed), .def = "2", .lo = 1, .hi = 1024,
      .help = "its length: shorter repetitions are free" },
    { "dry-penalty-last-n", 0, OPT_INT, F(dry_last_n), .def = "-1", .lo = -1, .hi = 1e9,
      .help = "tokens that it looks at (-1: all)" },
    { "dry-sequence-breaker", 0, OPT_LIST, F(breakers), .arg = "TEXT",
      .help = "no repetition goes across it (default: newline, colon, quote and asterisk)" },
    { "repeat-last-n", 0, OPT_INT, F(repeat_last_n), .def = "-1", .lo = -1, .hi = 1e9,
      .help = "tokens that the three penalties look at (-1: all)" },
    { "top-n-sigma", 0, OPT_FLOAT, F(top_n_sigma), .def = "0", .lo = -1, .hi = 1e6,
      .help = "sample from logits within N standard deviations of the largest (0: all)" },
    { "dynatemp-range", 0, OPT_FLOAT, F(dynatemp_range), .def = "0", .lo = 0, .hi = 100,
      .help = "the temperature follows the entropy, up to this much down and up" },
    { "dynatemp-exponent", 0, OPT_FLOAT, F(dynatemp_exponent), .def = "1", .lo = 0, .hi = 100,
      .help = "of the entropy's share in that" },
    { "typical-p", 0, OPT_FLOAT, F(typical_p), .def = "1", .lo = 0.0001, .hi = 1,
      .help = "sample from the tokens of most typical surprise that add up to this probability" },
    { "xtc-probability", 0, OPT_FLOAT, F(xtc_probability), .def = "0", .lo = 0, .hi = 1,
      .help = "XTC: so often all likely tokens but the last of them are excluded" },
    { "xtc-threshold", 0, OPT_FLOAT, F(xtc_threshold), .def = "0.1", .lo = 0, .hi = 1,
      .help = "probability from which a token is likely to it" },
    { "mirostat", 0, OPT_ENUM, F(mirostat), .def = "off", .words = versions,
      .help =
          "hold the surprise of tokens at a target; of the others only the temperature counts" },
    { "mirostat-tau", 0, OPT_FLOAT, F(mirostat_tau), .def = "5", .lo = 0, .hi = 100,
      .help = "the target, in bits" },
    { "mirostat-eta", 0, OPT_FLOAT, F(mirostat_eta), .def = "0.1", .lo = 0, .hi = 100,
      .help = "how fast it is reached" },
};
#undef F

bool opt_samplers_draw(const opt_samplers *o)
{
    return o->top_n_sigma > 0 || o->dynatemp_range > 0 || o->typical_p < 1 ||
           o->xtc_probability > 0 || o->mirostat;
}

lq_status opt_samplers_put(smp_params *p, dry_breakers *b, const opt_samplers *o,
                           const tok_tokenizer *tok, int64_t vocab, lq_err *err)
{
    p->typical_p = (float)o->typical_p;
    p->top_n_sigma = o->top_n_sigma > 0 ? (float)o->top_n_sigma : 0;
    p->dynatemp_range = (float)o->dynatemp_range;
    p->dynatemp_exponent = (float)o->dynatemp_exponent;
    p->xtc_probability = (float)o->xtc_probability;
    p->xtc_threshold = (float)o->xtc_threshold;
    p->mirostat = o->mirostat ? 2 : 0;
    p->mirostat_tau = (float)o->mirostat_tau;
    p->mirostat_eta = (float)o->mirostat_eta;
    p->penalty_last_n = o->repeat_last_n > 0 ? o->repeat_last_n : 0;
    if (o->repeat_last_n == 0) {
        p->repetition_penalty = 1;
        p->presence_penalty = p->frequency_penalty = 0;
    }
    if (!(o->dry_multiplier > 0)) return LQ_OK;
    if (o->breakers.n > DRY_MAX_BREAKERS)
        return lq_fail(err, LQ_EUSAGE, "--dry-sequence-breaker: expected at most %d, found %d",
                       DRY_MAX_BREAKERS, o->breakers.n);
    lq_status s = LQ_OK;
    if (tok)
        s = dry_breakers_make(b, tok, vocab, o->breakers.n ? o->breakers.v : dry_usual,
                              o->breakers.n ? o->breakers.n : DRY_USUAL, err);
    p->dry = (smp_dry){ .multiplier = (float)o->dry_multiplier,
                        .base = (float)o->dry_base,
                        .allowed = (int32_t)o->dry_allowed,
                        .last_n = o->dry_last_n,
                        .breaks = b->breaks,
                        .runs = b->runs,
                        .n_runs = b->n_runs };
    return s;
}
