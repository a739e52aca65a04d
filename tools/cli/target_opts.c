/* tools/cli/target_opts.c */
#include "tools/cli/target_opts.h"

#include "tools/cli/progress.h"

#include <cjson/cJSON.h>

#define F(field) offsetof(opt_target, field)
const opt_row opt_target_rows[OPT_TARGET_N] = {
    { "branch", 0, OPT_STR, F(branch), .arg = "NAME", .help = "git: branch (default: main)" },
    { "username", 0, OPT_STR, F(username), .arg = "NAME",
      .help = "oci: for the registry (default: as docker's config.json says)" },
    { "password-file", 0, OPT_STR, F(password_file), .arg = "FILE",
      .help = "oci: password or token in its first line; - is stdin" },
    { "ca", 0, OPT_STR, F(ca), .arg = "FILE",
      .help = "oci: certificates to trust in place of the system's (PEM)" },
    { "plain-http", 0, OPT_FLAG, F(plain_http),
      .help =
          "oci: http where the registry is not on the loopback; whoever listens sees everything" },
    { "timeout", 0, OPT_INT, F(timeout), .def = "60", .lo = 1, .hi = 3600, .arg = "SECONDS",
      .help = "oci, git, hf: in which a remote side must carry 1 KiB for each of them (git itself: "
              "in ten "
              "times as many), else it is given up" },
};

lq_status target_opts_check(const opt_target *o, const char *target, lq_err *err)
{
    const struct {
        const char *name, *prefix;
        bool given;
    } t[] = { { "branch", "git:", o->branch != NULL },
              { "username", "oci:", o->username != NULL },
              { "password-file", "oci:", o->password_file != NULL },
              { "ca", "oci:", o->ca != NULL },
              { "plain-http", "oci:", o->plain_http } };
    for (size_t i = 0; i < LQ_COUNT(t); i++)
        if (t[i].given && strncmp(target, t[i].prefix, strlen(t[i].prefix)) != 0)
            return lq_fail(err, LQ_EUSAGE,
                           "--%s: expected a target that begins with %s, found '%.100s'", t[i].name,
                           t[i].prefix, target);
    if (o->plain_http && o->ca)
        return lq_fail(err, LQ_EUSAGE, "--plain-http does not go with --ca");
    return LQ_OK;
}

static void target_opts_say(const char *text) { prog_say(LOG_WARN, "%s", text); }

pub_opts target_opts(const opt_target *o, const cmd_ctx *c)
{
    return (pub_opts){ .branch = o->branch,
                       .username = o->username,
                       .password_file = o->password_file,
                       .ca = o->ca,
                       .plain_http = o->plain_http,
                       .patience = (int)o->timeout,
                       .say = target_opts_say,
                       .job = c->job };
}

static lq_status report_json(const char *target, const pub_files *fs, const pub_result *r,
                             const char *path, lq_err *err)
{
    cJSON *doc = cJSON_CreateObject();
    cJSON_AddStringToObject(doc, "target", target);
    if (r->digest[0])
        cJSON_AddStringToObject(doc, "digest", r->digest);
    else
        cJSON_AddNullToObject(doc, "digest");
    cJSON *list = cJSON_AddArrayToObject(doc, "files");
    for (size_t i = 0; i < fs->n; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "name", fs->f[i].name);
        cJSON_AddNumberToObject(o, "bytes", (double)fs->f[i].bytes);
        if (fs->f[i].sha256[0] || !fs->f[i].git_sha1[0])
            cJSON_AddStringToObject(o, "sha256", fs->f[i].sha256);
        else
            cJSON_AddStringToObject(o, "git_sha1", fs->f[i].git_sha1);
        cJSON_AddItemToArray(list, o);
    }
    cJSON_AddNumberToObject(doc, "bytes", (double)pub_bytes(fs));
    cJSON_AddNumberToObject(doc, "sent", (double)r->sent);
    if (path) cJSON_AddStringToObject(doc, "path", path);
    return cmd_print_json(doc, err);
}

lq_status target_report(const cmd_ctx *c, const char *target, const pub_files *fs,
                        const pub_result *r, const char *verb, const char *path, lq_err *err)
{
    char size[16];
    if (c->json) return report_json(target, fs, r, path, err);
    printf("%s: %s %zu files, %s%s%s%s\n", target, verb, fs->n,
           opt_size_text(size, sizeof size, (double)pub_bytes(fs)),
           r->same ? ", which were all there" : "", r->digest[0] ? ", " : "", r->digest);
    if (path) printf("%s\n", path);
    return LQ_OK;
}
