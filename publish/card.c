/* publish/card.c */
#include "publish/card.h"

#include "formats/hf/front_matter.h"
#include "formats/source/history.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

static const char *str(const cJSON *o, const char *key)
{
    const char *v = NULL;
    js_str(o, key, false, &v, NULL);
    return v;
}

static double num(const cJSON *o, const char *key)
{
    double v = (double)NAN;
    js_f64(o, key, false, -1e300, 1e300, &v, NULL);
    return v;
}

/* ---- what a file says of itself ----
 * Its recipe, provenance and measurements are its makers' words, who may be anybody: on the card
 * they are text and nothing else, on one line. */
static void put_plain(lq_buf *b, const char *s)
{
    for (; s && *s; s++) {
        const unsigned char c = (unsigned char)*s;
        if (strchr("\\`|<>[]*#", *s)) lq_buf_puts(b, "\\");
        lq_buf_add(b, c < ' ' || c == 127 ? " " : s, 1);
    }
}

/* Between backticks, also in a table. */
static void put_code(lq_buf *b, const char *s)
{
    lq_buf_puts(b, "`");
    for (; s && *s; s++) {
        const unsigned char c = (unsigned char)*s;
        if (*s == '|') lq_buf_puts(b, "\\");
        lq_buf_add(b, *s == '`' ? "'" : c < ' ' || c == 127 ? " " : s, 1);
    }
    lq_buf_puts(b, "`");
}

static void put_json(lq_buf *b, const cJSON *v)
{
    lq_buf text = { 0 };
    const bool whole = !js_canonical(&text, v, NULL);
    lq_buf_add(&text, "", 1);
    if (whole && !text.oom)
        put_code(b, text.p);
    else
        b->oom = true;
    free(text.p);
}

