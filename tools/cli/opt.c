/* tools/cli/opt.c - parsing of the command line. Help: tools/cli/help.c. */
#include "tools/cli/opt_common.h"

#include "base/json.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

/* ---- values ---- */
static bool parse_int(const char *s, int64_t *v)
{
    char *end;
    errno = 0;
    long long x = strtoll(s, &end, 10);
    if (end == s || *end || errno || isspace((unsigned char)*s)) return false;
    *v = x;
    return true;
}

bool opt_parse_float(const char *s, double *v)
{
    char *end;
    double x = strtod(s, &end);
    if (end == s || *end || !isfinite(x) || isspace((unsigned char)*s)) return false;
    *v = x;
    return true;
}

/* "1.5G", "64MiB", "4096": powers of 1024. Less than a byte is not nothing. */
bool opt_parse_size(const char *s, size_t *v)
{
    static const char units[] = "KMGT";
    if (!isdigit((unsigned char)*s)) return false;
    char *end;
    double x = strtod(s, &end);
    if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) return false;
    const char *u = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (u) {
        x *= (double)(1ull << (10 * (u - units + 1)));
        end++;
        if (*end == 'i') end++;
    }
    if (*end == 'B') end++;
    if (*end || !isfinite(x) || x >= 0x1p53 || (x < 1 && x != 0.0)) return false;
    *v = (size_t)x;
    return true;
}

lq_status opt_parse_ints(const char *s, const char *what, int64_t lo, int64_t hi, int64_t **v,
                         int64_t *n, lq_err *err)
{
    *v = NULL;
    *n = 0;
    size_t cap = 1;
    for (const char *p = s; *p; p++)
        cap += *p == ',';
    int64_t *out = malloc(cap * sizeof *out);
    if (!out) return lq_fail(err, LQ_ENOMEM, "%s: no memory for %zu numbers", what, cap);
    for (const char *p = s;;) {
        char *end;
        errno = 0;
        long long x = strtoll(p, &end, 10);
        const bool blank = isspace((unsigned char)*p);
        if (blank || end == p || (*end && *end != ',') || errno || x < lo || x > hi) {
            free(out);
            int len = (int)strcspn(p, ",");
            return lq_fail(err, LQ_EUSAGE,
                           "%s: expected integers %lld..%lld with commas between, found '%.*s'",
                           what, (long long)lo, (long long)hi, len > 40 ? 40 : len, p);
        }
        out[(*n)++] = x;
        if (!*end) break;
        p = end + 1;
    }
    *v = out;
    return LQ_OK;
}

char *opt_size_text(char *buf, size_t n, double bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    size_t u = 0;
    while (bytes >= 1023.95 && u + 1 < LQ_COUNT(units))
        bytes /= 1024, u++;
    snprintf(buf, n, u ? "%.1f %s" : "%.0f %s", bytes, units[u]);
    return buf;
}

char *opt_limit_text(char *buf, size_t n, double bytes)
{
    snprintf(buf, n, "%.0fM", ceil(bytes / 0x1p20));
    return buf;
}

/* ---- near matches ---- */
/* Edits (insert, delete, replace, swap of neighbours) between a and b; more than 40 characters
 * count as far. */
