/* runtime/api/api_store.h: who ends a response is one alone, in memory as in a folder that several servers share. */
#include "runtime/api/api_store.h"

#include "runtime/limits.h"
#include "tests/support/check.h"
#include "tests/support/temp_dir.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static const char id[] = "resp_1";

static lq_buf text(const char *s)
{
    lq_buf b = { 0 };
    lq_buf_puts(&b, s);
    return b;
}

static void put(api_store *s, const char *response, const char *items)
{
    lq_buf a = text(response), b = text(items);
    api_store_put(s, id, &a, &b, NULL);
    lq_buf_free(&a);
    lq_buf_free(&b);
}

static bool swap(api_store *s, const char *was, const char *response, const char *items)
{
    lq_buf a = text(was), b = text(response), c = text(items ? items : "");
    const bool ok = api_store_swap(s, id, &a, &b, items ? &c : NULL);
    lq_buf_free(&a);
    lq_buf_free(&b);
    lq_buf_free(&c);
    return ok;
}

static bool holds(api_store *s, const char *response, const char *items)
{
    lq_buf a = { 0 }, b = { 0 };
    const bool ok = api_store_get(s, id, &a, &b) && a.n == strlen(response) &&
                    b.n == strlen(items) && memcmp(a.p, response, a.n) == 0 &&
                    memcmp(b.p, items, b.n) == 0;
    lq_buf_free(&a);
    lq_buf_free(&b);
    return ok;
}

/* With a folder that is open twice. */
static void with_folder(void (*test)(api_store *one, api_store *other))
{
    char dir[TEMP_DIR];
    api_store *s[2];
    lq_err err;
    temp_dir_make(dir);
    for (int i = 0; i < 2; i++)
        CHECK(!api_store_open(&s[i], 4, dir, &err), "%s", err.msg);
    test(s[0], s[1]);
    for (int i = 0; i < 2; i++)
        api_store_close(s[i]);
    temp_dir_remove(dir);
}

static void with_stores(void (*test)(api_store *one, api_store *other))
{
    api_store *s;
    lq_err err;
    CHECK(!api_store_open(&s, 4, NULL, &err), "%s", err.msg);
    test(s, s);
    api_store_close(s);
    with_folder(test);
}

static void swaps(api_store *one, api_store *other)
{
    CHECK(!swap(one, "a", "b", "[1]"), "there is none");
    put(one, "a", "[]");
    CHECK(!swap(other, "b", "c", "[1]"), "it is another");
    CHECK(holds(one, "a", "[]"), "it stays");
    CHECK(swap(other, "a", "b", NULL) && holds(one, "b", "[]"), "its items stay");
    CHECK(swap(one, "b", "c", "[2]") && holds(other, "c", "[2]"), "its items change");
    CHECK(api_store_remove(other, id) && !swap(one, "c", "d", "[3]"), "it is gone");
    CHECK(!api_store_get(one, id, NULL, NULL), "it is not back");
}

TEST(what_is_kept_changes_where_it_is_what_was_expected) { with_stores(swaps); }

typedef struct {
    api_store *s;
    atomic_bool *go;
    atomic_int *won;
} racer;

static void *race(void *arg)
{
    racer *r = arg;
    while (!atomic_load(r->go))
        sched_yield();
    if (swap(r->s, "begun", "ended", "[1]")) atomic_fetch_add(r->won, 1);
    return NULL;
}

static void races(api_store *one, api_store *other)
{
    enum { THREADS = 4, ROUNDS = 50 };
    for (int i = 0; i < ROUNDS; i++) {
        pthread_t t[THREADS];
        atomic_bool go = false;
        atomic_int won = 0;
        racer r[2] = { { one, &go, &won }, { other, &go, &won } };
        put(one, "begun", "[]");
        for (int k = 0; k < THREADS; k++)
            CHECK(!pthread_create(&t[k], NULL, race, &r[k % 2]), "no thread");
        atomic_store(&go, true);
        for (int k = 0; k < THREADS; k++)
            pthread_join(t[k], NULL);
        CHECK(won == 1 && holds(one, "ended", "[1]"), "round %d: %d ended it", i, (int)won);
    }
}

