/* tests/unit/test_kv_disk.c - files of the KV cache on disk, the folder that holds them, its threads, and
 * parts of blocks out of a cache and into another. */
#include "base/clock.h"
#include "runtime/model/kv.h"
#include "runtime/model/kv_disk.h"
#include "runtime/model/kv_index.h"
#include "runtime/model/kv_store.h"
#include "tests/support/check.h"
#include "tests/support/kv_model.h"
#include "tests/support/temp_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PART = 3000 };
static char dir[TEMP_DIR];

static int count_files(void)
{
    uint64_t key[2];
    kv_part part;
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        n += kvf_name_read(e->d_name, key, &part);
    if (d) closedir(d);
    return n;
}

static kvf_what what(uint64_t k)
{
    return (kvf_what){
        .of = { 1, 2 }, .key = { k, ~k }, .block_size = 8, .tokens = { (int32_t)k }, .bytes = PART
    };
}

static void fill_part(uint8_t *p, uint64_t k)
{
    for (size_t i = 0; i < PART; i++)
        p[i] = (uint8_t)(k * 31 + i);
}

static kv_store *open_store(size_t bytes)
{
    kv_store *s;
    lq_err err = { "" };
    CHECK(!kvs_open(&s, dir, bytes, &err), "%s", err.msg);
    return s;
}

static lq_status put(kv_store *s, uint64_t k, int64_t used, bool *written)
{
    uint8_t file[KVF_HEAD + PART];
    const kvf_what w = what(k);
    lq_err err;
    fill_part(file + KVF_HEAD, k);
    CHECK(kvs_begin(s, NULL), "no lock");
    const lq_status st = kvs_put(s, &w, file, used, written, &err);
    kvs_end(s);
    return st;
}

static kvs_found get(kv_store *s, uint64_t k, int64_t used)
{
    uint8_t file[KVF_HEAD + PART], part[PART];
    const kvf_what w = what(k);
    const kvs_found f = kvs_read(s, &w, file, used);
    fill_part(part, k);
    CHECK(f != KVS_READ || memcmp(file + KVF_HEAD, part, PART) == 0, "%d: other bytes", (int)k);
    return f;
}

/* ---- a file ---- */

