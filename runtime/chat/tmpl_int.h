/* runtime/chat/tmpl_int.h - what the template engine's own files share: values, tree, context.
 *
 * A parse and a rendering each take all their memory from one arena and hold nothing else; so an
 * error leaves by longjmp to the entry point, which frees the arena, and the code between needs
 * neither checks nor clean-up. */
#ifndef LLMQ_RUNTIME_CHAT_TMPL_INT_H
#define LLMQ_RUNTIME_CHAT_TMPL_INT_H

#include "runtime/chat/tmpl.h"
#include "runtime/limits.h"

#include <setjmp.h>

/* ---- arena, errors ---- */
typedef struct {
    lq_arena arena;
    size_t limit; /* bytes */
    jmp_buf out;
    lq_status status;
    lq_err *err;
    int line; /* of the statement or token at hand */
} tp_base;
void *tp_take(tp_base *b, size_t n); /* zeroed; never NULL */
char *tp_copy(tp_base *b, const char *s, size_t n);
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
_Noreturn void
tp_fail(tp_base *b, lq_status s, const char *fmt, ...);

/* ---- values ---- */
typedef enum {
    TV_UNDEF,
    TV_NONE,
    TV_BOOL,
    TV_INT,
    TV_BIG, /* a whole number beyond 64 bits: its digits, in u.s; not for arithmetic */
    TV_FLOAT,
    TV_STR,
    TV_LIST,
    TV_TUPLE,
    TV_RANGE,
    TV_GEN,    /* what map() and its kind give: may be walked once, has no length */
    TV_KEYS,   /* of a dict; walked, but never indexed */
    TV_VALUES, /* " */
    TV_ITEMS,  /* " */
    TV_DICT,
    TV_SPACE, /* namespace() */
    TV_LOOP,
    TV_MACRO,
    TV_CALL, /* a function of the environment, or a method bound to `self` */
} tv_kind;

typedef struct tv tv;
typedef struct tv_list tv_list;
typedef struct tv_dict tv_dict;
typedef struct tp_loop tp_loop;
typedef struct tp_macro tp_macro;
typedef struct tp_run tp_run;
typedef struct tp_args tp_args;
typedef tv (*tp_func)(tp_run *r, tv self, const tp_args *a);
typedef struct {
    const char *name;
    tp_func f;
    int max_args;    /* beside self; -1: any number */
    bool keeps_safe; /* what it makes of a safe text is safe */
} tp_row;

/* A string knows which of its bytes the template wrote (own), for they alone may spell a control
 * token. What is cut from a string or put together of strings keeps this byte by byte; what is
 * computed (JSON, changed case, numbers) counts as the user's. */
struct tv {
    tv_kind k;
    bool safe; /* STR: Markup, with which + escapes the other side */
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *p; /* UTF-8, not NUL-terminated, may hold NULs */
            size_t n;
            const uint8_t *own; /* NULL: no byte; tp_own_all: all; else own[i] for p[i] */
        } s;
        struct {
            const char *name; /* what was asked for */
            const char *of;   /* ATTR, ELEMENT: of what: "list object" */
            enum { UNDEF_VAR, UNDEF_ATTR, UNDEF_ELEMENT, UNDEF_HINT } how; /* HINT: name says it */
        } undef;
        tv_list *list;
        tv_dict *dict;
        tp_loop *loop;
        tp_macro *macro;
        struct {
            const tp_row *row;
            tv *self;
        } call;
    } u;
};
struct tv_list {
    tv *v;
    size_t n, cap;
    int64_t range[3]; /* RANGE: start, stop, step */
    bool group;       /* TUPLE: of groupby, with the attributes grouper and list */
};
typedef struct {
    tv key, value;
} tv_entry;
struct tv_dict {
    tv_entry *e; /* in order of insertion */
    size_t n, cap;
    uint32_t *index; /* hash -> entry + 1; NULL while the dict is small */
    size_t n_index;
};
struct tp_args {
    tv *v;
    size_t n;
    const char **names; /* of the named ones */
    tv *named;
    size_t n_named;
};

/* ---- the tree ---- */
typedef enum {
    /* expressions */
    TN_CONST,
    TN_NAME,
    TN_LIST,
    TN_TUPLE,
    TN_DICT,
    TN_ATTR,
    TN_ITEM,
    TN_SLICE,
    TN_CALL,
    TN_FILTER,
    TN_TEST,
    TN_NOT,
    TN_NEG,
    TN_POS,
    TN_BINARY,
    TN_COMPARE,
    TN_AND,
    TN_OR,
    TN_COND,
    TN_CONCAT,
    TN_BODY, /* the text of a filter block */
    /* statements */
    TS_BLOCK,
    TS_TEXT,
    TS_OUT,
    TS_IF,
    TS_FOR,
    TS_SET,
    TS_SET_BLOCK,
    TS_MACRO,
    TS_CALL,
    TS_FILTER,
    TS_WITH,
    TS_BREAK,
    TS_CONTINUE,
} tn_kind;

