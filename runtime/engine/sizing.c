/* runtime/engine/sizing.c - see sizing.h. */
#include "runtime/engine/sizing.h"

#include <stdint.h>
#include <stdio.h>

#include "base/machine.h"
#include "runtime/engine/draft.h"
#include "runtime/engine/mtp.h"
#include "runtime/engine/sched.h"
#include "runtime/engine/spec.h"
#include "runtime/model/kv_disk.h"
#include "runtime/model/kv_window.h"

enum { MAX_BLOCKS = INT32_MAX / 32 };

static lq_status check_count(const char *name, int64_t v, int64_t hi, lq_err *err)
{
    if (v >= 0 && v <= hi) return LQ_OK;
    return lq_fail(err, LQ_EUSAGE, "%s: expected 0..%lld, found %lld", name, (long long)hi,
                   (long long)v);
}

lq_status eng_check_policy(const eng_policy *p, lq_err *err)
{
    if ((int)p->batching < 0 || p->batching >= ENG_N_BATCHINGS)
        return lq_fail(err, LQ_EUSAGE, "--batching: found %d", (int)p->batching);
    if (!(p->batch_wait >= 0 && p->batch_wait <= 60))
        return lq_fail(err, LQ_EUSAGE, "--batch-wait-ms: expected 0..60000, found %g",
                       1e3 * p->batch_wait);
    if (p->batch_wait > 0 && p->batching != ENG_DYNAMIC)
        return lq_fail(err, LQ_EUSAGE, "--batch-wait-ms goes with --batching dynamic");
    if (!(p->served_ratio >= 0 && p->served_ratio <= 1e6))
        return lq_fail(err, LQ_EUSAGE, "--waiting-served-ratio: expected 0..1e6, found %g",
                       p->served_ratio);
    if (p->served_ratio > 0 && p->batching != ENG_CONTINUOUS)
        return lq_fail(err, LQ_EUSAGE, "--waiting-served-ratio goes with --batching continuous");
    if (p->max_waiting_steps && !(p->served_ratio > 0))
        return lq_fail(err, LQ_EUSAGE, "--max-waiting-tokens goes with --waiting-served-ratio");
    return check_count("--max-waiting-tokens", p->max_waiting_steps, 1 << 20, err);
}

/* Are the guesses an MTP head's? */
static bool is_head(const eng_opts *o) { return o->guesses && o->draft && o->draft->cfg->mtp; }

/* A head's rows are read where the model's states are. */
static lq_status check_head(const eng_opts *o, dev *on, lq_err *err)
{
    if (!is_head(o) || !on || model_dev(o->draft)) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "speculative decoding: not on %s yet: an %s", on->name,
                   arch_is_eagle(o->draft->cfg) ? "EAGLE-3 draft" : "MTP head");
}

static lq_status check_opts(const eng_opts *o, int64_t max_pos, lq_err *err)
{
    const bool seek = o->max_len == ENG_LEN_AUTO;
    lq_status s = seek ? LQ_OK : check_count("--max-model-len", o->max_len, max_pos, err);
    if (!s) s = check_count("--max-num-seqs", o->max_seqs, 4096, err);
    if (!s) s = check_count("--max-num-batched-tokens", o->max_batch_tokens, 1 << 20, err);
    if (!s) s = check_count("--queue", o->queue, 1 << 24, err);
    if (!s) s = check_count("--num-speculative-tokens", o->guesses, SPEC_MAX, err);
    if (!s) s = eng_check_policy(&o->policy, err);
    if (!s && o->block_size && o->block_size != 8 && o->block_size != 16 && o->block_size != 32)
        s = lq_fail(err, LQ_EUSAGE, "--block-size: expected 8, 16 or 32, found %d", o->block_size);
    return s;
}

void eng_defaults(eng_opts *o)
{
    if (!o->block_size) o->block_size = 16;
    if (!o->max_seqs) o->max_seqs = 64;
    if (!o->max_batch_tokens) o->max_batch_tokens = 512;
    if (!o->queue) o->queue = 1024;
}

