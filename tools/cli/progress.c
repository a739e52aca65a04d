/* tools/cli/progress.c - messages and progress on stderr, signals. */
#include "tools/cli/progress.h"

#include "base/clock.h"
#include "base/os.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { BAR = 24, LINE = 160 };
static const double redraw_secs = 0.1, plain_secs = 10.0;

static atomic_int stop;
static volatile sig_atomic_t signal_seen;

static struct {
    pthread_mutex_t lock;
    log_level level;
    bool terminal, drawn, quiet;
    char what[64];
    double started, shown;
    prog_listener listener; /* NULL: stderr */
    void *user;
} g = { .lock = PTHREAD_MUTEX_INITIALIZER, .level = LOG_INFO };

static int format_time(char *buf, size_t n, double secs)
{
    long s = secs < 0 ? 0 : secs > 359999 ? 359999 : (long)(secs + 0.5);
    if (s >= 3600) return snprintf(buf, n, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    return snprintf(buf, n, "%ld:%02ld", s / 60, s % 60);
}

/* "[###...] ", or nothing where there is no room for one. */
static void draw_bar(char bar[64], double part, int width)
{
    bar[0] = 0;
    if (width <= 0 || width >= 60) return;
    int full = (int)(part * width);
    bar[0] = '[';
    memset(bar + 1, '#', (size_t)full);
    memset(bar + 1 + full, '.', (size_t)(width - full));
    memcpy(bar + 1 + width, "] ", 3);
}

static double fraction(double x) { return !(x > 0) ? 0 : x > 1 ? 1 : x; }

int prog_phase_line(char *buf, size_t n, const prog_phase *p, size_t rss, int bar_width)
{
    char all[64], part[64], left[32] = "", mem[32];
    draw_bar(all, fraction(p->all), bar_width);
    draw_bar(part, fraction(p->part), bar_width / 2);
    if (p->secs_left >= 0) {
        memcpy(left, "left ", 6);
        format_time(left + 5, sizeof left - 5, p->secs_left);
    }
    return snprintf(buf, n, "%s%3.0f%%  %-11s %s  %s%3.0f%%  %s%s%s", all, 100 * fraction(p->all),
                    left, opt_size_text(mem, sizeof mem, (double)rss), part,
                    100 * fraction(p->part), p->what, *p->detail ? "  " : "", p->detail);
}

/* "1234", "2.10M" */
static void format_count(char text[16], double x)
{
    if (x < 1e5)
        snprintf(text, 16, x < 100 ? "%.3g" : "%.0f", x);
    else
        snprintf(text, 16, x < 1e9 ? "%.2fM" : "%.2fG", x / (x < 1e9 ? 1e6 : 1e9));
}

int prog_line(char *buf, size_t n, const char *what, double done, double total, double secs,
              size_t rss, int bar_width)
{
    char bar[64], rate[32] = "", eta[32], mem[32], now[16], end[16], speed[16];
    double part = total > 0 ? fraction(done / total) : 0;
    draw_bar(bar, part, bar_width);
    format_count(now, done);
    format_count(end, total);
    format_count(speed, secs > 0 ? done / secs : 0);
    if (secs > 0 && done > 0) snprintf(rate, sizeof rate, "  %s/s", speed);
    if (part > 0 && part < 1)
        memcpy(eta, "left ", 6), format_time(eta + 5, sizeof eta - 5, secs / part - secs);
    else
        memcpy(eta, "in ", 4), format_time(eta + 3, sizeof eta - 3, secs);
    return snprintf(buf, n, "%-28s %s%3.0f%%  %s/%s%s  %s  %s", what, bar, 100 * part, now, end,
                    rate, eta, opt_size_text(mem, sizeof mem, (double)rss));
}

/* With the lock held: a terminal's progress line is erased, so that something else can be said. */
static void erase(void)
{
    if (g.drawn && g.terminal) fputs("\r\033[K", stderr);
    g.drawn = false;
}

/* With the lock held: a line in place of the last one, cut to the terminal's width. */
static void put_line(char *line, double now)
{
    struct winsize size;
    if (g.terminal && !ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col > 0 &&
        strlen(line) >= size.ws_col)
        line[size.ws_col - 1] = 0;
    fprintf(stderr, g.terminal ? "\r%s\033[K" : "%s\n", line);
    fflush(stderr);
    g.drawn = true;
    g.shown = now;
}

void prog_show(const prog_phase *p)
{
    char line[LINE];
    pthread_mutex_lock(&g.lock);
    const double now = lq_now();
    if (!g.what[0]) {
        snprintf(g.what, sizeof g.what, "phases");
        g.shown = g.terminal ? 0 : now;
    }
    if (!g.quiet && g.level >= LOG_INFO &&
        now - g.shown >= (g.terminal ? redraw_secs : plain_secs)) {
        prog_phase_line(line, sizeof line, p, os_memory_used(), g.terminal ? BAR : 0);
        put_line(line, now);
    }
    pthread_mutex_unlock(&g.lock);
}

static void progress_report(void *user, const char *what, double done, double total)
{
    (void)user;
    pthread_mutex_lock(&g.lock);
    double now = lq_now();
    if (strncmp(what, g.what, sizeof g.what - 1) != 0) {
        erase();
        snprintf(g.what, sizeof g.what, "%s", what);
        g.started = now;
        g.shown = g.terminal ? 0 : now; /* plain lines: only for work that takes a while */
    }
    bool last = done >= total;
    if (!g.quiet && g.level >= LOG_INFO &&
        (now - g.shown >= (g.terminal ? redraw_secs : plain_secs) || (last && g.terminal))) {
        char line[LINE];
        prog_line(line, sizeof line, what, done, total, now - g.started, os_memory_used(),
                  g.terminal ? BAR : 0);
        put_line(line, now);
    }
    pthread_mutex_unlock(&g.lock);
}

void prog_end(void)
{
    pthread_mutex_lock(&g.lock);
    erase();
    fflush(stderr);
    g.what[0] = 0;
    pthread_mutex_unlock(&g.lock);
}

void prog_say(log_level level, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&g.lock);
    if (g.listener) {
        char text[1024];
        vsnprintf(text, sizeof text, fmt, ap);
        g.listener(g.user, level, text);
    }
    if (g.listener || g.quiet || level > g.level) {
        pthread_mutex_unlock(&g.lock);
        va_end(ap);
        return;
    }
    erase();
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    fflush(stderr);
    pthread_mutex_unlock(&g.lock);
}

