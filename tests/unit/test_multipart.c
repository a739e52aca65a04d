/* tests/unit/test_multipart.c - forms: what clients send, cut at every byte, and what is refused. */
#include "runtime/api/multipart.h"
#include "tests/support/check.h"

static const char type[] = "multipart/form-data; boundary=\"a=b c\"";
static const char body[] =
    "--a=b c\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
    "--a=b c\r\nContent-Type: application/octet-stream\r\n"
    "content-disposition: form-data; name=\"file\"; filename=\"x\\\"y.jsonl\"\r\n\r\n"
    "{}\r\n--a=b\r\n{}\n\r\n"
    "--a=b c\r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n--a=b c--\r\n";

TEST(parts_come_as_they_were_sent)
{
    static const struct {
        const char *name, *file, *data;
    } want[] = { { "purpose", "", "batch" },
                 { "file", "x\"y.jsonl", "{}\r\n--a=b\r\n{}\n" },
                 { "empty", "", "" } };
    multipart m;
    form_part p;
    lq_err err = { "" };
    bool more;
    CHECK(!multipart_open(&m, type, body, sizeof body - 1, &err), "%s", err.msg);
    for (size_t i = 0; i < LQ_COUNT(want); i++) {
        CHECK(!multipart_next(&m, &p, &more, &err) && more, "part %zu: %s", i, err.msg);
        CHECK(!strcmp(p.name, want[i].name) && !strcmp(p.file, want[i].file), "%zu: '%s' '%s'", i,
              p.name, p.file);
        CHECK(p.n == strlen(want[i].data) && !memcmp(p.data, want[i].data, p.n), "%zu: %zu bytes",
              i, p.n);
    }
    CHECK(!multipart_next(&m, &p, &more, &err) && !more, "the end");
}

TEST(a_form_that_is_cut_anywhere_is_refused)
{
    for (size_t n = 0; n < sizeof body - 5; n++) { /* without the last "--\r\n" the end is open */
        multipart m;
        form_part p;
        lq_err err = { "" };
        bool more = true;
        lq_status s = multipart_open(&m, type, body, n, &err);
        while (!s && !(s = multipart_next(&m, &p, &more, &err)) && more)
            ;
        CHECK(s == LQ_EFORMAT && err.msg[0], "%zu bytes: taken", n);
    }
}

TEST(what_is_no_form_is_refused)
{
    static const struct {
        const char *why, *type, *body;
    } cases[] = {
        { "no type", NULL, "--x\r\n" },
        { "no boundary", "multipart/form-data", "--x\r\n" },
        { "an empty boundary", "multipart/form-data; boundary=", "--\r\n" },
        { "a long boundary",
          "multipart/form-data; boundary="
          "0123456789012345678901234567890123456789012345678901234567890123456789x",
          "--" },
        { "another boundary", "multipart/form-data; boundary=y", "--x\r\n" },
        { "a part without a name", "multipart/form-data; boundary=x", "--x\r\n\r\na\r\n--x--" },
        { "something behind the boundary", "multipart/form-data; boundary=x",
          "--xy\r\nContent-Disposition: form-data; name=a\r\n\r\na\r\n--x--" },
    };
    for (size_t i = 0; i < LQ_COUNT(cases); i++) {
        multipart m;
        form_part p;
        lq_err err = { "" };
        bool more = true;
        lq_status s = multipart_open(&m, cases[i].type, cases[i].body, strlen(cases[i].body), &err);
        while (!s && !(s = multipart_next(&m, &p, &more, &err)) && more)
            ;
        CHECK(s == LQ_EFORMAT && err.msg[0], "%s: taken", cases[i].why);
    }
}

int main(int argc, char **argv)
{
    RUN(parts_come_as_they_were_sent);
    RUN(a_form_that_is_cut_anywhere_is_refused);
    RUN(what_is_no_form_is_refused);
    return check_end();
}
