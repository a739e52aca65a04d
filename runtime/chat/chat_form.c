/* runtime/chat/chat_form.c - see chat_form.h: the known formats, and a form as a line of text. */
#include "runtime/chat/chat_form.h"

#include <stdio.h>

/* ---- known formats, under the names that users of vLLM and llama.cpp know ---- */

typedef struct {
    const char *name, *open, *head, *tail, *sep, *close;
    bool parallel;
    const char *p_open, *p_mid, *p_close, *p_sep;
    form_values values;
    const char *word; /* of a prompt with tools whose template shows no calls */
} row;

#define N "\x01"
#define ID "\x02"
#define INDEX "\x03"
#define JSON_CALL "{\"name\": \"" N "\", \"arguments\": "
#define XML_PARAMS "<parameter=", ">\n", "\n</parameter>\n", "", FORM_RAW_PY
#define GLM_PARAMS "<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n", "", FORM_RAW
#define JSON_ARGS NULL, NULL, NULL, NULL, FORM_RAW
#define PYTHON_PARAMS "", "=", "", ", ", FORM_PY

static const row rows[] = {
    { "hermes", "", "<tool_call>\n" JSON_CALL, "}\n</tool_call>", "\n", "", true, JSON_ARGS, NULL },
    { "llama3_json", "", "{\"name\": \"" N "\", \"parameters\": ", "}", "; ", "", true, JSON_ARGS,
      NULL },
    { "mistral", "[TOOL_CALLS]", "[" JSON_CALL, "}]", "", "", false, JSON_ARGS, NULL },
    { "mistral_args", "", "[TOOL_CALLS]" N "[ARGS]", "", "", "", true, JSON_ARGS, NULL },
    { "qwen3_coder", "", "<tool_call>\n<function=" N ">\n", "</function>\n</tool_call>", "\n", "",
      true, XML_PARAMS, NULL },
    { "qwen3_xml", "", "<tool_call>\n<function=" N ">\n", "</function>\n</tool_call>", "\n", "",
      true, XML_PARAMS, NULL },
    { "glm45", "", "<tool_call>" N "\n", "</tool_call>", "\n", "", true, GLM_PARAMS, NULL },
    { "glm47", "", "<tool_call>" N, "</tool_call>", "", "", true, "<arg_key>",
      "</arg_key><arg_value>", "</arg_value>", "", FORM_RAW, NULL },
    { "deepseek_v3", "<｜tool▁calls▁begin｜>",
      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" N "\n```json\n", "\n```<｜tool▁call▁end｜>",
      "\n", "<｜tool▁calls▁end｜>", true, JSON_ARGS, NULL },
    { "deepseek_v31", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>" N "<｜tool▁sep｜>",
      "<｜tool▁call▁end｜>", "", "<｜tool▁calls▁end｜>", true, JSON_ARGS, NULL },
    { "kimi_k2", "<|tool_calls_section_begin|>",
      "<|tool_call_begin|>functions." N ":" INDEX "<|tool_call_argument_begin|>",
      "<|tool_call_end|>", "", "<|tool_calls_section_end|>", true, JSON_ARGS,
      "tool_declare<|im_middle|>" },
    { "minimax_m2", "<minimax:tool_call>\n", "<invoke name=\"" N "\">\n", "</invoke>", "\n",
      "\n</minimax:tool_call>", true, "<parameter name=\"", "\">", "</parameter>\n", "", FORM_RAW,
      NULL },
    { "seed_oss", "", "<seed:tool_call>\n<function=" N ">\n", "</function>\n</seed:tool_call>",
      "\n", "", true, "<parameter=", ">", "</parameter>\n", "", FORM_RAW_PY, NULL },
    { "granite", "<|tool_call|>[", JSON_CALL, "}", ", ", "]", true, JSON_ARGS, "<|tool_call|>" },
    { "lfm2", "<|tool_call_start|>[", N "(", ")", ", ", "]<|tool_call_end|>", true, PYTHON_PARAMS,
      "List of tools: " },
    { "pythonic", "[", N "(", ")", ", ", "]", true, PYTHON_PARAMS, NULL },
    { "functionary", "", "<function=" N ">", "</function>", "", "", true, JSON_ARGS, NULL },
    { "openai", "", " to=functions." N "<|channel|>commentary json<|message|>", "", "", "", false,
      JSON_ARGS, NULL },
    { "harmony", "", " to=functions." N "<|channel|>commentary json<|message|>", "", "", "", false,
      JSON_ARGS, NULL }
};

static void put(form_mark to, const char *from) { snprintf(to, FORM_MARK, "%s", from ? from : ""); }

lq_status form_named(chat_form *f, const char *name, lq_err *err)
{
    char names[512] = "";
    for (size_t i = 0, at = 0; i < LQ_COUNT(rows); i++) {
        const row *r = &rows[i];
        at += (size_t)snprintf(names + at, sizeof names - at, "%s%s", i ? ", " : "", r->name);
        if (strcmp(r->name, name) != 0) continue;
        f->name = r->name;
        f->args = r->p_mid ? FORM_PARAMS : FORM_JSON;
        f->values = r->values;
        f->parallel = r->parallel;
        put(f->open, r->open);
        put(f->head, r->head);
        put(f->tail, r->tail);
        put(f->sep, r->sep);
        put(f->close, r->close);
        put(f->p_open, r->p_open);
        put(f->p_close, r->p_close);
        put(f->p_sep, r->p_sep);
        for (int k = 0; k < FORM_N_TYPES; k++)
            put(f->p_mid[k], r->p_mid);
        form_complete(f);
        return LQ_OK;
    }
    return lq_fail(err, LQ_EVALUE, "tool format: expected one of %s, found %.60s", names, name);
}