TEST(a_file_with_any_bit_turned_is_refused)
{
    uint8_t file[KVF_HEAD + PART];
    const kvf_what w = what(9);
    fill_part(file + KVF_HEAD, 9);
    kvf_seal(file, &w);
    CHECK(!kvf_check(file, sizeof file, &w), "%s", kvf_check(file, sizeof file, &w));
    for (size_t bit = 0; bit < 8 * sizeof file; bit++) {
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK(kvf_check(file, sizeof file, &w), "bit %zu", bit);
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (size_t n = 0; n < sizeof file; n++)
        CHECK(kvf_check(file, n, &w), "%zu bytes", n);
}

TEST(a_file_of_something_else_is_refused)
{
    uint8_t file[KVF_HEAD + PART];
    const kvf_what w = what(9);
    fill_part(file + KVF_HEAD, 9);
    kvf_seal(file, &w);
    kvf_what t[] = { w, w, w, w, w, w };
    t[0].of[1]++;
    t[1].key[0]++;
    t[2].part = KV_STATE;
    t[3].block_size = 16;
    t[4].tokens[7] = 1;
    t[5].bytes--;
    for (size_t i = 0; i < LQ_COUNT(t); i++)
        CHECK(kvf_check(file, sizeof file, &t[i]), "case %zu", i);
}

TEST(names_are_read_as_they_are_written)
{
    char name[KVF_NAME];
    uint64_t key[2];
    kv_part part;
    for (int p = 0; p < KV_PARTS; p++) {
        kvf_name(name, (uint64_t[2]){ 0x0123456789abcdefu, 5 }, (kv_part)p);
        CHECK(kvf_name_read(name, key, &part) && part == (kv_part)p && key[1] == 5 &&
                  key[0] == 0x0123456789abcdefu,
              "%s", name);
    }
    static const char *const others[] = { "",
                                          ".",
                                          "llmq-kv.tmp",
                                          "0123456789abcdef0000000000000005.x",
                                          "0123456789abcdef0000000000000005",
                                          "0123456789ABCDEF0000000000000005.k",
                                          "0123456789abcdef0000000000000005.kk",
                                          "0123456789abcdef000000000000000 .k" };
    for (size_t i = 0; i < LQ_COUNT(others); i++)
        CHECK(!kvf_name_read(others[i], key, &part), "%s", others[i]);
}

/* ---- what there is ---- */

TEST(the_index_is_as_a_plain_list)
{
    enum { KEYS = 200 };
    static struct {
        bool there;
        size_t bytes;
        int64_t used;
    } list[KEYS];
    kv_index x = { 0 };
    uint32_t seed = 7;
    for (int step = 0; step < 20000; step++) {
        seed = seed * 1664525u + 1013904223u;
        const int k = (int)(seed >> 8) % KEYS, how = (int)(seed >> 28);
        const uint64_t key[2] = { (uint64_t)(k % 20), (uint64_t)k };
        if (how < 8) {
            list[k].there =
                kvi_add(&x, key, KV_ROWS, list[k].bytes = seed % 9000, list[k].used = step);
        } else if (how < 12) {
            kvi_remove(&x, key, KV_ROWS);
            list[k].there = false;
        } else {
            kvi_used(&x, key, KV_ROWS, step);
            list[k].used = step;
        }
        size_t bytes = 0;
        int64_t n = 0;
        for (int i = 0; i < KEYS; i++) {
            n += list[i].there;
            bytes += list[i].there ? kvi_pages(list[i].bytes) * KVI_PAGE : 0;
        }
        const kvi_file *f = kvi_find(&x, key, KV_ROWS);
        CHECK(x.n == n && x.bytes == bytes && !f == !list[k].there, "step %d", step);
        CHECK(!f || f->used == list[k].used, "step %d: used", step);
        CHECK(!kvi_find(&x, key, KV_STATE), "another part");
    }
    kvi_file *all = kvi_copy(&x);
    kvi_sort(all, x.n);
    for (int64_t i = 1; i < x.n; i++)
        CHECK(all[i - 1].used <= all[i].used, "order");
    free(all);
    kvi_clear(&x);
}

/* ---- the folder ---- */

TEST(what_is_put_is_there_for_the_next_who_opens_the_folder)
{
    bool written;
    temp_dir_make(dir);
    kv_store *s = open_store(1 << 20);
    CHECK(get(s, 1, 1) == KVS_MISSING, "nothing yet");
    CHECK(!put(s, 1, 1, &written) && written, "put");
    CHECK(!put(s, 1, 2, &written) && !written, "twice");
    CHECK(get(s, 1, 3) == KVS_READ && kvs_knows(s, what(1).key, KV_ROWS), "read");
    kvs_close(s);
    s = open_store(1 << 20);
    CHECK(kvs_knows(s, what(1).key, KV_ROWS) && get(s, 1, 4) == KVS_READ, "opened again");
    kvs_close(s);
    temp_dir_remove(dir);
}

TEST(what_was_not_used_for_longest_goes_first_and_the_folder_is_bounded)
{
    enum { FILES = 10 };
    const size_t one = kvs_least(KVF_HEAD + PART);
    bool written;
    temp_dir_make(dir);
    kv_store *s = open_store(FILES * one);
    for (uint64_t k = 0; k < FILES; k++)
        CHECK(!put(s, k, 1000 + (int64_t)k, &written), "put");
    CHECK(count_files() == FILES, "%d files", count_files());
    CHECK(get(s, 0, 5000) == KVS_READ, "the oldest is used again");
    for (uint64_t k = FILES; k < FILES + 4; k++) {
        kvs_stats st;
        CHECK(!put(s, k, 2000 + (int64_t)k, &written) && count_files() <= FILES, "bounded");
        kvs_stats_get(s, &st);
        CHECK(st.bytes == (size_t)count_files() * one, "%zu bytes", st.bytes);
    }
    CHECK(get(s, 0, 6000) == KVS_READ, "it was used since");
    for (uint64_t k = 1; k < 5; k++)
        CHECK(get(s, k, 1) == KVS_MISSING, "%d is there", (int)k);
    for (uint64_t k = 6; k < FILES + 4; k++)
        CHECK(get(s, k, 1) == KVS_READ, "%d is not there", (int)k);
    kvs_close(s);
    s = open_store(3 * one);
    CHECK(count_files() <= 3, "a smaller bound: %d", count_files());
    kvs_close(s);
    temp_dir_remove(dir);
}

TEST(two_who_share_a_folder_see_each_others_files_and_keep_the_bound)
{
    const size_t one = kvs_least(KVF_HEAD + PART);
    bool written;
    temp_dir_make(dir);
    kv_store *a = open_store(8 * one), *b = open_store(8 * one);
    for (uint64_t k = 0; k < 40; k++) {
        CHECK(!put(k % 2 ? a : b, k, 1000 + (int64_t)k, &written) && written, "put %d", (int)k);
        CHECK(count_files() <= 8, "%d files", count_files());
        CHECK(get(k % 2 ? b : a, k, 1000 + (int64_t)k) == KVS_READ, "the other reads %d", (int)k);
    }
    CHECK(get(b, 38, 9000) == KVS_READ, "used by one");
    for (uint64_t k = 40; k < 46; k++)
        CHECK(!put(a, k, 2000 + (int64_t)k, &written), "put");
    CHECK(get(a, 38, 9000) == KVS_READ, "is known to the other");
    kvs_close(a);
    kvs_close(b);
    temp_dir_remove(dir);
}

TEST(what_is_no_file_of_ours_is_missing_or_goes)
{
    char path[200], name[KVF_NAME];
    bool written;
    temp_dir_make(dir);
    kv_store *s = open_store(1 << 20);
    static const char *const kinds[] = { "pipe", "link", "folder", "empty" };
    for (uint64_t k = 0; k < LQ_COUNT(kinds); k++) {
        kvf_name(name, what(k).key, KV_ROWS);
        snprintf(path, sizeof path, "%s/%s", dir, name);
        const int made = k == 0   ? mkfifo(path, 0600)
                         : k == 1 ? symlink("/etc/hostname", path)
                         : k == 2 ? mkdir(path, 0700)
                                  : close(creat(path, 0600));
        CHECK(!made, "%s", kinds[k]);
        CHECK(get(s, k, 1) == KVS_DAMAGED, "%s", kinds[k]);
        CHECK((access(path, F_OK) == 0) == (k == 2), "%s", kinds[k]);
        CHECK(!put(s, k, 1, &written) == (k != 2), "%s: put", kinds[k]);
        if (k != 2) CHECK(get(s, k, 1) == KVS_READ, "%s: read", kinds[k]);
        if (k == 2) rmdir(path);
    }
    kvs_close(s);
    temp_dir_remove(dir);
}

/* ---- threads ---- */

typedef struct {
    pthread_mutex_t mu;
    pthread_cond_t some;
    int woken;
} bell;

static void ring(void *user)
{
    bell *b = user;
    pthread_mutex_lock(&b->mu);
    b->woken++;
    pthread_cond_signal(&b->some);
    pthread_mutex_unlock(&b->mu);
}

static void wait_ring(bell *b)
{
    pthread_mutex_lock(&b->mu);
    while (!b->woken)
        pthread_cond_wait(&b->some, &b->mu);
    b->woken = 0;
    pthread_mutex_unlock(&b->mu);
}

static int64_t last_three(const void *user, int64_t n)
{
    (void)user;
    return n > 3 ? n - 3 : 0;
}

static kv_disk *open_disk(bell *b, size_t bytes, bool windows)
{
    kvd_opts o = { .dir = dir,
                   .bytes = bytes,
                   .of = { 1, 2 },
                   .block_size = 8,
                   .part_bytes = { PART, PART, windows ? PART : 0 },
                   .near_from = last_three,
                   .wake = ring,
                   .user = b };
    kv_disk *d = NULL;
    lq_err err = { "" };
    CHECK(!kvd_open(&d, &o, &err), "%s", err.msg);
    return d;
}

static void put_block(kv_disk *d, uint64_t k, kv_part part)
{
    const int32_t tokens[8] = { (int32_t)k };
    uint8_t *p = kvd_put(d, (uint64_t[2]){ k, ~k }, part, tokens, kvs_now(), true);
    CHECK(p, "no place");
    if (!p) return;
    fill_part(p, k + (uint64_t)part);
    kvd_put_end(d, p);
}

/* Reads all that a look gives; returns the pieces, as "k0 k1 s1 ". */
static char *read_all(kv_disk *d, bell *b, int64_t n, int64_t usable, double pace, unsigned have)
{
    static char said[400];
    kvd_block blocks[16] = { 0 };
    int32_t ids[16 * 8] = { 0 };
    said[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        blocks[i] =
            (kvd_block){ .key = { (uint64_t)i, ~(uint64_t)i }, .have = i < usable ? have : 0 };
        ids[8 * i] = (int32_t)i;
    }
    kvd_look *l = kvd_look_begin(d, blocks, ids, n, usable, pace, said);
    for (kvd_piece p; l && !kvd_look_over(d, l);) {
        uint8_t part[PART];
        if (!kvd_take(d, &p)) {
            wait_ring(b);
            continue;
        }
        fill_part(part, (uint64_t)p.i + (uint64_t)p.part);
        CHECK(p.user == said && memcmp(p.data, part, PART) == 0, "other bytes");
        sprintf(said + strlen(said), "%c%d ", "ksw"[p.part], (int)p.i);
        kvd_give_back(d, &p);
    }
    kvd_look_end(d, l);
    return said;
}

TEST(a_look_reads_what_a_prompt_needs_to_go_on_and_no_more)
{
    bell b = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 };
    temp_dir_make(dir);
    kv_disk *d = open_disk(&b, 1 << 20, true);
    for (uint64_t k = 0; k < 8; k++)
        put_block(d, k, KV_ROWS);
    for (uint64_t k = 2; k < 6; k++)
        put_block(d, k, KV_NEAR);
    put_block(d, 4, KV_STATE);
    put_block(d, 7, KV_STATE); /* of no use: the windows before it are not there */
    kvd_close(d);              /* all is written */
    d = open_disk(&b, 1 << 20, true);
    const struct {
        const char *why;
        int64_t n, usable;
        unsigned have;
        const char *want;
    } t[] = {
        { "all", 10, 0, 0, "k0 k1 k2 k3 k4 s4 w2 w3 w4 " },
        { "some in memory", 10, 2, 1u << KV_ROWS, "k2 k3 k4 s4 w2 w3 w4 " },
        { "too short for the state", 4, 0, 0, "" },
        { "memory has as much", 10, 5, 7, "" },
    };
    for (size_t i = 0; i < LQ_COUNT(t); i++) {
        const char *got = read_all(d, &b, t[i].n, t[i].usable, 0, t[i].have);
        CHECK(strcmp(got, t[i].want) == 0, "%s: %s", t[i].why, got);
    }
    kvd_stats st;
    kvd_stats_get(d, &st);
    CHECK(st.hits == 2 && st.misses == 2 && st.reads == 16, "%d hits, %d misses, %d reads",
          (int)st.hits, (int)st.misses, (int)st.reads);
    kvd_close(d);
    temp_dir_remove(dir);
}

