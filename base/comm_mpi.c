/* base/comm_mpi.c - ranks by MPI, whose library is loaded when a launcher started this process.
 *
 * Nothing of it is known when llmq is compiled. What libraries call alike has another form in each: Open MPI's
 * handles are addresses of its variables, MPICH's are 32-bit numbers, those of MPI 5.0's ABI (MPI: A Message-Passing
 * Interface Standard, version 5.0, chapter 20) small ones, as wide as a pointer. All fit in a uintptr_t, and are
 * passed in the same register. A message is sent in pieces, since a count is an int. */
#include "base/comm_impl.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Of a message, at once: what else goes to that rank, a sign of life among it, waits behind no more than this. */
enum { MPI_PIECE = 16 << 20 };

/* ---- what differs ---- */
typedef struct {
    const char *name;
    const char *
        sign; /* a symbol that these libraries alone have; NULL: "mpi_abi" is in the file's name, or any */
    uintptr_t world, byte, errors_return, status_ignore; /* 0: */
    const char *world_at, *byte_at, *errors_return_at;   /* ... the address of this symbol */
    int serialized;                                      /* MPI_THREAD_SERIALIZED */
} mpi_abi;

static const mpi_abi abis[] = {
    { "Open MPI", "ompi_mpi_comm_world", 0, 0, 0, 0, "ompi_mpi_comm_world", "ompi_mpi_byte",
      "ompi_mpi_errors_return", 2 },
    { "MPI 5.0", NULL, 0x101, 0x247, 0x143, 0, NULL, NULL, NULL, 2048 },
    { "MPICH", NULL, 0x44000000, 0x4c00010d, 0x54000001, 1, NULL, NULL, NULL, 2 },
};
enum { OPEN_MPI, MPI_5, MPICH };

#define MPI_CALLS(X)                                                           \
    X(Init_thread, (int *, char ***, int, int *))                              \
    X(Finalize, (void))                                                        \
    X(Abort, (uintptr_t, int))                                                 \
    X(Comm_rank, (uintptr_t, int *))                                           \
    X(Comm_size, (uintptr_t, int *))                                           \
    X(Comm_set_errhandler, (uintptr_t, uintptr_t))                             \
    X(Isend, (const void *, int, uintptr_t, int, int, uintptr_t, uintptr_t *)) \
    X(Irecv, (void *, int, uintptr_t, int, int, uintptr_t, uintptr_t *))       \
    X(Test, (uintptr_t *, int *, uintptr_t))                                   \
    X(Error_string, (int, char *, int *))                                      \
    X(Get_library_version, (char *, int *))

typedef struct {
    uintptr_t world, byte, errors_return, status_ignore;
    const mpi_abi *abi;
#define X(name, args) int(*name) args;
    MPI_CALLS(X)
#undef X
} mpi_api;

/* ---- the launcher ---- */
static int env_int(const char *name, int none)
{
    const char *v = getenv(name);
    char *end;
    if (!v || !*v) return none;
    const long n = strtol(v, &end, 10);
    return *end || n < 0 || n > 1 << 20 ? none : (int)n;
}