TEST(one_alone_ends_a_response) { with_stores(races); }

static bool add(api_store *s, const char *text) { return api_store_add(s, id, text, strlen(text)); }

static bool reads(api_store *s, size_t from, size_t most, const char *text, api_store_log log)
{
    lq_buf b = { 0 };
    api_store_log its;
    const bool ok = api_store_events(s, id, from, most, &b, &its) && its == log &&
                    b.n == strlen(text) && (!b.n || memcmp(b.p, text, b.n) == 0);
    lq_buf_free(&b);
    return ok;
}

static void logs(api_store *one, api_store *other)
{
    lq_buf a = text("a"), b = text("[]"), events = text("12"), none = { 0 };
    api_store_log log;
    CHECK(!add(one, "x") && !api_store_events(one, id, 0, 9, &none, &log), "there is none");
    put(one, "a", "[]");
    CHECK(!add(one, "x") && reads(one, 0, 9, "", API_NO_LOG), "it has no log");
    api_store_put(one, id, &a, &b, &events);
    CHECK(reads(other, 0, 9, "12", API_LOG_OPEN) && holds(one, "a", "[]"), "it begins");
    CHECK(add(other, "345") && add(one, "6"), "it grows");
    CHECK(reads(one, 0, 9, "123456", API_LOG_OPEN) && holds(other, "a", "[]"), "all of it");
    CHECK(reads(other, 1, 3, "234", API_LOG_OPEN) && reads(other, 6, 9, "", API_LOG_OPEN) &&
              reads(other, 99, 9, "", API_LOG_OPEN),
          "a part of it");
    CHECK(swap(other, "a", "longer", "[1]") && reads(one, 0, 9, "123456", API_LOG_ENDED), "ended");
    CHECK(!add(one, "7") && reads(one, 5, 9, "6", API_LOG_ENDED), "it takes no more");
    CHECK(holds(one, "longer", "[1]") && api_store_remove(one, id) && !add(other, "8"), "gone");
    lq_buf_free(&a);
    lq_buf_free(&b);
    lq_buf_free(&events);
}

TEST(a_log_grows_until_its_response_ends) { with_stores(logs); }

/* What is beyond the bounds goes, the log itself with it. */
TEST(a_log_is_within_the_bounds)
{
    static char big[1 << 20];
    api_store *s;
    lq_err err;
    lq_buf a = text("a"), b = text("[]"), events = { 0 };
    memset(big, 'x', sizeof big);
    CHECK(!api_store_open(&s, 4, NULL, &err), "%s", err.msg);
    api_store_put(s, id, &a, &b, &events);
    int n = 0;
    while (n < 200 && api_store_add(s, id, big, sizeof big))
        n++;
    CHECK(n > 16 && n <= API_STORE_BYTES >> 20, "%d MiB were taken", n);
    api_store_close(s);
    lq_buf_free(&a);
    lq_buf_free(&b);
}

/* In a folder the log alone goes: how the response ended is told. */
static void ends_with_a_full_log(api_store *one, api_store *other)
{
    static char big[1 << 20];
    char longer[1000] = "";
    lq_buf a = text("a"), b = text("[]"), events = text("1");
    memset(longer, 'y', sizeof longer - 1);
    memset(big, 'x', sizeof big);
    api_store_put(one, id, &a, &b, &events);
    for (size_t n = sizeof big; n; n /= 2)
        while (api_store_add(one, id, big, n))
            ;
    CHECK(swap(other, "a", longer, NULL) && holds(one, longer, "[]"), "it is not kept");
    CHECK(reads(one, 0, 9, "", API_NO_LOG), "its log is still there");
    lq_buf_free(&a);
    lq_buf_free(&b);
    lq_buf_free(&events);
}

TEST(a_response_ends_where_its_log_is_full) { with_folder(ends_with_a_full_log); }

int main(int argc, char **argv)
{
    RUN(what_is_kept_changes_where_it_is_what_was_expected);
    RUN(one_alone_ends_a_response);
    RUN(a_log_grows_until_its_response_ends);
    RUN(a_log_is_within_the_bounds);
    RUN(a_response_ends_where_its_log_is_full);
    return check_end();
}
