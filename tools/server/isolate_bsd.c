/* tools/server/isolate_bsd.c - macOS and FreeBSD have other means, which are not used. */
#include "tools/server/isolate_int.h"

const char *iso_keep_rights(void) { return "Linux alone has it"; }

const char *iso_restrict_files(const iso_path *paths, size_t n)
{
    (void)paths, (void)n;
    return "Linux alone has Landlock";
}

const char *iso_restrict_calls(void) { return "Linux alone has seccomp"; }