TEST(what_is_not_written_in_time_is_counted_and_not_waited_for)
{
    bell b = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 };
    const int32_t tokens[8] = { 0 };
    char path[200];
    kvd_stats st;
    temp_dir_make(dir);
    kv_disk *d = open_disk(&b, 1 << 20, false);
    put_block(d, 1, KV_ROWS);
    do /* until it is written, and the folder free */
        kvd_stats_get(d, &st);
    while (st.writes < 1);
    snprintf(path, sizeof path, "%s/llmq-kv.lock", dir);
    const int lock = open(path, O_RDWR | O_CLOEXEC);
    CHECK(lock >= 0 && flock(lock, LOCK_EX) == 0, "no lock");
    put_block(d, 2, KV_ROWS); /* for this the writer waits for the folder */
    put_block(d, 3, KV_ROWS);
    kvd_until(d, lq_now() + 0.01);
    while (kvd_put(d, (uint64_t[2]){ 4, ~(uint64_t)4 }, KV_ROWS, tokens, kvs_now(), true))
        ; /* places that are never filled: the queue is full, or it is too late */
    kvd_stats_get(d, &st);
    CHECK(st.lost == 1, "%d lost", (int)st.lost);
    CHECK(!kvd_put(d, (uint64_t[2]){ 5, ~(uint64_t)5 }, KV_ROWS, tokens, kvs_now(), false), "late");
    const uint64_t late = kvd_close(d);
    CHECK(late == 4 && count_files() == 1, "%d late, %d files", (int)late, count_files());
    close(lock);
    temp_dir_remove(dir);
}

