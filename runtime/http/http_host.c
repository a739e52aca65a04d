/* runtime/http/http_host.c - names that a request may be sent to.
 *
 * A page of evil.example can make its own name lead to 127.0.0.1 (DNS rebinding): to the browser
 * the server there is then of the page's own origin, and where no key is asked for the page could
 * read and ask everything. Its requests still say "Host: evil.example". So a server that has a list
 * of names answers those alone, beside localhost and addresses, which no DNS can lead elsewhere. */
#include "runtime/http/http_int.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <strings.h>

enum { NAME_MAX_BYTES = 255 };

/* The host of "host", "host:port", "[v6]" or "[v6]:port", without its brackets and a last dot. */
static bool host_of(char out[NAME_MAX_BYTES + 1], const char *field)
{
    const bool v6 = field[0] == '[';
    const char *from = field + v6;
    size_t n = strcspn(from, v6 ? "]" : ":");
    const char *rest = from + n + (v6 && from[n]);
    if ((v6 && !from[n]) || (*rest && (*rest != ':' || rest[1 + strspn(rest + 1, "0123456789")])))
        return false;
    if (!v6 && n && from[n - 1] == '.') n--;
    if (n == 0 || n > NAME_MAX_BYTES) return false;
    memcpy(out, from, n);
    out[n] = 0;
    return true;
}

static bool is_address(const char *host)
{
    struct in6_addr a;
    return inet_pton(AF_INET, host, &a) == 1 || inet_pton(AF_INET6, host, &a) == 1;
}

static bool is_local(const char *host)
{
    static const char name[] = "localhost";
    size_t n = strlen(host), k = sizeof name - 1;
    return n >= k && strcasecmp(host + n - k, name) == 0 && (n == k || host[n - k - 1] == '.');
}

bool http_host_served(const http_server *s, const char *field)
{
    char host[NAME_MAX_BYTES + 1];
    if (!s->o.check_host || !field) return true; /* no browser leaves the field out */
    if (!host_of(host, field)) return false;
    if (s->o.host && strcasecmp(s->o.host, host) == 0) return true;
    for (int i = 0; i < s->o.n_hosts; i++)
        if (strcmp(s->o.hosts[i], "*") == 0 || strcasecmp(s->o.hosts[i], host) == 0) return true;
    return is_local(host) || is_address(host);
}
