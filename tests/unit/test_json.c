/* tests/unit/test_json.c - what the gate lets through, what the getters say, canonical text. */
#include "base/json.h"
#include "base/json_write.h"
#include "tests/support/check.h"
#include "tests/support/guard.h"

#include <stdlib.h>
#include <unistd.h>

static lq_status parse(cJSON **j, const char *text, size_t n, unsigned flags, lq_err *err)
{
    guard_buf g = guard_copy(text, n);
    lq_status s = js_parse(j, (const char *)g.data, n, 1 << 20, flags, err);
    guard_free(&g);
    return s;
}

TEST(only_strict_json_gets_through)
{
    static const struct {
        const char *why, *text;
        size_t n; /* 0: strlen */
        bool ok;
    } t[] = {
        { "object", "{\"a\":[1,2.5,-0,1e3,1E-3,true,false,null,\"x\"]}", 0, true },
        { "blanks around", " \t\r\n{ \"a\" : [ ] , \"b\" : { } } \n", 0, true },
        { "a bare number", "0", 0, true },
        { "escapes", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u20ac\\ud83d\\ude00\"", 0, true },
        { "UTF-8", "\"\xe2\x82\xac\xf0\x9f\x98\x80\"", 0, true },
        { "nothing", "", 0, false },
        { "blanks only", "  ", 0, false },
        { "two values", "1 2", 0, false },
        { "trailing letter", "{}x", 0, false },
        { "trailing NUL", "{}\0", 3, false },
        { "NUL as a blank", "{\0}", 3, false },
        { "control character as a blank", "{\x01}", 0, false },
        { "byte order mark", "\xef\xbb\xbf{}", 0, false },
        { "leading zero", "01", 0, false },
        { "plus", "+1", 0, false },
        { "no digit after the point", "1.", 0, false },
        { "no digit before the point", ".5", 0, false },
        { "no digit in the exponent", "1e", 0, false },
        { "bare minus", "-", 0, false },
        { "hexadecimal", "0x10", 0, false },
        { "not a number", "NaN", 0, false },
        { "infinity", "-Infinity", 0, false },
        { "a number of 64 digits",
          "1000000000000000000000000000000000000000000000000000000000000000", 0, false },
        { "single quotes", "{'a':1}", 0, false },
        { "bare key", "{a:1}", 0, false },
        { "comment", "{}//", 0, false },
        { "trailing comma in an array", "[1,]", 0, false },
        { "trailing comma in an object", "{\"a\":1,}", 0, false },
        { "no comma", "[1 2]", 0, false },
        { "no colon", "{\"a\" 1}", 0, false },
        { "wrong bracket", "[1}", 0, false },
        { "open array", "[1", 0, false },
        { "open object", "{\"a\":1", 0, false },
        { "open string", "\"abc", 0, false },
        { "half a word", "tru", 0, false },
        { "a raw newline in a string", "\"a\nb\"", 0, false },
        { "an unknown escape", "\"\\x41\"", 0, false },
        { "a NUL in a string", "\"a\\u0000b\"", 0, false },
        { "a lone high surrogate", "\"\\ud83d\"", 0, false },
        { "a lone low surrogate", "\"\\ude00\"", 0, false },
        { "two high surrogates", "\"\\ud83d\\ud83d\"", 0, false },
        { "a short escape", "\"\\u12", 0, false },
        { "overlong UTF-8", "\"\xc0\xaf\"", 0, false },
        { "a surrogate in UTF-8", "\"\xed\xa0\x80\"", 0, false },
        { "beyond Unicode", "\"\xf4\x90\x80\x80\"", 0, false },
        { "a cut sequence", "\"\xe2\x82", 0, false },
        { "a key twice", "{\"a\":1,\"a\":2}", 0, false },
        { "a key twice, once escaped", "{\"a\":1,\"\\u0061\":2}", 0, false },
        { "a key twice, deep", "[{\"b\":{\"a\":1,\"c\":2,\"a\":3}}]", 0, false },
        { "keys that differ in case", "{\"a\":1,\"A\":2}", 0, true },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        cJSON *j;
        lq_err err = { "" };
        size_t n = t[i].n ? t[i].n : strlen(t[i].text);
        lq_status s = parse(&j, t[i].text, n, JS_UNIQUE, &err);
        CHECK(s == (t[i].ok ? LQ_OK : LQ_EFORMAT), "%s: %s %s", t[i].why, lq_status_text(s),
              err.msg);
        CHECK((j != NULL) == t[i].ok && (t[i].ok || err.msg[0]), "%s: tree or message", t[i].why);
        cJSON_Delete(j);
    }
}