/* Positions that a sequence may have. Dynamic NTK stretches what was trained by its factor. */
static int64_t longest(const arch_config *c)
{
    const arch_rope *r = &c->rope[ROPE_MAIN];
    if (c->max_pos <= 0) return INT32_MAX;
    if (c->w.pos != POS_ROPE || r->kind != ROPE_DYNAMIC || c->row->ends_at) return c->max_pos;
    double stretched = (double)r->original_max * r->factor;
    return stretched < INT32_MAX ? (int64_t)stretched : INT32_MAX;
}

/* A memory, and what a block has in it. */
typedef struct {
    size_t room, block;
    size_t taken; /* of the room, for layers with a window, or on a device for states */
    bool known, device;
} side;

static size_t less(size_t n, size_t taken) { return n > taken ? n - taken : 0; }

/* Blocks for the pool where nobody said how much memory it is to have, of `need` that all sequences
 * could use: of the host's memory a quarter, and up to three where a context is sought; of what
 * a step leaves of a device's, three. */
static size_t share(const side *s, size_t need, size_t one, bool seek)
{
    if (!s->block || !s->known) return need;
    const size_t quarter = less(s->room / 4, s->taken) / s->block;
    const size_t three = less(s->room / 4 * 3, s->taken) / s->block;
    const size_t most =
        three ? three : less(s->room, s->taken) / s->block; /* one is better than none */
    const size_t want = seek && one > quarter ? one : quarter ? quarter : 1;
    return !s->device && want < most ? want : most;
}

/* How a block of a model is divided between host and device. */
static void divide(side *host, side *on, const arch_config *c, int64_t first, int ranks,
                   int block_size, kv_types d)
{
    for (int64_t i = 0; i < c->layers; i++)
        *(i < first ? &host->block : &on->block) +=
            kv_layer_bytes_on(c, i, block_size, d, i < first ? 1 : ranks);
}

/* What would do instead of a context that does not fit: err's text goes on with it. windows: what is
 * taken for layers with a window. */
static lq_status too_long(lq_status s, int64_t len, size_t one, size_t block, int block_size,
                          size_t room, size_t windows, const char *kind, lq_err *err)
{
    const long long fits = (long long)(room / block) * block_size;
    char instead[64] = "";
    if (fits) snprintf(instead, sizeof instead, "; --max-model-len %lld would fit", fits);
    return lq_fail(err, s, "KV cache: a sequence of %lld tokens needs %zu bytes, found %s of %zu%s",
                   (long long)len, one * block + windows, kind, room + windows, instead);
}

/* Blocks that a memory holds at most. */
static size_t fits_of(const side *s)
{
    return s->block && s->known ? less(s->room, s->taken) / s->block : SIZE_MAX;
}

/* What the steps leave of a device. */
static lq_status fill_device(side *s, dev *on, const arch_config *c, const eng_opts *o, lq_err *err)
{
    const size_t room = dev_room(on);
    /* None of its layers has K and V: any number of blocks. */
    const int64_t held = s->block ? ((int64_t)(room / s->block) + 1) * o->block_size : INT64_MAX;
    const kv_opts kv = { .block_size = o->block_size };
    fwd_opts step = eng_step(o);
    step.ranks = dev_ranks(on);
    if (step.max_len > held) step.max_len = held;
    size_t need = fwd_dev_bytes(c, &kv, &step);
    if (o->draft && model_dev(o->draft)) {
        fwd_opts its = eng_draft_step(o);
        its.max_len = step.max_len;
        need += fwd_dev_bytes(o->draft->cfg, &kv, &its);
    }
    if (room < need + s->block)
        return lq_fail(
            err, LQ_ENOMEM,
            "--device: %s: a step needs %zu bytes and a block of the KV cache %zu, found %zu free; "
            "%ssmaller steps need less",
            on->name, need, s->block, room,
            dev_ranks(on) > 1 ? "" : "--gpu-layers auto leaves room, and ");
    s->known = true;
    s->room = room - need;
    return LQ_OK;
}

/* How a state is divided between host and device. */
static void divide_state(size_t one[2], const arch_config *c, const dev *on, int64_t first)
{
    one[0] += kv_state_bytes(c) - (on ? kv_state_bytes_on(c, first, 1) : 0);
    one[1] += on ? kv_state_bytes_on(c, first, dev_ranks(on)) : 0;
}