typedef enum {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
} tn_op;

enum { TP_USES_CALLER = 1, TP_USES_VARARGS = 2, TP_USES_KWARGS = 4 };

typedef struct tn tn;
struct tn {
    tn_kind k;
    tn_op op; /* TN_BINARY; on an operand of TN_COMPARE: the operator before it */
    int line;
    const char *name;  /* interned: NAME, ATTR; on an argument: its keyword or NULL */
    tv v;              /* CONST, TEXT */
    const tp_row *row; /* FILTER, TEST */
    bool negated;      /* TEST */
    bool recursive;    /* FOR */
    unsigned uses;     /* MACRO, CALL: TP_USES_... that its body names */
    int stars;         /* on an argument: 1 for *list, 2 for **dict */
    tn *a, *b, *c, *d;
    tn *kids, *next; /* members, arguments, statements; DICT: key, value, key, ... */
};

struct tmpl_template {
    tp_base base;
    tn *root;
    const char **names; /* interned */
    size_t n_names, cap_names;
};

/* ---- lexer (tmpl_lex.c) ---- */
typedef enum {
    TT_END,
    TT_TEXT,
    TT_VAR_BEGIN,
    TT_VAR_END,
    TT_BLOCK_BEGIN,
    TT_BLOCK_END,
    TT_NAME,
    TT_STR,
    TT_INT,
    TT_FLOAT,
    TT_OP,
} tt_kind;
typedef struct {
    tt_kind k;
    int line;
    const char *p; /* NAME, OP: its text; TEXT, STR: the value */
    size_t n;
    int64_t i;
    double f;
} tt;
/* All tokens of src[n], ended by TT_END. */
tt *tp_lex(tp_base *b, const char *src, size_t n, size_t *n_tokens);
tn *tp_parse(tmpl_template *t, const char *src, size_t n);

/* ---- rendering ---- */
typedef struct {
    char *p;
    uint8_t *own; /* as in tv, one per byte */
    size_t n, cap;
} tp_text; /* a text that grows in the arena */

typedef struct tp_frame tp_frame;
struct tp_frame {
    tp_frame *up;
    struct tp_var {
        const char *name;
        tv v;
    } * vars;
    size_t n, cap;
};
struct tp_loop {
    tv_list *items;
    size_t i;
    tv_list *changed; /* what loop.changed() saw last */
    const tn *def;
    tp_frame *frame; /* around it */
    int depth;
};
struct tp_macro {
    const tn *def; /* a = parameters with defaults, kids = body */
    tp_frame *frame;
    const char *name;
};
struct tp_run {
    tp_base base;
    const tmpl_template *t;
    tp_frame *frame, *globals;
    tp_text *out;
    tv body; /* for TN_BODY */
    int depth;
    int64_t steps;
};

void tp_charge(tp_run *r, size_t n); /* n more steps */
void tp_deeper(tp_run *r); /* one level more; the caller takes it from r->depth when it leaves */
_Noreturn void tp_no_value(tp_run *r, tv undef);             /* "'x' is undefined" */
void tp_add(tp_run *r, tp_text *t, const char *s, size_t n); /* as the user's */
void tp_add_str(tp_run *r, tp_text *t, tv s);                /* with what it knows */
void tp_puts(tp_run *r, tp_text *t, const char *s);