TEST(halves_of_surrogate_pairs_are_replaced_in_place)
{
    static const struct {
        const char *why, *text, *want;
    } cases[] = {
        { "a pair", "\"\\ud83d\\ude00\"", "\"\\ud83d\\ude00\"" },
        { "a high one", "\"a\\ud83d\"", "\"a\\ufffd\"" },
        { "a low one", "\"\\uDE00b\"", "\"\\ufffdb\"" },
        { "two high ones, then its low one", "\"\\ud83d\\ud83d\\ude00\"",
          "\"\\ufffd\\ud83d\\ude00\"" },
        { "a low one before a high one", "\"\\ude00\\ud83d\"", "\"\\ufffd\\ufffd\"" },
        { "a high one before another escape", "\"\\ud83d\\n\"", "\"\\ufffd\\n\"" },
        { "a backslash that is escaped", "\"\\\\ud83d\"", "\"\\\\ud83d\"" },
        { "another character", "\"\\ud7ff\\ue000\"", "\"\\ud7ff\\ue000\"" },
        { "cut short", "\"\\ud83", "\"\\ud83" },
        { "cut behind the backslash", "\"\\", "\"\\" },
        { "none", "{\"a\": 1}", "{\"a\": 1}" },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        const size_t n = strlen(cases[i].text);
        char *exact = malloc(n); /* so that the sanitizers see a read past its end */
        memcpy(exact, cases[i].text, n);
        js_mend(exact, n);
        CHECK(memcmp(exact, cases[i].want, n) == 0, "%s: %.*s", cases[i].why, (int)n, exact);
        free(exact);
    }
}

TEST(text_of_python_is_read_as_python_reads_it)
{
    static const struct {
        const char *text, *twice, *canonical; /* NULL: refused */
    } t[] = {
        { "{\"a\":1,\"b\":2}", "", "{\"a\":1,\"b\":2}" },
        { "{\"a\":1,\"b\":2,\"a\":3,\"\\u0061\":4}", "a", "{\"a\":4,\"b\":2}" },
        { "[{\"x\":{\"k\":[1],\"k\":{\"k\":1,\"k\":2}}}]", "k", "[{\"x\":{\"k\":{\"k\":2}}}]" },
        { "{\"a\":NaN}", "", "{\"a\":\"NaN\"}" },
        { "{\"a\":\"NaN, \\\"Infinity\"}", "", "{\"a\":\"NaN, \\\"Infinity\"}" },
        { "{\"a\":Infinit}", "", NULL },
        { "{\"a\":--Infinity}", "", NULL },
        { "", "", NULL },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        cJSON *j;
        char twice[64];
        lq_err err = { "" };
        lq_buf b = { .n = 0 };
        const size_t n = strlen(t[i].text);
        lq_status s = js_parse_python(&j, twice, t[i].text, n, 1 << 20, &err);
        CHECK(!s == (t[i].canonical != NULL) && strcmp(twice, t[i].twice) == 0, "%s: '%s' %s",
              t[i].text, twice, err.msg);
        if (!s && !js_canonical(&b, j, &err))
            CHECK(b.n == strlen(t[i].canonical) && !memcmp(b.p, t[i].canonical, b.n), "%s: %.*s",
                  t[i].text, (int)b.n, b.p);
        lq_buf_free(&b);
        cJSON_Delete(j);
    }
    cJSON *j;
    char twice[64];
    double v = 0;
    lq_err err = { "" };
    CHECK(!js_parse_python(&j, twice, "[-Infinity]", 11, 100, &err) && isinf(j->child->valuedouble),
          "%s", err.msg);
    cJSON_Delete(j);
    CHECK(!js_parse_python(&j, twice, "{\"a\":Infinity}", 14, 100, &err), "%s", err.msg);
    CHECK(js_f64(j, "a", true, 0, 1e300, &v, &err) == LQ_EVALUE,
          "infinity is no number of a config");
    cJSON_Delete(j);
}