void prog_quiet(void)
{
    pthread_mutex_lock(&g.lock);
    g.quiet = true;
    pthread_mutex_unlock(&g.lock);
}

void prog_listen(prog_listener f, void *user)
{
    pthread_mutex_lock(&g.lock);
    g.listener = f;
    g.user = user;
    pthread_mutex_unlock(&g.lock);
}

static void on_signal(int sig)
{
    signal_seen = sig;
    atomic_store(&stop, 1);
}

/* Mapped files are read where they lie: one that is cut short meanwhile, or whose disk fails, is
 * seen as this signal. Nothing can be undone here; unfinished output has no name. Threads that read
 * together get it together: the first says so and ends them all. */
static void on_bus_error(int sig)
{
    static const char text[] = "llmq: a file that is being read was cut short, or cannot be read\n";
    static atomic_flag said = ATOMIC_FLAG_INIT;
    (void)sig;
    while (atomic_flag_test_and_set(&said))
        pause();
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(1);
}

int prog_signal(void) { return signal_seen; }

const lq_job *prog_start(log_level level)
{
    static const lq_job job = { .report = progress_report, .stop = &stop };
    g.level = level;
    const char *term = getenv("TERM");
    g.terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    struct sigaction a = { .sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND };
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    struct sigaction was;
    if (sigaction(SIGHUP, NULL, &was) == 0 && was.sa_handler != SIG_IGN) /* as nohup has it */
        sigaction(SIGHUP, &a, NULL);
    a.sa_handler = on_bus_error;
    a.sa_flags = 0; /* it stays for the other threads */
    sigaction(SIGBUS, &a, NULL);
    signal(SIGXFSZ, SIG_IGN); /* a file above the process's limit is an error of a write */
    return &job;
}
