/* tools/cli/progress.h - what goes to stderr: messages by level, and progress of long work.
 *
 * On a terminal one line is redrawn: what, a bar, percent, rate, time left, memory. Elsewhere a
 * plain line every few seconds. SIGINT, SIGTERM and, unless it is ignored, SIGHUP set the job's
 * stop flag; a second one kills. */
#ifndef LLMQ_TOOLS_CLI_PROGRESS_H
#define LLMQ_TOOLS_CLI_PROGRESS_H

#include "tools/cli/opt.h"

/* Install the signal handlers and return the process's job. `level`: LOG_INFO shows progress. */
const lq_job *prog_start(log_level level);
/* The work is done, and the progress line goes. */
void prog_end(void);
/* The signal that set the stop flag, or 0. */
int prog_signal(void);
/* From now on nothing is shown: another process speaks for this one. */
void prog_quiet(void);
/* One line to stderr, below the progress line, when --log-level shows it. */
__attribute__((format(printf, 2, 3))) void prog_say(log_level level, const char *fmt, ...);

/* Messages go to f in place of stderr, whatever their level; NULL: back. For another program's
 * process; before the first message. Any thread calls f, one at a time. */
typedef void (*prog_listener)(void *user, log_level level, const char *text);
void prog_listen(prog_listener f, void *user);

/* A job of phases: one line with a bar for all of it and one for the phase. secs_left < 0: not
 * known. */
typedef struct {
    const char *what;   /* "layer 3/12 rounding" */
    const char *detail; /* "down  loss 0.41 x rtn", or "" */
    double all, part;   /* 0..1 */
    double secs_left;
} prog_phase;
void prog_show(const prog_phase *p);
/* The same as plain text, as prog_line. */
int prog_phase_line(char *buf, size_t n, const prog_phase *p, size_t rss_bytes, int bar_width);

/* One line of progress as plain text (no control characters), for `secs` seconds of work; exposed
 * for its test. Returns the length. */
int prog_line(char *buf, size_t n, const char *what, double done, double total, double secs,
              size_t rss_bytes, int bar_width);

#endif
