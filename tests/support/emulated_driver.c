/* tests/support/emulated_driver.c - see emulated_driver.h. */
#include "tests/support/emulated_driver.h"

#include <dlfcn.h>

static const dev_ops *real;
static dev_ops table;

/* Libraries stay, as CUDA's runtime and llmq keep them. */
static lq_status call(const char *from, const char *name, lq_err *err)
{
    void *lib = dlopen(from, RTLD_NOW | RTLD_LOCAL), *at = lib ? dlsym(lib, name) : NULL;
    int (*f)(void);
    if (!at) return lq_fail(err, LQ_EDEVICE, "no GPU: %s", dlerror());
    memcpy(&f, &at, sizeof f);
    const int r = f();
    return r ? lq_fail(err, LQ_EDEVICE, "no GPU: %s: %d", name, r) : LQ_OK;
}

static lq_status driver(const char *name, lq_err *err) { return call("libcuda.so.1", name, err); }

/* Once: CUDA's runtime keeps what came of it. */
static lq_status init(lq_err *err)
{
    static lq_status s;
    static lq_err why;
    static bool done;
    if (!done) s = driver("cuInit", &why);
    done = true;
    if (s && err) *err = why;
    return s;
}

static int count(lq_err *why) { return init(why) ? 0 : real->count(why); }

static lq_status open_device(dev *d, int index, lq_err *err)
{
    lq_status s = init(err);
    if (!s) s = driver("cuDevicePrimaryCtxRetain", err);
    if (!s) s = real->open(d, index, err);
    if (!s) d->ops = &table;
    return s;
}

static void fail(dev *d, const char *name)
{
    if (!d->bad) d->bad = driver(name, &d->why);
}

static void *alloc(dev *d, size_t n)
{
    fail(d, "cuModuleLoadData");
    return real->alloc(d, n);
}

static lq_status sync_device(dev *d, lq_err *err)
{
    fail(d, "cuStreamSynchronize");
    return real->sync(d, err);
}

static lq_status link_devices(dev_link **l, dev *d, lq_err *err)
{
    lq_status s = driver("ncclCommInitAll", err);
    return s ? s : real->link(l, d, err);
}

static const char blas_library[] = "libcublas.so.13";
static void libraries(int devices)
{
    (void)!dlopen(blas_library, RTLD_NOW | RTLD_LOCAL);
    real->libraries(devices);
}

static bool blas(dev *d)
{
    lq_err none;
    return !call(blas_library, "cublasCreate_v2", &none) && real->blas(d);
}

const dev_ops *emulated_driver(const dev_ops *ops)
{
    real = ops;
    table = *ops;
    table.count = count;
    table.open = open_device;
    table.alloc = alloc;
    table.sync = sync_device;
    table.link = link_devices;
    table.libraries = libraries;
    table.blas = blas;
    return &table;
}
