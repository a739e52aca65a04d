/* tests/unit/test_thought.c - when the budget of a thought is spent (runtime/engine/thought.h). */
#include "runtime/engine/thought.h"
#include "tests/support/check.h"

/* Ids of letters are their codes; those that close "</t>" are 900 and 901. */
static void write(thought_watch *t, const char *text, int64_t *outputs)
{
    for (const char *p = text; *p; p++)
        thought_add(t, *p, p, 1, ++*outputs);
}

static thought_watch begin(int64_t budget, bool begun)
{
    thought_watch t;
    const thought_limit l = { .budget = budget,
                              .begun = begun,
                              .open = "<t>",
                              .close = "</t>",
                              .ids = { 900, 901 },
                              .n_ids = 2 };
    thought_begin(&t, &l);
    return t;
}

TEST(the_ids_come_when_the_budget_is_spent)
{
    for (int begun = 0; begun < 2; begun++) {
        thought_watch t = begin(3, begun);
        int64_t n = 0;
        if (!begun) write(&t, "\n <t>", &n);
        write(&t, "ab", &n);
        CHECK(thought_next(&t, n) == -1, "two of three");
        write(&t, "c", &n);
        CHECK(thought_next(&t, n) == 900, "found %d", thought_next(&t, n));
        thought_add(&t, 900, "</", 2, ++n);
        CHECK(thought_next(&t, n) == 901, "found %d", thought_next(&t, n));
        thought_add(&t, 901, "t>", 2, ++n);
        CHECK(thought_next(&t, n) == -1 && !thought_watches(&t), "it is closed");
    }
}

TEST(no_thought_is_closed_that_is_none_or_over)
{
    int64_t n = 0;
    thought_watch t = begin(1, false);
    write(&t, "<b>bold", &n);
    CHECK(!thought_watches(&t), "an answer");
    t = begin(4, true);
    n = 0;
    write(&t, "</t>and more", &n);
    CHECK(!thought_watches(&t), "closed in time");
    t = begin(-1, true);
    CHECK(!thought_watches(&t), "no budget");
}

/* What a grammar postpones comes later, from its first id on. */
TEST(another_id_between_begins_again)
{
    thought_watch t = begin(0, true);
    int64_t n = 0;
    CHECK(thought_next(&t, 0) == 900, "at once");
    thought_add(&t, 900, "</", 2, ++n);
    thought_add(&t, 'x', "x", 1, ++n);
    CHECK(thought_next(&t, n) == 900, "found %d", thought_next(&t, n));
}

int main(int argc, char **argv)
{
    RUN(the_ids_come_when_the_budget_is_spent);
    RUN(no_thought_is_closed_that_is_none_or_over);
    RUN(another_id_between_begins_again);
    return check_end();
}