/* values (tmpl_value.c) */
static inline tv tv_none(void) { return (tv){ .k = TV_NONE }; }
static inline tv tv_bool(bool b) { return (tv){ .k = TV_BOOL, .u.b = b }; }
static inline tv tv_int(int64_t i) { return (tv){ .k = TV_INT, .u.i = i }; }
static inline tv tv_float(double f) { return (tv){ .k = TV_FLOAT, .u.f = f }; }
extern const uint8_t tp_own_all[1];
static inline tv tv_str(const char *p, size_t n)
{
    return (tv){ .k = TV_STR, .u.s = { p, n, NULL } };
}
static inline tv tv_own(const char *p, size_t n)
{
    return (tv){ .k = TV_STR, .u.s = { p, n, tp_own_all } };
}
static inline tv tv_text(const tp_text *t)
{
    return (tv){ .k = TV_STR, .u.s = { t->p ? t->p : "", t->n, t->own } };
}
tv tv_sub(tv s, size_t at, size_t n);     /* n bytes of s from `at` */
tv tv_derived(const tp_text *t, tv from); /* computed from `from`: own if all of that is */
bool tv_is_list(tv v);                    /* holds u.list: LIST, TUPLE, RANGE, ... */
tv tv_cstr(const char *s);
tv tv_undef(const char *name);
tv tv_nothing(const char *why);       /* undefined, for the reason given */
tv tv_new_list(tp_run *r, tv_kind k); /* LIST or TUPLE */
void tv_push(tp_run *r, tv list, tv v);
tv tv_new_dict(tp_run *r);
void tv_set(tp_run *r, tv dict, tv key, tv value);
const tv *tv_get(tp_run *r, tv dict, tv key); /* NULL: absent */
bool tv_true(tv v);
bool tv_is_num(tv v);             /* bool, int, float */
double tv_as_float(tv v);         /* of one of these */
bool tv_as_int(tv v, int64_t *i); /* of a bool or an int */
bool tv_equal(tp_run *r, tv a, tv b);
int tv_compare(tp_run *r, tv a, tv b, const char *op); /* <0, 0, >0; fails for what has no order */
bool tv_contains(tp_run *r, tv in, tv v);
const char *tv_type(tv v);    /* "str" */
const char *tv_type_of(tv v); /* "list object", as Jinja names it */
bool tv_printable(uint32_t cp);
/* The upper (or title) case of a letter where it is more than one; else NULL. */
const char *tp_long_case(uint32_t cp, bool title);
size_t tv_chars(tv s); /* code points of a string */
/* Bytes where code point i begins (i may be the length). */
size_t tv_char_at(tv s, size_t i);
int64_t tv_len(tp_run *r, tv v); /* fails where Python has no len() */
tv tv_iter(tp_run *r, tv v);     /* any iterable as a list */
tv tv_slice(tp_run *r, tv v, tv start, tv stop, tv step);
void tv_print(tp_run *r, tp_text *t, tv v); /* str() */
void tv_repr(tp_run *r, tp_text *t, tv v);
tv tv_to_str(tp_run *r, tv v);
typedef struct {
    bool ascii, sort;
    const char *indent; /* NULL: one line */
    size_t n_indent;
    tv item_sep, key_sep;
} tv_json_opts;
void tv_json(tp_run *r, tp_text *t, tv v, const tv_json_opts *o, int level);
void tv_print_float(tp_run *r, tp_text *t, double f);

/* evaluation (tmpl_eval.c) */
void tp_exec(tp_run *r, const tn *block);

/* operators (tmpl_ops.c) */
tv tp_attr(tp_run *r, tv v, const char *name, size_t n); /* v.name */
tv tp_item(tp_run *r, tv v, tv key);                     /* v[key] */
tv tp_binary(tp_run *r, tn_op op, tv a, tv b);
/* A filter, test, method or function. What methods of a safe text give is safe as well. */
tv tp_call_row(tp_run *r, const tp_row *row, tv self, const tp_args *a);

/* tables */
const tp_row *tp_filter(const char *name, size_t n);
const tp_row *tp_test(const char *name, size_t n);
const tp_row *tp_method(tv v, const char *name, size_t n);
extern const tp_row tp_globals[];
extern const size_t tp_n_globals;
/* tmpl_args.c */
const tp_row *tp_find_row(const tp_row *rows, size_t n_rows, const char *name, size_t n);
bool tp_is_unsafe(tv v, const char *name, size_t n); /* a method that would change v */
bool tp_is_decimal(uint32_t cp);                     /* a digit of any script */
int tp_digit_of(uint32_t cp);                        /* its value; -1: no decimal digit */
tv tp_escape(tp_run *r, tv v);                       /* HTML; a safe text stays */
/* The argument at place i or by name; *have false and none otherwise. */
bool tp_has(const tp_args *a, size_t i, const char *name, tv *v);
tv tp_arg(const tp_args *a, size_t i, const char *name, tv otherwise);
bool tp_flag(const tp_args *a, size_t i, const char *name, bool otherwise);
tv tp_need_str(tp_run *r, tv v, const char *what);
int64_t tp_need_int(tp_run *r, tv v, const char *what);
/* tmpl_format.c */
tv tp_format(tp_run *r, tv fmt, tv args);                 /* fmt % args */
tv tp_str_format(tp_run *r, tv fmt, const tp_args *args); /* fmt.format(...) */

#endif