static const char *size_text(char out[24], double bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    size_t u = 0;
    for (; bytes >= 1024 && u + 1 < LQ_COUNT(units); u++)
        bytes /= 1024;
    snprintf(out, 24, u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return out;
}

/* ---- front matter ---- */
static void front_matter(lq_buf *b, const cJSON *info, const char *carried)
{
    const char *base = str(info, "base_model"), *license = str(info, "license");
    const char *method = str(js_get(info, "recipe"), "method");
    lq_buf_puts(b, "---\n");
    lq_buf_puts(b, carried);
    if (license) lq_buf_printf(b, "license: %s\n", license);
    if (base) lq_buf_printf(b, "base_model: %s\nbase_model_relation: quantized\n", base);
    lq_buf_puts(b, "pipeline_tag: text-generation\ntags:\n- llmq\n");
    if (method) lq_buf_puts(b, "- quantized\n");
    if (method && fm_is_word(method)) lq_buf_printf(b, "- %s\n", method);
    lq_buf_puts(b, "---\n" CARD_MARK "\n");
}

/* ---- sections ---- */
/* Weights that `convert` did not take over as they were; NAN: unknown. */
static double rounded_anew(const cJSON *info)
{
    return num(js_get(info, HISTORY_CONVERTED), "requantized");
}

static void recipe(lq_buf *b, const cJSON *info)
{
    const cJSON *r = js_get(info, "recipe"), *source = js_get(js_get(info, "provenance"), "source");
    lq_buf command = { 0 };
    const double anew = rounded_anew(info), times = num(js_get(info, HISTORY_CONVERTED), "times");
    lq_buf_puts(b, "\n## How it was made\n\n");
    if (!r) {
        lq_buf_puts(b, "Not by llmq, or its recipe is not known");
        if (anew > 0)
            lq_buf_printf(b, "; `llmq convert` has rounded %.0f of its weights to the nearest.\n",
                          anew);
        else
            lq_buf_puts(b, ": the weights are as they were found.\n");
        return;
    }
    const char *version = str(js_get(info, "provenance"), "llmq");
    lq_buf_printf(&command, "llmq quantize --method %s", str(r, "method") ? str(r, "method") : "?");
    lq_buf_add(&command, "", 1);
    put_code(b, command.oom ? "" : command.p);
    b->oom = b->oom || command.oom;
    free(command.p);
    lq_buf_puts(b, " (llmq ");
    put_plain(b, version ? version : "?");
    lq_buf_puts(b, ")");
    if (str(source, "xxh3")) {
        lq_buf_puts(b, " of weights with XXH3-128 ");
        put_code(b, str(source, "xxh3"));
    }
    lq_buf_puts(b, ".\n\n| option | value |\n|---|---|\n");
    for (const cJSON *m = r->child; m; m = m->next) {
        lq_buf_puts(b, "| ");
        put_plain(b, m->string);
        lq_buf_puts(b, " | ");
        put_json(b, m);
        lq_buf_puts(b, " |\n");
    }
    if (!(anew > 0)) return;
    if (times > 1)
        lq_buf_printf(
            b, "\nSince then `llmq convert` has changed values %.0f times, and rounded up to %.0f ",
            times, anew);
    else
        lq_buf_printf(b, "\nSince then `llmq convert` has rounded %.0f ", anew);
    lq_buf_puts(b, "of its weights again: they are not those of this recipe any more.\n");
}

static void calibration(lq_buf *b, const cJSON *info)
{
    const cJSON *c = js_get(js_get(info, "provenance"), "calibration"), *files = js_get(c, "files");
    if (!c) return;
    lq_buf_printf(b,
                  "\n## Calibration\n\n%.0f windows of %.0f tokens, seed %.0f (XXH3-128 of all: ",
                  num(c, "samples"), num(c, "length"), num(c, "seed"));
    put_code(b, str(c, "xxh3"));
    lq_buf_puts(b, ").\n\n| text | kind | share | windows | tokens |\n|---|---|---|---|---|\n");
    for (const cJSON *f = cJSON_IsArray(files) ? files->child : NULL; f; f = f->next) {
        lq_buf_puts(b, "| ");
        put_plain(b, str(f, "name"));
        lq_buf_puts(b, " | ");
        put_plain(b, str(f, "kind"));
        lq_buf_printf(b, " | %.1f %% | %.0f | %.0f |\n", 100 * num(f, "weight"), num(f, "windows"),
                      num(f, "tokens"));
    }
}

static void cell(lq_buf *b, const cJSON *row, const char *key, int digits)
{
    const double v = num(row, key);
    if (isnan(v))
        lq_buf_puts(b, " - |");
    else
        lq_buf_printf(b, " %.*f |", digits, v);
}

static void measured(lq_buf *b, const cJSON *info)
{
    const cJSON *rows = js_get(info, "evaluations");
    lq_buf_puts(b, "\n## Measured\n\n");
    if (!cJSON_IsArray(rows) || !rows->child) {
        lq_buf_puts(b, "Nothing was measured when this was published (`llmq eval`).\n");
        return;
    }
    lq_buf_puts(
        b, "| measurement | tokens | window | perplexity | of the source | KL from the source | "
           "KL, 99th percentile | same top token |\n|---|---|---|---|---|---|---|---|\n");
    for (const cJSON *r = rows->child; r; r = r->next) {
        lq_buf_puts(b, "| ");
        put_plain(b, str(r, "name"));
        lq_buf_puts(b, " |");
        cell(b, r, "tokens", 0);
        cell(b, r, "ctx", 0);
        cell(b, r, "perplexity", 4);
        cell(b, r, "ref_perplexity", 4);
        cell(b, r, "kl_mean", 5);
        cell(b, r, "kl_p99", 5);
        cell(b, r, "top1_agree", 4);
        lq_buf_puts(b, "\n");
    }
}

static void sizes(lq_buf *b, const cJSON *info, const pub_files *fs)
{
    char text[24];
    const cJSON *list = js_get(info, "schemes");
    lq_buf_printf(b, "\n## Sizes\n\n%.3f bits per weight in the linear layers, %.3f over all.\n\n",
                  num(info, "bits_per_weight"), num(info, "bits_per_weight_model"));
    lq_buf_puts(b, "| scheme | tensors | weights | bytes |\n|---|---|---|---|\n");
    for (const cJSON *s = cJSON_IsArray(list) ? list->child : NULL; s; s = s->next)
        lq_buf_printf(b, "| `%s` | %.0f | %.0f | %s |\n", str(s, "scheme") ? str(s, "scheme") : "",
                      num(s, "tensors"), num(s, "elements"), size_text(text, num(s, "bytes")));
    lq_buf_puts(b, "\n| file | bytes |\n|---|---|\n");
    for (size_t i = 0; i < fs->n; i++)
        if (fs->f[i].kind->weights)
            lq_buf_printf(b, "| `%s` | %s |\n", fs->f[i].name,
                          size_text(text, (double)fs->f[i].bytes));
}

static void engine(lq_buf *b, const cJSON *h)
{
    const cJSON *line;
    lq_buf_printf(b, "\n**%s**", str(h, "engine"));
    lq_buf_puts(b, str(h, "command") ? ":\n\n```sh\n" : " cannot load this model:\n");
    if (str(h, "command")) {
        cJSON_ArrayForEach(line, js_get(h, "prepare")) lq_buf_printf(b, "%s\n", line->valuestring);
        lq_buf_printf(b, "%s\n```\n", str(h, "command"));
    }
    lq_buf_puts(b, "\n");
    cJSON_ArrayForEach(line, js_get(h, "differences"))
        lq_buf_printf(b, "- %s\n", line->valuestring);
}

static void running(lq_buf *b, const cJSON *info, const cJSON *handovers)
{
    const cJSON *h;
    const char *model = str(info, "model"), *why = str(info, "llmq_cannot_run");
    lq_buf_printf(
        b, "\n## How to run it\n\nIn the folder above the artifact, called `%s` here.\n\n**llmq**",
        str(info, "name"));
    if (why) {
        lq_buf_puts(b, " cannot run this model (");
        put_plain(b, why);
        lq_buf_puts(b, "); whether its bytes are right:\n\n");
    } else {
        lq_buf_puts(b, ":\n\n");
    }
    lq_buf_printf(b, "```sh\nllmq verify %s\n", model);
    if (!why) lq_buf_printf(b, "llmq serve %s\n", model);
    lq_buf_puts(b, "```\n");
    cJSON_ArrayForEach(h, handovers) engine(b, h);
}

void card_write(lq_buf *b, const cJSON *info, const pub_files *fs, const cJSON *handovers,
                const char *carried)
{
    char text[24];
    const char *arch = str(info, "architecture"), *method = str(js_get(info, "recipe"), "method");
    front_matter(b, info, carried);
    lq_buf_printf(b, "# %s\n\n%s%s%.4g M parameters in %s", str(info, "name"), arch ? arch : "",
                  arch ? ", " : "", num(info, "parameters") / 1e6,
                  size_text(text, num(info, "bytes")));
    lq_buf_printf(b, " (%s%s%s)", str(info, "format"), str(info, "layout") ? ": " : "",
                  str(info, "layout") ? str(info, "layout") : "");
    if (method) {
        lq_buf_puts(b, ", quantized with llmq by ");
        put_code(b, method);
    }
    if (rounded_anew(info) > 0)
        lq_buf_puts(b, method ? ", then rounded again by `llmq convert`"
                              : ", rounded to the nearest by `llmq convert`");
    if (str(info, "base_model")) lq_buf_printf(b, ", from %s", str(info, "base_model"));
    lq_buf_puts(b, ".\n");
    recipe(b, info);
    calibration(b, info);
    measured(b, info);
    sizes(b, info, fs);
    running(b, info, handovers);
    lq_buf_puts(b, "\n## Is it whole?\n\n```sh\nsha256sum -c " PUB_SUMS "\n```\n\n`" PUB_PROVENANCE
                   "` says all of this for programs.\n\n## Licence\n\n");
    if (str(info, "license"))
        lq_buf_printf(b, "%s, as the model it was made from.\n", str(info, "license"));
    else
        lq_buf_puts(b, "The model that it was made from does not say; its makers' terms hold.\n");
    for (size_t i = 0; i < fs->n; i++)
        if (strncmp(fs->f[i].kind->media, "text/plain", 10) == 0 && fs->f[i].name[0] != '.')
            lq_buf_printf(b, "See [%s](%s).\n", fs->f[i].name, fs->f[i].name);
    if (pub_find(fs, PUB_BASE_CARD))
        lq_buf_puts(b, "\nThe card of the model that it was made from: [" PUB_BASE_CARD
                       "](" PUB_BASE_CARD ").\n");
}
