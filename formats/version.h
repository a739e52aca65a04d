/* formats/version.h - the version of program and library. */
#ifndef LLMQ_FORMATS_VERSION_H
#define LLMQ_FORMATS_VERSION_H

#define LLMQ_VERSION "0.1.0"

#endif