static int distance(const char *a, const char *b)
{
    enum { MAX = 40 };
    size_t na = strlen(a), nb = strlen(b);
    if (na > MAX || nb > MAX) return MAX;
    int d[MAX + 1][MAX + 1];
    for (size_t i = 0; i <= na; i++)
        d[i][0] = (int)i;
    for (size_t j = 0; j <= nb; j++)
        d[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++)
        for (size_t j = 1; j <= nb; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[na][nb];
}

const char *opt_nearest(const char *name, const char *const *names, size_t n)
{
    size_t len = strlen(name);
    int best = len < 4 ? 2 : 3; /* one edit of a short name, two of a longer one */
    const char *found = NULL;
    for (size_t i = 0; i < n; i++) {
        int d = distance(name, names[i]);
        if (len >= 3 && strncmp(name, names[i], len) == 0) d = 1; /* an abbreviation */
        if (d < best) best = d, found = names[i];
    }
    return found;
}

/* ---- rows of one command: its groups, then the options of every command ---- */
static const char *const levels[] = { "error", "warn", "info", "debug", NULL };
const opt_row opt_common_rows[OPT_COMMON_N] = {
    { "threads", 0, OPT_INT, offsetof(opt_common, threads), .def = "0", .lo = 0, .hi = 1024,
      .help = "compute threads; 0: one for each physical core that the process may use" },
    { "json", 0, OPT_FLAG, offsetof(opt_common, json),
      .help = "print one JSON document on stdout" },
    { "log-level", 0, OPT_ENUM, offsetof(opt_common, level), .def = "info", .words = levels,
      .help = "what to say on stderr" },
    { "help", 'h', OPT_FLAG, offsetof(opt_common, help), .help = "print this" },
};

typedef struct {
    const cmd_row *cmd;
    uint8_t *opts;
    opt_common common;
} target;

/* Row number i over all groups, and where its field lies; NULL behind the last. */
static const opt_row *row_at(const target *t, size_t i, void **field)
{
    for (const opt_group *g = t->cmd->groups; g->rows; g++) {
        if (i < g->n) {
            if (field) *field = t->opts + g->base + g->rows[i].off;
            return &g->rows[i];
        }
        i -= g->n;
    }
    if (i >= OPT_COMMON_N) return NULL;
    if (field) *field = (uint8_t *)(uintptr_t)&t->common + opt_common_rows[i].off;
    return &opt_common_rows[i];
}

static size_t count_rows(const cmd_row *cmd)
{
    size_t n = OPT_COMMON_N;
    for (const opt_group *g = cmd->groups; g->rows; g++)
        n += g->n;
    return n;
}

/* ---- one value into its field ---- */
static lq_status bad_value(const opt_row *r, const char *expected, const char *value, lq_err *err)
{
    return lq_fail(err, LQ_EUSAGE, "--%s: expected %s, found '%s'", r->name, expected, value);
}

static bool has_range(const opt_row *r) { return r->lo != 0.0 || r->hi != 0.0; }

static lq_status bad_integer(const opt_row *r, const char *value, lq_err *err)
{
    char want[80];
    size_t n = (size_t)snprintf(want, sizeof want, "an integer");
    if (has_range(r))
        n += (size_t)snprintf(want + n, sizeof want - n, " %.15g..%.15g", r->lo, r->hi);
    for (size_t i = 0; r->words && r->words[i] && n < sizeof want; i++)
        n += (size_t)snprintf(want + n, sizeof want - n, " or %s", r->words[i]);
    return bad_value(r, want, value, err);
}

static lq_status check_range(const opt_row *r, double x, const char *value, lq_err *err)
{
    if (!has_range(r) || (x >= r->lo && x <= r->hi)) return LQ_OK;
    char want[80];
    snprintf(want, sizeof want, "%.15g..%.15g", r->lo, r->hi);
    return bad_value(r, want, value, err);
}

static lq_status set_word(const opt_row *r, void *field, const char *value, lq_err *err)
{
    size_t n = 0;
    for (; r->words[n]; n++)
        if (strcmp(r->words[n], value) == 0) {
            memcpy(field, &(int){ (int)n }, sizeof(int));
            return LQ_OK;
        }
    char want[256] = "one of";
    for (size_t i = 0, used = strlen(want); i < n && used < sizeof want; i++)
        used += (size_t)snprintf(want + used, sizeof want - used, " %s", r->words[i]);
    const char *near = opt_nearest(value, r->words, n);
    lq_status s = bad_value(r, want, value, err);
    if (near && err) {
        size_t used = strlen(err->msg);
        snprintf(err->msg + used, sizeof err->msg - used, "; did you mean '%s'?", near);
    }
    return s;
}

static lq_status add_to_list(const opt_row *r, void *field, const char *value, lq_err *err)
{
    opt_list l;
    memcpy(&l, field, sizeof l);
    const char **v = realloc(l.v, ((size_t)l.n + 1) * sizeof *v);
    if (!v) return lq_fail(err, LQ_ENOMEM, "--%s: no memory", r->name);
    v[l.n] = value;
    l = (opt_list){ v, l.n + 1 };
    memcpy(field, &l, sizeof l);
    return LQ_OK;
}

static lq_status set_value(const opt_row *r, void *field, const char *value, lq_err *err)
{
    int64_t i;
    size_t z;
    double x;
    lq_status s;
    switch (r->type) {
    case OPT_INT:
        for (i = 0; r->words && r->words[i]; i++)
            if (strcmp(r->words[i], value) == 0) {
                memcpy(field, &(int64_t){ -1 - i }, sizeof i);
                return LQ_OK;
            }
        if (!parse_int(value, &i)) return bad_integer(r, value, err);
        s = check_range(r, (double)i, value, err);
        if (!s) memcpy(field, &i, sizeof i);
        return s;
    case OPT_SIZE:
        if (!opt_parse_size(value, &z))
            return bad_value(r, "a size such as 4096, 512M or 1.5G, below 8192T", value, err);
        s = check_range(r, (double)z, value, err);
        if (!s) memcpy(field, &z, sizeof z);
        return s;
    case OPT_FLOAT:
        if (!opt_parse_float(value, &x)) return bad_value(r, "a number", value, err);
        s = check_range(r, x, value, err);
        if (!s) memcpy(field, &x, sizeof x);
        return s;
    case OPT_STR:
        memcpy(field, &value, sizeof value);
        return LQ_OK;
    case OPT_LIST:
        return add_to_list(r, field, value, err);
    case OPT_ENUM:
        return set_word(r, field, value, err);
    case OPT_FLAG:
    case OPT_TRI:
        break;
    }
    return lq_fail(err, LQ_EUSAGE, "--%s takes no value, found '%s'", r->name, value);
}

static void set_switch(const opt_row *r, void *field, bool yes)
{
    const opt_tri tri = yes ? OPT_YES : OPT_NO;
    if (r->type == OPT_FLAG)
        memcpy(field, &yes, sizeof yes);
    else
        memcpy(field, &tri, sizeof tri);
}

/* ---- the command line ---- */
static lq_status unknown_option(const target *t, const char *arg, size_t len, lq_err *err)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", len > 60 ? 60 : (int)len, arg + 2);
    const char *all[256], *negated[256];
    size_t n = 0, n_negated = 0;
    bool no = strncmp(name, "no-", 3) == 0;
    for (const opt_row *r; n < LQ_COUNT(all) && (r = row_at(t, n, NULL)); n++) {
        all[n] = r->name;
        if (r->type == OPT_TRI) negated[n_negated++] = r->name;
        if (no && r->type == OPT_FLAG && strcmp(r->name, name + 3) == 0)
            return lq_fail(err, LQ_EUSAGE, "unknown option '--%s': --%s is off unless it is given",
                           name, r->name);
    }
    const char *near = opt_nearest(name, all, n);
    if (!near && no)
        near = opt_nearest(name + 3, negated, n_negated);
    else
        no = false;
    if (near)
        return lq_fail(err, LQ_EUSAGE, "unknown option '--%s'; did you mean '--%s%s'?", name,
                       no ? "no-" : "", near);
    return lq_fail(err, LQ_EUSAGE, "unknown option '--%s'", name);
}