TEST(depth_and_size_are_bounded)
{
    char deep[2 * (JS_DEPTH + 1) + 1];
    for (int d = JS_DEPTH; d <= JS_DEPTH + 1; d++) {
        memset(deep, '[', (size_t)d);
        memset(deep + d, ']', (size_t)d);
        cJSON *j;
        lq_err err = { "" };
        lq_status s = parse(&j, deep, 2 * (size_t)d, 0, &err);
        CHECK(s == (d == JS_DEPTH ? LQ_OK : LQ_EFORMAT), "%d levels: %s", d, err.msg);
        cJSON_Delete(j);
    }
    cJSON *j;
    CHECK(js_parse(&j, "[1,2]", 5, 4, 0, NULL) == LQ_EFORMAT && !j, "size");
}

TEST(many_keys_take_no_quadratic_time)
{
    enum { KEYS = 200000 }; /* 2e10 comparisons if quadratic: minutes */
    lq_buf b = { 0 };
    cJSON *j;
    lq_err err = { "" };
    lq_buf_puts(&b, "{");
    for (int i = 0; i < KEYS; i++) {
        lq_buf_puts(&b, i ? ",\"" : "\"");
        js_put_i64(&b, (i * INT64_C(7919)) % KEYS);
        lq_buf_puts(&b, "\":0");
    }
    lq_buf_puts(&b, "}");
    CHECK(!js_parse(&j, b.p, b.n, b.n, JS_UNIQUE, &err), "%s", err.msg);
    cJSON_Delete(j);
    free(b.p);
}

TEST(getters_say_what_they_expected)
{
    cJSON *j;
    const char *text =
        "{\"i\":7,\"f\":1.5,\"s\":\"x\",\"n\":null,\"b\":true,\"big\":9007199254740993,"
        "\"inf\":1e999}";
    CHECK(!js_parse(&j, text, strlen(text), 1000, 0, NULL), "parse");
    int64_t i = 3;
    double f = 3;
    bool b = false;
    const char *s = "d";
    lq_err err = { "" };
    CHECK(!js_i64(j, "i", true, 0, 9, &i, &err) && i == 7, "%s", err.msg);
    CHECK(!js_i64(j, "none", false, 0, 9, &i, &err) && i == 7, "absent");
    CHECK(!js_i64(j, "n", false, 0, 9, &i, &err) && i == 7, "null");
    CHECK(js_i64(j, "n", true, 0, 9, &i, &err) == LQ_EVALUE, "null is not there");
    CHECK(!strcmp(err.msg, "n: expected an integer 0..9, found nothing"), "%s", err.msg);
    CHECK(js_i64(j, "i", true, 8, 9, &i, &err) == LQ_EVALUE, "range");
    CHECK(!strcmp(err.msg, "i: expected an integer 8..9, found 7"), "%s", err.msg);
    CHECK(js_i64(j, "f", false, 0, 9, &i, &err) == LQ_EVALUE, "not whole");
    CHECK(js_i64(j, "s", false, 0, 9, &i, &err) == LQ_EVALUE, "a string");
    CHECK(js_i64(j, "big", false, 0, INT64_MAX, &i, &err) == LQ_EVALUE, "beyond 2^53");
    CHECK(!js_f64(j, "f", true, 1, 2, &f, &err) && f > 1.4 && f < 1.6, "%s", err.msg);
    CHECK(js_f64(j, "inf", true, 0, 1e300, &f, &err) == LQ_EVALUE, "infinity");
    CHECK(js_f64(j, "b", true, 0, 1, &f, &err) == LQ_EVALUE, "a bool is no number");
    CHECK(!js_bool(j, "b", true, &b, &err) && b, "%s", err.msg);
    CHECK(js_bool(j, "i", true, &b, &err) == LQ_EVALUE, "%s", err.msg);
    CHECK(!js_str(j, "s", true, &s, &err) && !strcmp(s, "x"), "%s", err.msg);
    CHECK(js_str(j, "i", true, &s, &err) == LQ_EVALUE, "%s", err.msg);
    CHECK(js_i64(NULL, "i", true, 0, 9, &i, &err) == LQ_EVALUE, "no object");
    cJSON_Delete(j);
}

