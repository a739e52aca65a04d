/* tools/report/quantize_methods.c - see quantize_methods.h. */
#include "tools/report/quantize_methods.h"

#include "quantize/methods/methods.h"

#include <cjson/cJSON.h>
#include <stdarg.h>

enum { NEVER, IF_GIVEN, ALWAYS };
static const char *const words[] = { [NEVER] = "no", [IF_GIVEN] = "if given", [ALWAYS] = "yes" };

static int text_of(const qz_method *m)
{
    return !m->needs ? NEVER : m->text_optional ? IF_GIVEN : ALWAYS;
}

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static void
add(char *text, size_t n, const char *fmt, ...)
{
    const size_t at = strlen(text);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + at, n - at, fmt, ap);
    va_end(ap);
}

/* "gptq, awq; when given: rtn" */
static void note_calib(char *text, size_t n)
{
    const qz_method *m;
    for (int kind = ALWAYS; kind > NEVER; kind--) {
        const char *before = kind == ALWAYS ? "" : "; when given: ";
        for (size_t i = 0; (m = qz_method_at(i)); i++) {
            if (text_of(m) != kind) continue;
            add(text, n, "%s%s", before, m->name);
            before = ", ";
        }
    }
}

/* "; on by default: gptq (not at 2 bits without --tune), awq" */
static void note_on(char *text, size_t n, unsigned option)
{
    const qz_method *m;
    const char *before = "; on by default: ";
    for (size_t i = 0; (m = qz_method_at(i)); i++) {
        if (!((m->on | m->always) & option)) continue;
        add(text, n, "%s%s", before, m->name);
        if (m->on_when && !(m->always & option)) add(text, n, " (%s)", m->on_when);
        before = ", ";
    }
}

/* "; default 128: rtn, gptq; 64: hqq" */
static void note_group(char *text, size_t n)
{
    const qz_method *m, *k;
    const char *before = "; default ";
    for (size_t i = 0; (m = qz_method_at(i)); i++) {
        bool told = m->group == 0;
        for (size_t j = 0; j < i && !told; j++)
            told = qz_method_at(j)->group == m->group;
        if (told) continue;
        add(text, n, "%s%lld: ", before, (long long)m->group);
        const char *comma = "";
        for (size_t j = i; (k = qz_method_at(j)); j++) {
            if (k->group != m->group) continue;
            add(text, n, "%s%s", comma, k->name);
            comma = ", ";
        }
        before = "; ";
    }
}

void qmethods_note(char *text, size_t n, const opt_row *row)
{
    const unsigned option = qz_option_of(row->name);
    *text = 0;
    if (strcmp(row->name, "method") == 0) qz_methods_with(text, n, 0);
    if (strcmp(row->name, "calib") == 0) note_calib(text, n);
    if (!option) return;
    qz_methods_with(text, n, option);
    note_on(text, n, option);
    if (option == QZ_OPT_GROUP) note_group(text, n);
}

lq_status qmethods_check(const cmd_ctx *c, const char *method, lq_err *err)
{
    const qz_method *m;
    char list[512];
    const lq_status s = qz_method_find(&m, method, err);
    for (int i = 0; i < QZ_N_OPTIONS && !s; i++)
        if (opt_given(c, qz_option_name(i)) && !(m->options & 1U << i))
            return lq_fail(err, LQ_EUSAGE, "--%s: expected a method that has it (%s), found %s",
                           qz_option_name(i), qz_methods_with(list, sizeof list, 1U << i), method);
    return s;
}

static cJSON *names_of(unsigned options)
{
    cJSON *a = cJSON_CreateArray();
    for (int i = 0; i < QZ_N_OPTIONS; i++)
        if (options & 1U << i) cJSON_AddItemToArray(a, cJSON_CreateString(qz_option_name(i)));
    return a;
}

static cJSON *method_json(const qz_method *m)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "name", m->name);
    cJSON_AddStringToObject(o, "help", m->help);
    cJSON_AddStringToObject(o, "schemes", m->schemes);
    cJSON_AddStringToObject(o, "text", words[text_of(m)]);
    if (m->bits) cJSON_AddNumberToObject(o, "bits", m->bits);
    if (m->group) cJSON_AddNumberToObject(o, "group_size", (double)m->group);
    cJSON_AddItemToObject(o, "options", names_of(m->options));
    cJSON_AddItemToObject(o, "on", names_of(m->on | m->always));
    return o;
}

lq_status qmethods_list(bool json, lq_err *err)
{
    const qz_method *m;
    cJSON *doc = json ? cJSON_CreateObject() : NULL;
    cJSON *list = json ? cJSON_AddArrayToObject(doc, "methods") : NULL;
    for (size_t i = 0; json && (m = qz_method_at(i)); i++)
        cJSON_AddItemToArray(list, method_json(m));
    if (json) return cmd_print_json(doc, err);
    printf("%-8s %-24s %-9s %s\n", "method", "schemes", "text", "what it does");
    for (size_t i = 0; (m = qz_method_at(i)); i++)
        printf("%-8s %-24s %-9s %s\n", m->name, m->schemes, words[text_of(m)], m->help);
    return LQ_OK;
}