/* That a state fits, and how many at most: half of what there is; all 0: nobody knows. */
static lq_status fit_states(size_t *fit, size_t one, size_t all, bool asked, lq_err *err)
{
    if (one && all && one > all)
        return lq_fail(err, asked ? LQ_EVALUE : LQ_ENOMEM,
                       "KV cache: the state of a sequence needs %zu bytes, found room for %zu", one,
                       all);
    const size_t n = one && all ? all / 2 / one : SIZE_MAX;
    *fit = n < *fit ? n : *fit;
    return LQ_OK;
}

/* States of the sequences that run, as many that are kept for the next ones, and those that a step's
 * guesses may have to go back to; all of them, the draft's too, at most half of the memory that the pool
 * may take. What they take is cut from it; *n: how many of each, 0 where neither model has any. */
static lq_status size_states(int64_t *n, size_t *bytes, side sides[2], eng_opts *o,
                             const arch_config *c, const dev *on, int64_t first, lq_err *err)
{
    enum { TABLES = 256 }; /* a block that holds no K and V is its row in the tables */
    size_t one[2] = { 0 }, fit = SIZE_MAX;
    side *host = &sides[0];
    divide_state(one, c, on, first);
    if (o->draft)
        divide_state(one, o->draft->cfg, model_dev(o->draft),
                     model_dev(o->draft) ? model_first_on(o->draft) : 0);
    const size_t both = one[0] + one[1];
    *n = 0;
    *bytes = 0;
    if (!both) return LQ_OK;
    lq_status s = fit_states(&fit, both, o->kv_bytes, true, err);
    if (!s && !o->kv_bytes) s = fit_states(&fit, one[0], host->room / 4, false, err);
    if (!s && !o->kv_bytes) s = fit_states(&fit, one[1], sides[1].room, false, err);
    if (s) return s;
    const int64_t guesses = o->guesses * o->max_seqs;
    const size_t want =
        2 * (size_t)o->max_seqs + (size_t)(guesses < SPEC_ROWS ? guesses : SPEC_ROWS);
    *n = (int64_t)(fit < 1 ? 1 : fit < want ? fit : want);
    *bytes = (size_t)*n * both;
    if (o->kv_bytes) o->kv_bytes -= *bytes;
    if (host->room) host->room -= (size_t)*n * one[0];
    sides[1].taken = (size_t)*n * one[1];
    if (!host->block) host->block = TABLES;
    return LQ_OK;
}

/* Slots for layers with a window: those of all sequences, within what as many slots as blocks would get
 * of the memory that the pool may take, so that no fewer tokens fit than if these layers kept all. Where
 * a length was asked for they make room for one sequence of it. kv->n_windows is 0 where blocks would be
 * no more. */
static void size_windows(kv_opts *kv, side *host, eng_opts *o, const arch_config *c, bool asked)
{
    enum { TABLES = 256 }; /* as of states */
    const int64_t rows = o->max_batch_tokens > SPEC_MAX ? o->max_batch_tokens : SPEC_MAX + 1;
    const int64_t each = kv_window_slots(c, o->block_size, rows);
    const int64_t one = lq_ceil_div(o->max_len, o->block_size);
    const size_t slot = kv_window_bytes(c, o->block_size, o->kv);
    size_t all = o->kv_bytes ? o->kv_bytes : host->room / 4, n = (size_t)(each * o->max_seqs);
    if (!each || each >= one || (all && all / host->block <= (size_t)each)) return;
    if (all && n > all / host->block) n = all / host->block;
    const size_t far = host->block - slot, whole = (size_t)one * far;
    if (asked && all && whole + n * slot > all) n = whole < all ? (all - whole) / slot : 0;
    if (n < (size_t)each) n = (size_t)each;
    kv->n_windows = (int64_t)n;
    kv->windows_each = each;
    host->block = far ? far : TABLES;
    host->taken = n * slot;
    if (o->kv_bytes) o->kv_bytes -= host->taken;
}

