/* tests/unit/test_chat_form.c - forms of answers out of 70 published chat templates.
 *
 * tests/golden/templates/published.tar.xz holds those of llama.cpp (models/templates, MIT), forms.txt the line of form_text for
 * each, checked by eye against what the template renders. With LLMQ_PRINT set the lines are
 * printed. */
#include "base/json.h"
#include "runtime/chat/chat_form.h"
#include "runtime/chat/tmpl.h"
#include "tests/support/check.h"
#include "tests/support/published.h"

#include <stdlib.h>

static char *golden; /* of forms.txt */
static int derived, refused, generic;

/* The golden lines of a template: NAME: FLAGS, then four blanks and the marks. */
static bool is_golden(const char *lines)
{
    const char *at = golden ? strstr(golden, lines) : NULL;
    return at && (at == golden || at[-1] == '\n');
}

static void look(const char *name, const tmpl_template *t, const cJSON *tokens)
{
    char marks[4096], lines[5000];
    chat_form f;
    lq_err why = { "" };
    CHECK(!form_derive(&f, t, tokens, &why), "%s: %s", name, why.msg);
    form_text(marks, sizeof marks, &f);
    snprintf(lines, sizeof lines, "%s: %s%s%s%s%s%s%s%s\n    %s\n", name, f.name,
             f.parallel ? ", several" : "", f.object ? ", an object" : "",
             f.lone_open ? ", a single one without the end" : "",
             f.text_arguments ? ", arguments as text" : "", f.shows_tools ? "" : ", shows no tools",
             f.args == FORM_NO_CALLS ? ", " : "", f.args == FORM_NO_CALLS ? why.msg : "", marks);
    derived += f.args != FORM_NO_CALLS;
    generic += f.args == FORM_NO_CALLS && strcmp(why.msg, "it knows no tools") == 0;
    refused += f.args == FORM_NO_CALLS && strcmp(why.msg, "it knows no tools") != 0;
    if (getenv("LLMQ_PRINT")) fputs(lines, stdout);
    CHECK(is_golden(lines), "not in forms.txt:\n%s", lines);
}

TEST(every_published_template_gives_its_form)
{
    golden = published_file("tests/golden/templates/forms.txt");
    if (!published_each(look)) {
        CHECK_SKIP("tar or xz is not there: the published templates are not read");
    } else {
        CHECK(derived == 65 && generic == 4 && refused == 1, "%d derived, %d generic, %d refused",
              derived, generic, refused);
    }
    free(golden);
}

TEST(known_formats_by_name)
{
    chat_form f = { 0 };
    lq_err err;
    CHECK(!form_named(&f, "hermes", &err), "hermes");
    CHECK(f.object && !strcmp(f.key_name, "name") && !strcmp(f.key_args, "arguments"), "%s %s",
          f.key_name, f.key_args);
    CHECK(!form_named(&f, "llama3_json", &err) && !strcmp(f.key_args, "parameters"), "llama3_json");
    CHECK(!form_named(&f, "glm45", &err) && !f.object && f.args == FORM_PARAMS, "glm45");
    CHECK(form_named(&f, "nobody", &err) == LQ_EVALUE && strstr(err.msg, "hermes, llama3_json"),
          "%s", err.msg);
}

int main(int argc, char **argv)
{
    RUN(every_published_template_gives_its_form);
    RUN(known_formats_by_name);
    return check_end();
}
