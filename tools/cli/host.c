/* tools/cli/host.c */
#include "tools/cli/host.h"

#include "kernels/core/cpu.h"
#include "kernels/device.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__)
/* X(name as both compilers know it) */
#define ISAS(X) \
    X("sse4.2") \
    X("avx2") X("fma") X("avx512f") X("avx512bw") X("avx512vl") X("avx512vnni") X("avx512bf16")
void host_isas(char *out, size_t n)
{
    out[0] = 0;
#define X(name)                                                    \
    if (__builtin_cpu_supports(name)) {                            \
        size_t used = strlen(out);                                 \
        snprintf(out + used, n - used, used ? " %s" : "%s", name); \
    }
    ISAS(X)
#undef X
}
#elif defined(__aarch64__)
void host_isas(char *out, size_t n)
{
    snprintf(out, n, "neon%s%s%s", cpu_has_neon_dot() ? " dotprod" : "",
             cpu_has_neon_i8mm() ? " i8mm" : "", cpu_has_neon_bf16() ? " bf16" : "");
}
#else
void host_isas(char *out, size_t n) { snprintf(out, n, "generic"); }
#endif

static void add_device(char *out, size_t n, int i, const dev *d)
{
    const size_t used = strlen(out);
    const bool compiled = d->code > d->ptx;
    const int code = compiled ? d->ptx : d->code;
    snprintf(out + used, n - used, ", cuda:%d %s (%d.%d, %s %d.%d%s)", i, d->name, d->cc / 10,
             d->cc % 10, compiled ? "PTX of" : "code for", code / 10, code % 10,
             compiled ? " that its driver compiles at the first start" : "");
}

void host_devices(char *out, size_t n)
{
    lq_err err = { "" };
    const int count = dev_count(&err);
    snprintf(out, n, count ? "cpu" : "cpu (%s)", err.msg);
    for (int i = 0; i < count; i++) {
        dev d;
        char name[20];
        size_t used = strlen(out);
        snprintf(name, sizeof name, "cuda:%d", i);
        if (dev_open(&d, name, &err)) {
            snprintf(out + used, n - used, ", %s", err.msg);
            continue;
        }
        add_device(out, n, i, &d);
        d.ops->close(&d);
    }
}

/* The number in a file of one, such as "0x10de"; 0: there is none. */
static unsigned long number_in(const char *path)
{
    char line[32];
    FILE *f = fopen(path, "r");
    const bool got = f && fgets(line, sizeof line, f);
    if (f) fclose(f);
    return got ? strtoul(line, NULL, 0) : 0;
}

/* Linux, Documentation/ABI/testing/sysfs-bus-pci: class 0x03.... is a display, 0x10de NVIDIA. */
static bool on_the_bus(void)
{
    static const char bus[] = "/sys/bus/pci/devices";
    DIR *d = opendir(bus);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        char path[512];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%.200s/vendor", bus, e->d_name);
        if (number_in(path) != 0x10de) continue;
        snprintf(path, sizeof path, "%s/%.200s/class", bus, e->d_name);
        found = number_in(path) >> 16 == 3;
    }
    if (d) closedir(d);
    return found;
}

bool host_gpu_node(void)
{
    return access("/dev/nvidiactl", F_OK) == 0 ||
           (access("/dev/dxg", F_OK) == 0 && access("/usr/lib/wsl/lib/libcuda.so.1", F_OK) == 0);
}

bool host_gpu(void) { return host_gpu_node() || on_the_bus(); }

void host_driver(char *out, size_t n)
{
    char line[256];
    FILE *f = fopen("/sys/module/nvidia/version", "r");
    const bool known = f && fgets(line, sizeof line, f);
    if (f) fclose(f);
    if (!known) strcpy(line, host_gpu_node() ? "there, of a version that is not told" : "");
    snprintf(out, n, "%.*s", (int)strcspn(line, "\n"), line);
}