TEST(a_damaged_file_leaves_a_shorter_way)
{
    bell b = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 };
    char path[200], name[KVF_NAME];
    temp_dir_make(dir);
    kv_disk *d = open_disk(&b, 1 << 20, false);
    for (uint64_t k = 0; k < 6; k++)
        put_block(d, k, KV_ROWS);
    put_block(d, 1, KV_STATE);
    put_block(d, 5, KV_STATE);
    kvd_close(d);
    kvf_name(name, (uint64_t[2]){ 3, ~(uint64_t)3 }, KV_ROWS);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    CHECK(!truncate(path, KVF_HEAD + PART - 1), "cut");
    d = open_disk(&b, 1 << 20, false);
    const char *got = read_all(d, &b, 8, 0, 0, 0);
    CHECK(strcmp(got, "k0 k1 k2 s1 ") == 0, "%s", got);
    kvd_stats st;
    kvd_stats_get(d, &st);
    CHECK(st.damaged == 1 && st.hits == 1, "%d damaged", (int)st.damaged);
    kvd_close(d);
    temp_dir_remove(dir);
}

TEST(what_would_take_longer_than_computing_is_not_read_but_tried_now_and_then)
{
    bell b = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 };
    kvd_stats st;
    temp_dir_make(dir);
    kv_disk *d = open_disk(&b, 1 << 20, false);
    put_block(d, 0, KV_ROWS);
    put_block(d, 0, KV_STATE);
    kvd_close(d);
    d = open_disk(&b, 1 << 20, false);
    CHECK(strcmp(read_all(d, &b, 2, 0, 1e-12, 0), "k0 s0 ") == 0,
          "no pace of the disk is known yet");
    for (int i = 0; i < 16; i++)
        (void)read_all(d, &b, 2, 0, 1e-12, 0);
    kvd_stats_get(d, &st);
    CHECK(st.slower == 14 && st.hits == 3, "%d slower, %d hits", (int)st.slower, (int)st.hits);
    CHECK(strcmp(read_all(d, &b, 2, 0, 1e3, 0), "k0 s0 ") == 0, "computing is slow");
    kvd_close(d);
    temp_dir_remove(dir);
}

