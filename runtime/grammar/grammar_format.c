/* runtime/grammar/grammar_format.c - JSON schema's `format` values as regular expressions.
 *
 * Each describes a part of what its standard allows, never more: dates exist (29 February in leap
 * years alone), hours end at 23:59:59, names are ASCII. Sources: JSON schema 2020-12 validation 7.3
 * and the standards it names (RFC 3339, 5321, 1123, 2673, 4291, 3986, 9562, 6901). */
#include "runtime/grammar/grammar_schema.h"

#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define DATE                                                                       \
    "((000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-"                       \
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)" \
    "|02-(0[1-9]|1[0-9]|2[0-8]))"                                                  \
    "|([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)-02-29)"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 BYTE "(\\." BYTE "){3}"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST LABEL "(\\." LABEL "){0,3}"
#define H16 "[0-9A-Fa-f]{1,4}"
#define HEX "[0-9A-Fa-f]"
#define PATH "[A-Za-z0-9._~!$&'()*+,;=:@-]|%" HEX HEX

static const struct {
    const char *name, *regex;
} formats[] = {
    { "date", DATE },
    { "time", TIME },
    { "date-time", DATE "T" TIME },
    { "duration", "P([1-9][0-9]{0,2}W|[1-9][0-9]{0,2}D(T[1-9][0-9]?H)?"
                  "|[1-9][0-9]?Y([1-9][0-9]?M([1-9][0-9]?D)?)?|T[1-9][0-9]?H([0-5]?[0-9]M)?"
                  "|T[1-9][0-9]?M([0-5]?[0-9]S)?|T[1-9][0-9]?S)" },
    { "email", "[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,16}){0,2}@" LABEL "(\\." LABEL "){1,3}" },
    { "hostname", HOST },
    { "ipv4", IPV4 },
    { "ipv6", "(" H16 ":){7}" H16 "|(" H16 ":){1,6}:" H16 "|:(:" H16 "){1,6}|::" },
    { "uuid", HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}" },
    { "uri", "(https?|ftp)://" HOST "(:[1-9][0-9]{0,3})?(/(" PATH "){0,64}){0,16}"
             "(\\?(" PATH "|/){0,64})?(#(" PATH "|/){0,64})?" },
    { "json-pointer", "(/([^/~]|~[01]){0,64}){0,16}" },
};

const char *gs_format(const char *name)
{
    for (size_t i = 0; i < LQ_COUNT(formats); i++)
        if (strcmp(formats[i].name, name) == 0) return formats[i].regex;
    return NULL;
}