/* A prompt whose rows see each other is computed in one step, which has room for the longest. */
static lq_status fit_whole(eng_opts *o, const eng_opts *want, lq_err *err)
{
    enum { ROWS = 8192 }; /* where nobody says */
    const bool asked = want->max_batch_tokens > 0;
    if (asked && want->max_len > want->max_batch_tokens)
        return lq_fail(err, LQ_EUSAGE,
                       "--max-num-batched-tokens: expected --max-model-len %lld or more, since all "
                       "of a prompt is one step of this model, found %lld",
                       (long long)want->max_len, (long long)want->max_batch_tokens);
    const int64_t most = asked ? want->max_batch_tokens : ROWS;
    if (want->max_len <= 0 && o->max_len > most) o->max_len = most;
    if (!asked) o->max_batch_tokens = o->max_len;
    return LQ_OK;
}

lq_status eng_size(eng_opts *out, kv_opts *kv, const arch_config *c, const eng_opts *want, dev *on,
                   int64_t first, lq_err *err)
{
    int64_t max_pos = longest(c);
    lq_status s = check_opts(want, max_pos, err);
    if (s) return s;
    eng_opts o = *want;
    eng_defaults(&o);
    if (c->index_every > o.block_size)
        return lq_fail(err, LQ_EUSAGE,
                       "--block-size: expected at least the %lld positions that are chosen "
                       "together, found %d",
                       (long long)c->index_every, o.block_size);
    const bool seek = o.max_len == ENG_LEN_AUTO, asked = o.max_len > 0;
    if (!asked) o.max_len = max_pos;
    if (c->w.both_ways) s = fit_whole(&o, want, err);
    if (s) return s;
    side sides[2] = { { .room = o.room ? o.room : machine_memory() }, { .device = true } };
    divide(&sides[0], &sides[1], c, on ? first : c->layers, on ? dev_ranks(on) : 1, o.block_size,
           o.kv);
    if (o.draft) /* as many of each */
        divide(&sides[0], &sides[1], o.draft->cfg,
               model_dev(o.draft) ? model_first_on(o.draft) : o.draft->cfg->layers, 1, o.block_size,
               o.kv);
    int64_t states;
    size_t state_bytes;
    s = check_head(&o, on, err);
    if (!s && on) s = fill_device(&sides[1], on, c, &o, err);
    if (!s) s = size_states(&states, &state_bytes, sides, &o, c, on, first, err);
    if (s) return s;
    *kv = (kv_opts){ 0 };
    if (!on) size_windows(kv, &sides[0], &o, c, asked);
    const size_t windows = sides[0].taken;
    const size_t block = sides[0].block + sides[1].block;
    sides[0].known = sides[0].room > 0;
    int64_t one = lq_ceil_div(o.max_len, o.block_size); /* blocks of one sequence */
    int64_t n = one > MAX_BLOCKS / o.max_seqs ? MAX_BLOCKS : one * o.max_seqs;
    size_t most = o.kv_bytes ? o.kv_bytes / block : (size_t)n;
    const side *least = &sides[on ? 1 : 0]; /* that holds fewest */
    for (int i = 0; i < 2; i++) {
        const size_t can = share(&sides[i], (size_t)n, (size_t)one, seek);
        if (!o.kv_bytes && can < most) most = can;
        if (fits_of(&sides[i]) < fits_of(least)) least = &sides[i];
    }
    if (most < (size_t)n) n = (int64_t)most;
    if (n < one && asked && o.kv_bytes)
        return too_long(LQ_EVALUE, o.max_len, (size_t)one, block, o.block_size, o.kv_bytes, windows,
                        "a limit", err);
    if (asked && !o.kv_bytes && (size_t)one > fits_of(least))
        return too_long(least->device ? LQ_ENOMEM : LQ_EVALUE, o.max_len, (size_t)one, least->block,
                        o.block_size, less(least->room, least->taken), least->taken, "room", err);
    if (n < one && asked) n = one; /* asked for, and no limit was named */
    if (n < 1)
        return lq_fail(err, o.kv_bytes ? LQ_EVALUE : LQ_ENOMEM,
                       "KV cache: one block needs %zu bytes, found room for %zu",
                       o.kv_bytes ? block : least->block, o.kv_bytes ? o.kv_bytes : least->room);
    if (on && (size_t)n > fits_of(&sides[1])) /* a limit was named */
        return lq_fail(err, LQ_ENOMEM,
                       "KV cache: %lld blocks need %zu bytes on the device, found room for %zu",
                       (long long)n, (size_t)n * sides[1].block, sides[1].room);
    if (n < one) o.max_len = n * o.block_size;
    o.kv_bytes = (size_t)n * block + state_bytes + windows;
    *kv = (kv_opts){ .n_blocks = n,
                     .block_size = o.block_size,
                     .dtype = o.kv,
                     .n_states = states,
                     .n_windows = kv->n_windows < n ? kv->n_windows : n,
                     .windows_each = kv->windows_each,
                     .prefix_cache = !o.no_prefix_cache && !c->w.both_ways,
                     .on = on,
                     .first = on ? first : 0 };
    *out = o;
    return LQ_OK;
}

