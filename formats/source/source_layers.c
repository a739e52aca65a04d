/* formats/source/source_layers.c - the layers whose tensors are stored against those that the config has. Layers
 * after the last are MTP's (arch_mtp), or the config is of another model. */
#include "formats/source/source_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* What names of a layer begin with, "model.layers."; "" where they have no number. */
static void head_of(char out[256], const arch_config *c, const char *pattern)
{
    const char *number = strstr(pattern, "%d");
    const bool body = *pattern == '@';
    out[0] = 0;
    if (number)
        snprintf(out, 256, "%s%.*s", body ? c->prefix : "", (int)(number - pattern) - body,
                 pattern + body);
}

/* The number that follows; *rest: what follows it. -1: there is none. */
static int64_t number_in(const char **rest, const char *name, const char *head)
{
    const size_t n = strlen(head);
    char *end;
    if (!n || strncmp(name, head, n) != 0 || name[n] < '0' || name[n] > '9') return -1;
    const long long v = strtoll(name + n, &end, 10);
    *rest = end + 1;
    return *end == '.' ? v : -1;
}

/* Has a layer after the last what makes its input of an embedding and a hidden state? */
static bool is_mtp(const src_source *s, const char *head, int64_t layer)
{
    const char *rest = "";
    for (size_t i = 0; i < s->n_tensors; i++)
        if (number_in(&rest, s->tensors[i].name, head) == layer &&
            strncmp(rest, "eh_proj.", 8) == 0)
            return true;
    return false;
}

static const char *layer_pattern(const arch_config *c)
{
    const arch_name *a = c->row->names;
    while (a->role != ARCH_N_ROLES && !arch_role_per_layer(a->role))
        a++;
    return a->role == ARCH_N_ROLES ? "" : a->name;
}

/* *mtp: how many layers follow the config's, all of them MTP's. */
static lq_status check_further(int64_t *mtp, const src_source *s, lq_err *err)
{
    const arch_config *c = &s->config;
    const int64_t said = s->mtp_said > 0 ? s->mtp_said : 0, n = arch_numbered_layers(c);
    int64_t known = -1; /* the last that was looked at */
    char head[256];
    const char *rest;
    head_of(head, c, layer_pattern(c));
    for (size_t i = 0; i < s->n_tensors; i++) {
        const int64_t layer = number_in(&rest, s->tensors[i].name, head);
        if (layer < n || layer == known) continue;
        const bool predicts = is_mtp(s, head, layer);
        if (!predicts && layer >= n + said)
            return lq_fail(err, LQ_EVALUE,
                           "%s: expected the %" PRId64
                           " layers or more that are stored, found %" PRId64 " (tensor '%.100s')",
                           c->layer_groups ? "num_hidden_groups"
                           : c->w.shortcut ? "num_layers"
                                           : "num_hidden_layers",
                           layer + 1, n, s->tensors[i].name);
        known = layer;
        if (predicts && layer - n + 1 > *mtp) *mtp = layer - n + 1;
    }
    return LQ_OK;
}

/* Those with a name of their own. */
static int64_t count_apart(const src_source *s)
{
    const arch_mtp *mtp = s->config.row->mtp;
    char head[256];
    const char *rest;
    int64_t n = 0;
    if (!mtp || mtp->counted || mtp->eagle) return 0;
    head_of(head, &s->config, mtp->layer);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const int64_t layer = number_in(&rest, s->tensors[i].name, head);
        n = layer >= n ? layer + 1 : n;
    }
    return n;
}

lq_status src_check_layers(src_source *s, lq_err *err)
{
    int64_t mtp = 0;
    if (s->config.mtp) return LQ_OK; /* a draft of one layer */
    const lq_status st = check_further(&mtp, s, err);
    if (st) return lq_wrap(err, st, "%s/config.json", s->path);
    if (!mtp) mtp = count_apart(s);
    if (s->mtp_said < 0 || mtp == s->mtp_said) return LQ_OK;
    if (mtp)
        return lq_fail(err, LQ_EVALUE,
                       "%s/config.json: num_nextn_predict_layers: expected the %" PRId64
                       " that are stored, found %" PRId64,
                       s->path, mtp, s->mtp_said);
    if (!s->config.row->mtp) return LQ_OK; /* nobody would look for them */
    return src_note(s, err,
                    "num_nextn_predict_layers is %" PRId64 ", and no such layer is stored: text is "
                    "generated without multi-token prediction",
                    s->mtp_said);
}