const char *form_row_of(const char *prompt)
{
    for (size_t i = 0; i < LQ_COUNT(rows); i++)
        if (rows[i].word && strstr(prompt, rows[i].word)) return rows[i].name;
    return NULL;
}

/* The JSON string that ends before `end`, whose closing quote is end[-1], of s. */
static bool key_before(form_mark to, const char *s, const char *end)
{
    const char *q = end - 1;
    while (q > s && q[-1] != '"')
        q--;
    if (q <= s || end - 1 - q >= FORM_MARK) return false;
    memcpy(to, q, (size_t)(end - 1 - q));
    to[end - 1 - q] = 0;
    return true;
}

/* `...{... "KEY": "` before the name, and `", ... "KEY": ` before the arguments: an object. */
void form_complete(chat_form *f)
{
    const char *name = strchr(f->head, FORM_NAME);
    const char *brace = strchr(f->head, '{'), *p = name;
    f->object = false;
    if (f->args != FORM_JSON || !name || !brace || brace > name || name[-1] != '"') return;
    for (p = name - 1; p > brace && (p[-1] == ' ' || p[-1] == ':'); p--) {
    }
    if (p == name - 1 || p[-1] != '"' || !key_before(f->key_name, f->head, p)) return;
    const char *end = f->head + strlen(f->head);
    while (end > name && (end[-1] == ' ' || end[-1] == ':' || end[-1] == '\n'))
        end--;
    f->object = end[-1] == '"' && end > name + 2 && key_before(f->key_args, name, end);
}

bool form_has(const chat_form *f, const char *text)
{
    const char *const marks[] = {
        f->open,        f->head,         f->tail,
        f->sep,         f->close,        f->p_open,
        f->p_close,     f->p_sep,        f->think_open,
        f->think_close, f->content_open, f->content_close,
        f->p_mid[0],    f->p_mid[1],     f->p_mid[2],
        f->p_mid[3],    f->p_mid[4],     f->values == FORM_GEMMA ? "<|\"|>" : ""
    };
    for (size_t i = 0; i < LQ_COUNT(marks); i++)
        if (strstr(marks[i], text)) return true;
    return f->header && strstr("<|start|><|channel|><|constrain|>" FORM_HEADER_END, text);
}

const char *form_skip(const char *mark)
{
    while (*mark == ' ' || *mark == '\n')
        mark++;
    return mark;
}

size_t form_begin_head(const chat_form *f)
{
    return strcspn(f->head, f->object ? "{" : "\x01\x02\x03");
}

void form_begin(form_mark to, const chat_form *f, bool first)
{
    const char *open = first ? form_skip(f->open) : "", *head = f->head;
    size_t n = form_begin_head(f), k = strlen(open);
    while (!k && n && form_skip(head) > head)
        head++, n--;
    n = k + n < FORM_MARK ? n : FORM_MARK - 1 - k;
    memcpy(to, open, k);
    memcpy(to + k, head, n);
    for (k += n; k && (to[k - 1] == ' ' || to[k - 1] == '\n');)
        k--;
    to[k] = 0;
}

/* ---- for people ---- */

static size_t show(char *out, size_t room, size_t at, const char *what, const char *mark)
{
    static const char *const holes[] = { "{name}", "{id}", "{n}", "{key}" };
    if (!mark[0] || at + 32 > room) return at;
    at += (size_t)snprintf(out + at, room - at, "%s%s ", at ? " | " : "", what);
    for (const char *p = mark; *p && at + 16 < room; p++) {
        if (*p >= FORM_NAME && *p <= FORM_KEY)
            at += (size_t)snprintf(out + at, room - at, "%s", holes[*p - 1]);
        else if (*p == '\n')
            at += (size_t)snprintf(out + at, room - at, "\\n");
        else
            out[at++] = *p;
    }
    out[at] = 0;
    return at;
}

void form_text(char *out, size_t room, const chat_form *f)
{
    static const char *const values[] = { "raw", "raw, python", "python", "gemma", "nested" };
    const struct {
        const char *what, *mark;
    } marks[] = { { "thought", f->think_open },
                  { "thought ends", f->think_close },
                  { "content", f->content_open },
                  { "content ends", f->content_close },
                  { "calls", f->open },
                  { "call", f->head },
                  { "arguments", f->args == FORM_JSON ? "JSON" : "" },
                  { "argument", f->p_open },
                  { "value", f->p_mid[FORM_STR] },
                  { "value ends", f->p_close },
                  { "between", f->p_sep },
                  { "values", f->args == FORM_PARAMS ? values[f->values] : "" },
                  { "call ends", f->tail },
                  { "next", f->sep },
                  { "calls end", f->close } };
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < LQ_COUNT(marks); i++)
        at = show(out, room, at, marks[i].what, marks[i].mark);
}