comm_launch comm_mpi_launch(void)
{
#define NEW "libmpi_abi.so.1", "libmpi_abi.so.0", "libmpi_abi.1.dylib", "libmpi_abi.0.dylib"
    static const char *const open_mpi[] = { "libmpi.so.40", "libmpi.40.dylib", NEW, NULL };
    static const char *const mpich[] = { "libmpi.so.12", "libmpich.so.12", "libmpi.12.dylib", NEW,
                                         NULL };
    static const char *const any[] = { "libmpi.so.40",    NEW, "libmpi.so.12", "libmpich.so.12",
                                       "libmpi.40.dylib", NULL };
#undef NEW
    static const struct {
        const char *rank, *size;
        const char *const *libs;
    } rows[] = { { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", open_mpi },
                 { "PMI_RANK", "PMI_SIZE", mpich },
                 { "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", any } };
    const char *given = getenv("LLMQ_MPI");
    if (given && strcmp(given, "none") == 0) return (comm_launch){ -1, 1, NULL, NULL };
    for (size_t i = 0; i < LQ_COUNT(rows); i++) {
        const int size = env_int(rows[i].size, 0);
        if (size > 1)
            return (comm_launch){ env_int(rows[i].rank, -1), size, rows[i].size, rows[i].libs };
    }
    return (comm_launch){ -1, 1, NULL, NULL };
}

/* ---- the library ---- */
static const mpi_abi *abi_of(void *lib, const char *file)
{
    const char *slash = strrchr(file, '/');
    if (dlsym(lib, abis[OPEN_MPI].sign)) return &abis[OPEN_MPI];
    return &abis[strstr(slash ? slash : file, "mpi_abi") ? MPI_5 : MPICH];
}

static uintptr_t handle_of(void *lib, uintptr_t value, const char *symbol)
{
    return symbol ? (uintptr_t)dlsym(lib, symbol) : value;
}

static lq_status load_api(mpi_api *api, void *lib, const char *file, lq_err *err)
{
    const char *missing = NULL;
    const mpi_abi *abi = api->abi = abi_of(lib, file);
    /* dlsym's object pointers are functions, which ISO C has no cast for */
#define X(name, args)                                \
    {                                                \
        void *at = dlsym(lib, "MPI_" #name);         \
        if (!at && !missing) missing = "MPI_" #name; \
        memcpy(&api->name, &at, sizeof at);          \
    }
    MPI_CALLS(X)
#undef X
    api->world = handle_of(lib, abi->world, abi->world_at);
    api->byte = handle_of(lib, abi->byte, abi->byte_at);
    api->errors_return = handle_of(lib, abi->errors_return, abi->errors_return_at);
    api->status_ignore = abi->status_ignore;
    if (!missing && (!api->byte || !api->errors_return)) missing = abi->byte_at;
    if (!missing) return LQ_OK;
    return lq_fail(err, LQ_EUNSUPPORTED, "mpi: %s: expected a library of MPI, found none of %s",
                   file, missing);
}

/* The first that is there. RTLD_GLOBAL: Open MPI's own plug-ins look for its symbols among all. */
static lq_status load_library(mpi_api *api, const char **file, const comm_launch *l, lq_err *err)
{
    const char *given = getenv("LLMQ_MPI");
    const char *const one[] = { given, NULL }, *const *names = given && *given ? one : l->libs;
    char why[200] = "";
    for (int i = 0; names[i]; i++) {
        void *lib = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
        if (lib) return load_api(api, lib, *file = names[i], err);
        if (!why[0]) snprintf(why, sizeof why, "%s", dlerror());
    }
    return lq_fail(err, LQ_EUNSUPPORTED,
                   "mpi: %s says %d ranks: expected the launcher's MPI library, found none (%s); "
                   "LLMQ_MPI=FILE names it, LLMQ_MPI=none makes each process one of its own",
                   l->who, l->size, why);
}

static lq_status mpi_check(const comm *c, int code, const char *what, lq_err *err)
{
    const mpi_api *api = c->own;
    char text[8192] = "";
    int n = 0;
    if (!code) return LQ_OK;
    api->Error_string(code, text, &n);
    return lq_fail(err, LQ_EIO, "mpi: %s failed: %.300s", what, text);
}

/* ---- moving ---- */
static lq_status next_piece(comm *c, comm_move *m, lq_err *err)
{
    const mpi_api *api = c->own;
    const size_t left = m->n - m->moved;
    m->piece = left < MPI_PIECE ? left : MPI_PIECE;
    m->request = 0;
    const int code = m->sends ? api->Isend(m->from + m->moved, (int)m->piece, api->byte, m->peer,
                                           m->tag, api->world, &m->request)
                              : api->Irecv(m->to + m->moved, (int)m->piece, api->byte, m->peer,
                                           m->tag, api->world, &m->request);
    return mpi_check(c, code, m->sends ? "a message out" : "a message in", err);
}

static lq_status mpi_test(comm *c, comm_move *m, lq_err *err)
{
    const mpi_api *api = c->own;
    int done = 0;
    lq_status s = mpi_check(c, api->Test(&m->request, &done, api->status_ignore),
                            m->sends ? "a message out" : "a message in", err);
    if (s || !done) return s;
    m->moved += m->piece;
    m->done = m->moved == m->n;
    return m->done ? LQ_OK : next_piece(c, m, err);
}

static void mpi_abort(comm *c, int code)
{
    const mpi_api *api = c->own;
    /* What was said is on its way through the launcher, which may drop it at the end of all. Another rank that ends the
     * job has something to say first. */
    nanosleep(&(struct timespec){ .tv_sec = c->ended ? 2 : 0, .tv_nsec = 200000000 }, NULL);
    api->Abort(api->world, code);
}

static void mpi_close(comm *c)
{
    const mpi_api *api = c->own;
    api->Finalize(); /* the library stays: it has threads and handlers of its own */
    free(c->own);
}

/* MPI_Init takes signals for itself, which are the program's. */
static int init_thread(const mpi_api *api, int *level)
{
    static const int kept[] = {
        SIGINT, SIGTERM, SIGHUP, SIGBUS, SIGSEGV, SIGFPE, SIGABRT, SIGPIPE
    };
    struct sigaction was[LQ_COUNT(kept)];
    for (size_t i = 0; i < LQ_COUNT(kept); i++)
        sigaction(kept[i], NULL, &was[i]);
    const int code = api->Init_thread(NULL, NULL, api->abi->serialized, level);
    for (size_t i = 0; i < LQ_COUNT(kept); i++)
        sigaction(kept[i], &was[i], NULL);
    return code;
}

static lq_status start_mpi(comm *c, const mpi_api *api, const char *file, const comm_launch *l,
                           lq_err *err)
{
    int level = 0, n = 0;
    char text[8192] = ""; /* MPI_MAX_LIBRARY_VERSION_STRING of all of them */
    if (init_thread(api, &level))
        return lq_fail(err, LQ_EIO, "mpi: %s: MPI_Init_thread failed", file);
    api->Comm_set_errhandler(api->world, api->errors_return);
    api->Comm_rank(api->world, &c->rank);
    api->Comm_size(api->world, &c->size);
    api->Get_library_version(text, &n);
    text[strcspn(text, ",\n")] = 0;
    snprintf(c->text, sizeof c->text, "%.100s", text[0] ? text : api->abi->name);
    lq_printable(c->text);
    if (c->size != l->size)
        return lq_fail(err, LQ_EVALUE,
                       "mpi: %s: expected %d ranks, which %s says, found %d: it is not the "
                       "launcher's library (LLMQ_MPI=FILE names another)",
                       file, l->size, l->who, c->size);
    if (level < api->abi->serialized)
        return lq_fail(err, LQ_EUNSUPPORTED,
                       "mpi: %s: expected calls from any one thread (level %d), found level %d",
                       file, api->abi->serialized, level);
    return LQ_OK;
}

lq_status comm_mpi_open(comm *c, const comm_launch *l, lq_err *err)
{
    static const comm_way way = {
        .start = next_piece, .test = mpi_test, .abort = mpi_abort, .close = mpi_close, .hangs = true
    };
    const char *file = NULL;
    mpi_api *api = calloc(1, sizeof *api);
    if (!api) return lq_fail(err, LQ_ENOMEM, "no memory for ranks");
    lq_status s = load_library(api, &file, l, err);
    c->own = api;
    if (!s) s = start_mpi(c, api, file, l, err);
    if (!s) c->way = &way;
    if (s) free(api);
    return s;
}