load_beside eng_beside(const eng_opts *o)
{
    eng_opts e = *o;
    eng_defaults(&e);
    const bool asked = e.max_len > 0;
    load_beside b = { .step = eng_step(&e),
                      .kv = e.kv,
                      .block_size = e.block_size,
                      .tokens = asked ? e.max_len : 0,
                      .cache_bytes = e.kv_bytes,
                      .also = e.lora_bytes,
                      .exact = asked || e.kv_bytes };
    if (!asked) b.step.max_len = 0;
    return b;
}

fwd_opts eng_step(const eng_opts *o)
{
    sched sizes;
    sched_size(&sizes, o->max_seqs, o->max_batch_tokens, o->guesses ? SPEC_ROWS : 0);
    return (fwd_opts){ .acts = o->acts,
                       .max_rows = sched_max_rows(&sizes),
                       .max_logits = sched_max_logits(&sizes),
                       .max_seqs = o->max_seqs,
                       .max_len = o->max_len + SPEC_MAX + 1, /* guesses may run ahead */
                       .lora_rank = o->lora_rank,
                       .all_hidden = is_head(o),
                       .n_inputs = is_head(o) && arch_is_eagle(o->draft->cfg) ? 3 : 0 };
}

fwd_opts eng_draft_step(const eng_opts *o)
{
    fwd_opts f = eng_step(o);
    if (is_head(o)) return mtp_step(&f);
    f.max_rows = o->max_batch_tokens;
    return draft_step(&f);
}

/* As kv_part_bytes has them. */
static size_t disk_queues(const arch_config *c, const eng_opts *o, const kv_opts *kv)
{
    const size_t near = kv->n_windows ? kv_window_bytes(c, kv->block_size, o->kv) : 0;
    size_t rows = 0;
    for (int64_t l = 0; l < c->layers; l++)
        rows += kv_layer_bytes(c, l, kv->block_size, o->kv);
    const size_t parts[KV_PARTS] = {
        [KV_ROWS] = rows - near, [KV_STATE] = kv_state_bytes(c), [KV_NEAR] = near
    };
    return o->disk.dir ? kvd_memory(parts) : 0;
}

void eng_need_of(eng_need *n, const arch_config *c, const eng_opts *o, const kv_opts *kv,
                 int threads)
{
    fwd_opts f = eng_step(o);
    n->kv = o->kv_bytes + kv_table_bytes(kv);
    n->disk = disk_queues(c, o, kv);
    n->step = fwd_bytes(c, &f, threads) + (size_t)threads * smp_bytes(c->vocab);
    seq_need one;
    seq_need_of(&one, c, o->max_len > 0 ? o->max_len : 0, o->guesses, kv->block_size);
    n->running = (size_t)o->max_seqs * one.running;
    n->waiting = (size_t)(o->max_seqs + o->queue) * one.waiting;
    if (!o->draft) return;
    f = eng_draft_step(o);
    n->kv += kv_table_bytes(kv);
    n->step += fwd_bytes(o->draft->cfg, &f, threads);
}