TEST(canonical_text_is_sorted_and_reads_back_to_the_bit)
{
    static const struct {
        const char *in, *out;
    } t[] = {
        { " { \"b\" : 1 , \"a\" : [ 1.0 , 2.5 , 1e2 ] } ", "{\"a\":[1,2.5,100],\"b\":1}" },
        { "{\"Z\":1,\"a\":2,\"\xc3\xa9\":3}", "{\"Z\":1,\"a\":2,\"\xc3\xa9\":3}" },
        { "[0.1,1e-6,1e300,-0.0,0]", "[0.1,1e-06,1e+300,-0,0]" },
        { "[9007199254740991,3.0517578125e-05]", "[9007199254740991,3.0517578125e-05]" },
        { "\"\\u0001\\n\\\"\\\\\\/\\u00e9\"", "\"\\u0001\\n\\\"\\\\/\xc3\xa9\"" },
        { "\"\\u007f\\b\\f\\r\\t\\u001f\"", "\"\x7f\\b\\f\\r\\t\\u001f\"" },
        { "[true,false,null,{},[]]", "[true,false,null,{},[]]" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        cJSON *j, *back;
        lq_buf b = { 0 }, again = { 0 };
        lq_err err = { "" };
        lq_status s = js_parse(&j, t[i].in, strlen(t[i].in), 1000, 0, &err);
        if (!s) s = js_canonical(&b, j, &err);
        CHECK(!s && b.n == strlen(t[i].out) && !memcmp(b.p, t[i].out, b.n), "%s: %.*s %s", t[i].in,
              (int)b.n, b.p, err.msg);
        CHECK(!js_parse(&back, b.p, b.n, 1000, 0, &err) && !js_canonical(&again, back, &err) &&
                  again.n == b.n && !memcmp(again.p, b.p, b.n),
              "%s: canonical text is not its own canonical text", t[i].in);
        cJSON_Delete(j);
        cJSON_Delete(back);
        free(b.p);
        free(again.p);
    }
    for (int i = 0; i < 2000; i++) { /* arbitrary doubles */
        uint64_t bits = (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
        double d;
        memcpy(&d, &bits, sizeof d);
        if (!isfinite(d)) continue;
        cJSON *j = cJSON_CreateNumber(d), *back = NULL;
        lq_buf b = { 0 };
        CHECK(!js_canonical(&b, j, NULL) && !js_parse(&back, b.p, b.n, 99, 0, NULL) &&
                  !memcmp(&back->valuedouble, &d, sizeof d),
              "%.17g", d);
        cJSON_Delete(j);
        cJSON_Delete(back);
        free(b.p);
    }
}

TEST(bytes_that_are_no_utf8_are_replaced)
{
    static const char s[] = "a\xe2\x82\"\xff\xc3\xa9";
    lq_buf b = { 0 };
    jw w = { 0 };
    js_put_str(&b, s);
    lq_buf_add(&b, "", 1);
    CHECK(strcmp(b.p, "\"a\ufffd\ufffd\\\"\ufffd\xc3\xa9\"") == 0, "each byte: %s", b.p);
    jw_cstr(&w, s);
    lq_buf_add(&w.b, "", 1);
    CHECK(strcmp(w.b.p, "\"a\ufffd\\\"\ufffd\xc3\xa9\"") == 0, "each subpart: %s", w.b.p);
    lq_buf_free(&b);
    jw_free(&w);
}

TEST(canonical_text_refuses_what_json_cannot_say)
{
    lq_buf b = { 0 };
    cJSON *j = cJSON_CreateNumber((double)NAN), *o = cJSON_CreateObject();
    CHECK(js_canonical(&b, j, NULL) == LQ_EVALUE, "NaN");
    cJSON_AddNumberToObject(o, "a", 1);
    cJSON_AddNumberToObject(o, "a", 2);
    CHECK(js_canonical(&b, o, NULL) != LQ_OK, "a key twice");
    cJSON_Delete(j);
    cJSON_Delete(o);
    free(b.p);
}

TEST(a_member_is_found_with_its_own_spelling)
{
    static const struct {
        const char *why, *text, *want;
    } t[] = {
        { "a number", "{\"a\":9007199254740993}", "9007199254740993" },
        { "blanks around", " { \"b\" : 1 , \"a\" :\t1.50 } ", "1.50" },
        { "an object with the name inside", "{\"x\":{\"a\":1},\"a\":{\"a\":[2, {}]} }",
          "{\"a\":[2, {}]}" },
        { "brackets and quotes in strings", "{\"x\":\"}\\\"a\\\\\",\"a\":\"],\\\"\"}",
          "\"],\\\"\"" },
        { "a string of that text", "{\"x\":\"a\",\"y\":[\"a\"],\"a\":true}", "true" },
        { "a longer name", "{\"aa\":1,\"a\":[]}", "[]" },
        { "another spelling of the name", "{\"\\u0061\":1}", NULL },
        { "only deeper", "{\"x\":[{\"a\":1}]}", NULL },
        { "nothing", "{}", NULL },
        { "no object", "[\"a\"]", NULL },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        cJSON *doc = NULL;
        size_t len = 0, n = strlen(t[i].text);
        char *exact = malloc(n); /* no NUL behind it */
        memcpy(exact, t[i].text, n);
        CHECK(!js_parse(&doc, exact, n, n, 0, NULL), "%s: no JSON", t[i].why);
        const char *got = js_member_source(exact, n, "a", &len);
        CHECK(!got == !t[i].want &&
                  (!got || (len == strlen(t[i].want) && !memcmp(got, t[i].want, len))),
              "%s: found '%.*s'", t[i].why, got ? (int)len : 0, got ? got : "");
        cJSON_Delete(doc);
        free(exact);
    }
}

TEST(what_a_tree_takes_is_told_before_it_is_made)
{
    /* nodes and strings of up to 23 bytes with their end, as malloc rounds them */
    static const char text[] = "{\"a\": [1, true, \"x\\u0041z\"]}", bad[] = "[\"a\\u0000b\"]",
                      number[] = "[1111111111111111111111111111111111"
                                 "111111111111111111111111111111]";
    size_t bytes = 0;
    lq_err err = { "" };
    CHECK(!js_measure(&bytes, text, strlen(text), &err), "%s", err.msg);
    CHECK(bytes == 5 * ((sizeof(cJSON) + 8 + 15) & ~(size_t)15) + 2 * 32, "%zu", bytes);
    CHECK(js_measure(&bytes, "[1,]", 4, &err) == LQ_EFORMAT, "not JSON");
    CHECK(js_measure(&bytes, bad, strlen(bad), &err) == LQ_EFORMAT && strstr(err.msg, "U+0000"),
          "%s", err.msg);
    CHECK(js_measure(&bytes, number, strlen(number), &err) == LQ_EFORMAT &&
              strstr(err.msg, "63 characters at byte 1, found 64"),
          "%s", err.msg);
}

TEST(a_file_is_named_in_the_message)
{
    char path[] = "/tmp/llmq-json-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, "{]", 2) == 2, "write");
    close(fd);
    cJSON *j;
    lq_err err = { "" };
    CHECK(js_parse_file(&j, path, 100, 0, &err) == LQ_EFORMAT, "%s", err.msg);
    CHECK(!strncmp(err.msg, path, strlen(path)) && strstr(err.msg, "byte 1"), "%s", err.msg);
    unlink(path);
    CHECK(js_parse_file(&j, path, 100, 0, &err) == LQ_ENOENT, "%s", err.msg);
}

int main(int argc, char **argv)
{
    RUN(only_strict_json_gets_through);
    RUN(halves_of_surrogate_pairs_are_replaced_in_place);
    RUN(text_of_python_is_read_as_python_reads_it);
    RUN(depth_and_size_are_bounded);
    RUN(many_keys_take_no_quadratic_time);
    RUN(getters_say_what_they_expected);
    RUN(canonical_text_is_sorted_and_reads_back_to_the_bit);
    RUN(bytes_that_are_no_utf8_are_replaced);
    RUN(canonical_text_refuses_what_json_cannot_say);
    RUN(a_member_is_found_with_its_own_spelling);
    RUN(what_a_tree_takes_is_told_before_it_is_made);
    RUN(a_file_is_named_in_the_message);
    return check_end();
}