/* The row of an argument "--name", "--no-name", "--name=..." or "-n..."; *value points behind '='
 * or behind the short letter, or is NULL. */
static lq_status find_row(const target *t, const char *arg, size_t *index, const char **value,
                          bool *yes, lq_err *err)
{
    *value = NULL;
    *yes = true;
    const opt_row *r;
    if (arg[1] != '-') {
        for (size_t i = 0; (r = row_at(t, i, NULL)); i++)
            if (r->short_name == arg[1]) {
                *index = i;
                if (arg[2]) *value = arg + 2 + (arg[2] == '=');
                return LQ_OK;
            }
        return lq_fail(err, LQ_EUSAGE, "unknown option '-%c'", arg[1]);
    }
    const char *name = arg + 2, *eq = strchr(name, '=');
    size_t len = eq ? (size_t)(eq - name) : strlen(name);
    for (size_t i = 0; (r = row_at(t, i, NULL)); i++) {
        bool plain = strlen(r->name) == len && strncmp(name, r->name, len) == 0;
        bool no = r->type == OPT_TRI && len > 3 && strncmp(name, "no-", 3) == 0 &&
                  strlen(r->name) == len - 3 && strncmp(name + 3, r->name, len - 3) == 0;
        if (!plain && !no) continue;
        *index = i;
        *yes = plain;
        if (eq) *value = eq + 1;
        return LQ_OK;
    }
    return unknown_option(t, arg, len, err);
}

static lq_status set_defaults(const target *t, lq_err *err)
{
    const opt_row *r;
    void *field;
    for (size_t i = 0; (r = row_at(t, i, &field)); i++) {
        lq_status s = r->def ? set_value(r, field, r->def, err) : LQ_OK;
        if (s) return s;
    }
    return LQ_OK;
}

static lq_status check_required(const cmd_ctx *c, const target *t, lq_err *err)
{
    const opt_row *r;
    for (size_t i = 0; (r = row_at(t, i, NULL)); i++)
        if (r->required && !c->given[i])
            return lq_fail(err, LQ_EUSAGE, "--%s is required", r->name);
    int need = 0, most = 0;
    for (const opt_arg *a = c->cmd->args; a->name; a++) {
        if (c->argc < need + a->min)
            return lq_fail(err, LQ_EUSAGE, "%s is missing: %s", a->name, a->help);
        need += a->min;
        most += a->max ? a->max : 1;
    }
    if (c->argc > most)
        return lq_fail(err, LQ_EUSAGE, "unexpected argument '%.100s'", c->argv[most]);
    return LQ_OK;
}