TEST(looks_that_are_given_up_leave_nothing)
{
    bell b = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 };
    kvd_block blocks[16] = { 0 };
    int32_t ids[16 * 8] = { 0 };
    temp_dir_make(dir);
    kv_disk *d = open_disk(&b, 1 << 20, false);
    for (uint64_t k = 0; k < 16; k++) {
        put_block(d, k, KV_ROWS);
        put_block(d, k, KV_STATE);
        blocks[k] = (kvd_block){ .key = { k, ~k } };
        ids[8 * k] = (int32_t)k;
    }
    for (int round = 0; round < 200; round++) {
        kvd_look *l[3];
        kvd_piece p;
        for (int i = 0; i < 3; i++)
            l[i] = kvd_look_begin(d, blocks, ids, 16, 0, 0, &b);
        bool held = false;
        for (int i = 0; i < round % 5 && !held; i++)
            held = kvd_take(d, &p);
        for (int i = 3; i-- > 0;)
            kvd_look_end(d, l[i]);
        if (held) kvd_give_back(d, &p);
    }
    kvd_close(d);
    CHECK(count_files() == 32, "%d files", count_files());
    temp_dir_remove(dir);
}

/* ---- out of a cache and into another ---- */

TEST(blocks_that_come_from_elsewhere_are_found_like_those_that_were_computed)
{
    lq_err err;
    kv_cache *from, *to;
    int32_t ids[4 * BS + 1];
    kv_seq s, again;
    CHECK(!model_cache(&from, 8, true, &err) && !model_cache(&to, 4, true, &err), "%s", err.msg);
    const size_t n = kv_part_bytes(from, KV_ROWS);
    uint8_t *part = malloc(n);
    for (int i = 0; i <= 4 * BS; i++)
        ids[i] = i * 3 % 17;
    kv_seq_init(&s);
    kv_seq_init(&again);
    CHECK(!kv_reserve(from, &s, 4 * BS, &err), "%s", err.msg);
    for (int i = 0; i < 4 * BS; i++)
        *cell(from, &s, i) = (uint8_t)(i + 1);
    kv_register(from, &s, ids, 4 * BS, "salt");
    kv_link at = kv_link_root(to, 0, "salt"), next;
    for (int i = 0; i < 4; i++, at = next) {
        CHECK(!kv_link_next(to, &next, &at, ids + i * BS), "it is there already");
        kv_block_read(from, s.table[i], KV_ROWS, part);
        CHECK(kv_link_put(to, &next, &at, ids + i * BS, i, KV_ROWS, part), "block %d", i);
        CHECK(kv_cached_blocks(to) == i + 1, "%d cached", (int)kv_cached_blocks(to));
    }
    CHECK(kv_match_prefix(to, &again, ids, 4 * BS + 1, "salt") == 4 * BS, "not found");
    for (int i = 0; i < 4 * BS; i++)
        CHECK(*cell(to, &again, i) == (uint8_t)(i + 1), "cell %d", i);
    CHECK(!kv_link_next(to, &next, &at, ids), "a fifth");
    CHECK(!kv_link_put(to, &next, &at, ids, 4, KV_ROWS, part), "all blocks are held");
    kv_seq_free(to, &again);
    CHECK(kv_match_prefix(to, &again, ids, 4 * BS + 1, "other") == 0, "another salt");
    again.adapter = 7;
    CHECK(kv_match_prefix(to, &again, ids, 4 * BS + 1, "salt") == 0, "another adapter");
    kv_seq_free(to, &again);
    kv_seq_free(from, &s);
    kv_close(from);
    kv_close(to);
    free(part);
}

int main(int argc, char **argv)
{
    RUN(a_file_with_any_bit_turned_is_refused);
    RUN(a_file_of_something_else_is_refused);
    RUN(names_are_read_as_they_are_written);
    RUN(the_index_is_as_a_plain_list);
    RUN(what_is_put_is_there_for_the_next_who_opens_the_folder);
    RUN(what_was_not_used_for_longest_goes_first_and_the_folder_is_bounded);
    RUN(two_who_share_a_folder_see_each_others_files_and_keep_the_bound);
    RUN(what_is_no_file_of_ours_is_missing_or_goes);
    RUN(a_look_reads_what_a_prompt_needs_to_go_on_and_no_more);
    RUN(what_is_not_written_in_time_is_counted_and_not_waited_for);
    RUN(a_damaged_file_leaves_a_shorter_way);
    RUN(what_would_take_longer_than_computing_is_not_read_but_tried_now_and_then);
    RUN(looks_that_are_given_up_leave_nothing);
    RUN(blocks_that_come_from_elsewhere_are_found_like_those_that_were_computed);
    return check_end();
}
