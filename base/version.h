/* base/version.h - the version of program and library. */
#ifndef LLMQ_BASE_VERSION_H
#define LLMQ_BASE_VERSION_H

#define LLMQ_VERSION "0.1.0"

#endif