/* A second value that is another counts, as in most programs, but may be an oversight. Lists take
 * several. */
static void note_value(cmd_ctx *c, const opt_row *r, const char **was, const char *now)
{
    const char *before = *was;
    *was = now;
    if (!before || r->type == OPT_LIST || strcmp(before, now) == 0) return;
    if (r->type == OPT_TRI)
        snprintf(c->note, sizeof c->note, "--%s and --no-%s: the last of them counts", r->name,
                 r->name);
    else
        snprintf(c->note, sizeof c->note, "--%s: the last of '%.60s' and '%.60s' counts", r->name,
                 before, now);
}

static lq_status parse_args(cmd_ctx *c, const target *t, const char **given, int argc, char **argv,
                            lq_err *err)
{
    bool only_args = false;
    for (int a = 0; a < argc; a++) {
        const char *arg = argv[a], *value;
        if (only_args || arg[0] != '-' || !arg[1]) {
            c->argv[c->argc++] = arg;
            continue;
        }
        if (strcmp(arg, "--") == 0) {
            only_args = true;
            continue;
        }
        size_t i = 0;
        bool yes;
        lq_status s = find_row(t, arg, &i, &value, &yes, err);
        if (s) return s;
        void *field;
        const opt_row *r = row_at(t, i, &field);
        if (r->type == OPT_FLAG || r->type == OPT_TRI) {
            if (value) return set_value(r, field, value, err); /* says that it takes none */
            note_value(c, r, &given[i], yes ? "yes" : "no");
            set_switch(r, field, yes);
            continue;
        }
        if (!value && ++a >= argc) return lq_fail(err, LQ_EUSAGE, "--%s needs a value", r->name);
        if (!value) value = argv[a];
        s = set_value(r, field, value, err);
        if (s) return s;
        note_value(c, r, &given[i], value);
    }
    return LQ_OK;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return true;
    return false;
}

lq_status opt_parse(cmd_ctx *c, void *opts, const cmd_row *cmd, int argc, char **argv, bool *help,
                    lq_err *err)
{
    *c = (cmd_ctx){ .cmd = cmd, .level = LOG_INFO };
    *help = asks_for_help(argc, argv);
    if (*help) return LQ_OK;
    target t = { cmd, opts, { 0 } };
    const char **given = calloc(count_rows(cmd), sizeof *given);
    c->given = given;
    c->argv = calloc((size_t)argc + 1, sizeof *c->argv);
    if (!given || !c->argv) return lq_fail(err, LQ_ENOMEM, "no memory for %d arguments", argc);
    lq_status s = set_defaults(&t, err);
    if (!s) s = parse_args(c, &t, given, argc, argv, err);
    if (!s) s = check_required(c, &t, err);
    c->threads = (int)t.common.threads;
    c->json = t.common.json;
    c->level = (log_level)t.common.level;
    return s;
}

void opt_free(cmd_ctx *c, void *opts)
{
    target t = { c->cmd, opts, { 0 } };
    const opt_row *r;
    void *field;
    for (size_t i = 0; c->cmd && (r = row_at(&t, i, &field)); i++) {
        if (r->type != OPT_LIST) continue;
        opt_list l;
        memcpy(&l, field, sizeof l);
        free(l.v);
        memset(field, 0, sizeof l);
    }
    free((void *)(uintptr_t)c->given);
    free(c->argv);
    *c = (cmd_ctx){ 0 };
}

const char *opt_value(const cmd_ctx *c, const char *name)
{
    target t = { c->cmd, NULL, { 0 } };
    const opt_row *r;
    for (size_t i = 0; (r = row_at(&t, i, NULL)); i++)
        if (strcmp(r->name, name) == 0) return c->given[i];
    return NULL;
}

bool opt_given(const cmd_ctx *c, const char *name) { return opt_value(c, name) != NULL; }

static bool printed_json;

bool cmd_printed_json(void) { return printed_json; }

lq_status cmd_print_json(cJSON *doc, lq_err *err)
{
    char *text = js_print(doc, true);
    cJSON_Delete(doc);
    if (!text) return lq_fail(err, LQ_ENOMEM, "no memory for the JSON document");
    printed_json = true;
    puts(text);
    free(text);
    return LQ_OK;
}

lq_status cmd_give_json(const cmd_ctx *c, cJSON *doc, lq_err *err)
{
    if (!c->result || !doc) return cmd_print_json(doc, err);
    *c->result = doc;
    return LQ_OK;
}
