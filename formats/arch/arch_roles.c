/* formats/arch/arch_roles.c - the kinds of the roles, and a role's entry in an architecture's names. */
#include "formats/arch/arch.h"

static const struct {
    const char *text;
    arch_kind kind;
} roles[] = {
#define X(name, text, kind) { text, kind },
    ARCH_ROLES(X)
#undef X
};

const char *arch_role_text(arch_role r) { return (unsigned)r < ARCH_N_ROLES ? roles[r].text : "?"; }
arch_kind arch_role_kind(arch_role r) { return roles[r].kind; }

bool arch_role_linear(arch_role r)
{
    return (unsigned)r < ARCH_N_ROLES && roles[r].kind == ARCH_LINEAR;
}

bool arch_role_per_layer(arch_role r) { return r >= R_ATTN_NORM && r < ARCH_N_ROLES; }
bool arch_role_per_expert(arch_role r) { return r >= R_EXPERT_GATE && r <= R_EXPERT_DOWN; }

/* Of every architecture. */
static const arch_name score_name = { R_SCORE, "^score", 0, BIAS_NO };

const arch_name *arch_name_of(const arch_config *c, arch_role r)
{
    if (r == R_SCORE) return c->head == HEAD_LABELS ? &score_name : NULL;
    for (const arch_name *n = c->row->names; n->role != ARCH_N_ROLES; n++)
        if (n->role == r) return n;
    return NULL;
}
