/* runtime/chat/tmpl_tests.c - Jinja2's tests: what follows `is`. */
#include "runtime/chat/tmpl_int.h"

#define KIND_TEST(name, cond)                              \
    static tv is_##name(tp_run *r, tv v, const tp_args *a) \
    {                                                      \
        (void)r, (void)a;                                  \
        return tv_bool(cond);                              \
    }
KIND_TEST(defined, v.k != TV_UNDEF)
KIND_TEST(undefined, v.k == TV_UNDEF)
KIND_TEST(none, v.k == TV_NONE)
KIND_TEST(boolean, v.k == TV_BOOL)
KIND_TEST(true, v.k == TV_BOOL && v.u.b)
KIND_TEST(false, v.k == TV_BOOL && !v.u.b)
KIND_TEST(integer, v.k == TV_INT || v.k == TV_BIG)
KIND_TEST(float, v.k == TV_FLOAT)
KIND_TEST(number, tv_is_num(v) || v.k == TV_BIG)
KIND_TEST(string, v.k == TV_STR)
KIND_TEST(mapping, v.k == TV_DICT)
KIND_TEST(iterable,
          v.k == TV_STR || tv_is_list(v) || v.k == TV_DICT || v.k == TV_LOOP || v.k == TV_UNDEF)
KIND_TEST(sequence, v.k == TV_STR || v.k == TV_LIST || v.k == TV_TUPLE || v.k == TV_RANGE ||
                        v.k == TV_DICT || v.k == TV_UNDEF)
KIND_TEST(escaped, v.k == TV_STR && v.safe)
KIND_TEST(callable, v.k == TV_CALL || v.k == TV_MACRO || v.k == TV_LOOP || v.k == TV_UNDEF)

static tv operand(tp_run *r, const tp_args *a)
{
    if (a->n < 1) tp_fail(&r->base, LQ_EVALUE, "a test without its operand");
    return a->v[0];
}

#define ORDER_TEST(name, cond)                             \
    static tv is_##name(tp_run *r, tv v, const tp_args *a) \
    {                                                      \
        tv o = operand(r, a);                              \
        return tv_bool(cond);                              \
    }
ORDER_TEST(eq, tv_equal(r, v, o))
ORDER_TEST(ne, !tv_equal(r, v, o))
ORDER_TEST(lt, tv_compare(r, v, o, "<") < 0)
ORDER_TEST(le, tv_compare(r, v, o, "<=") <= 0)
ORDER_TEST(gt, tv_compare(r, v, o, ">") > 0)
ORDER_TEST(ge, tv_compare(r, v, o, ">=") >= 0)
ORDER_TEST(in, tv_contains(r, o, v))
ORDER_TEST(sameas, v.k == o.k && (v.k == TV_LIST || v.k == TV_DICT ? v.u.list == o.u.list
                                                                   : tv_equal(r, v, o)))

static int64_t modulo(tp_run *r, tv v, int64_t m)
{
    int64_t i = tp_need_int(r, v, "divisibleby");
    if (m == 0) tp_fail(&r->base, LQ_EVALUE, "integer modulo by zero");
    return m == -1 ? 0 : i % m;
}
static tv is_even(tp_run *r, tv v, const tp_args *a)
{
    return (void)a, tv_bool(modulo(r, v, 2) == 0);
}
static tv is_odd(tp_run *r, tv v, const tp_args *a)
{
    return (void)a, tv_bool(modulo(r, v, 2) != 0);
}
static tv is_divisibleby(tp_run *r, tv v, const tp_args *a)
{
    return tv_bool(modulo(r, v, tp_need_int(r, operand(r, a), "divisibleby")) == 0);
}
static tv str_is(tp_run *r, tv v, const char *method)
{
    tv s = tv_to_str(r, v);
    return tp_method(s, method, strlen(method))->f(r, s, &(tp_args){ 0 });
}
static tv is_lower(tp_run *r, tv v, const tp_args *a) { return (void)a, str_is(r, v, "islower"); }
static tv is_upper(tp_run *r, tv v, const tp_args *a) { return (void)a, str_is(r, v, "isupper"); }
static tv is_filter(tp_run *r, tv v, const tp_args *a)
{
    return (void)r, (void)a, tv_bool(v.k == TV_STR && tp_filter(v.u.s.p, v.u.s.n));
}
static tv is_test(tp_run *r, tv v, const tp_args *a)
{
    return (void)r, (void)a, tv_bool(v.k == TV_STR && tp_test(v.u.s.p, v.u.s.n));
}

static const tp_row tests[] = {
    { "boolean", is_boolean, 0, false },
    { "callable", is_callable, 0, false },
    { "defined", is_defined, 0, false },
    { "divisibleby", is_divisibleby, 1, false },
    { "eq", is_eq, 1, false },
    { "equalto", is_eq, 1, false },
    { "escaped", is_escaped, 0, false },
    { "even", is_even, 0, false },
    { "false", is_false, 0, false },
    { "filter", is_filter, 0, false },
    { "float", is_float, 0, false },
    { "ge", is_ge, 1, false },
    { "greaterthan", is_gt, 1, false },
    { "gt", is_gt, 1, false },
    { "in", is_in, 1, false },
    { "integer", is_integer, 0, false },
    { "iterable", is_iterable, 0, false },
    { "le", is_le, 1, false },
    { "lessthan", is_lt, 1, false },
    { "lower", is_lower, 0, false },
    { "lt", is_lt, 1, false },
    { "mapping", is_mapping, 0, false },
    { "ne", is_ne, 1, false },
    { "none", is_none, 0, false },
    { "number", is_number, 0, false },
    { "odd", is_odd, 0, false },
    { "sameas", is_sameas, 1, false },
    { "sequence", is_sequence, 0, false },
    { "string", is_string, 0, false },
    { "test", is_test, 0, false },
    { "true", is_true, 0, false },
    { "undefined", is_undefined, 0, false },
    { "upper", is_upper, 0, false },
    { "==", is_eq, 1, false },
    { "!=", is_ne, 1, false },
    { "<", is_lt, 1, false },
    { "<=", is_le, 1, false },
    { ">", is_gt, 1, false },
    { ">=", is_ge, 1, false },
};

const tp_row *tp_test(const char *name, size_t n)
{
    return tp_find_row(tests, LQ_COUNT(tests), name, n);
}
