/* How the generator ends when it can't go on. Each prints one line on stderr and exits. */
#ifndef FAILURE_H
#define FAILURE_H

enum { EXIT_CONNECTION = 1, EXIT_USAGE = 2, EXIT_WRONG_REPLY = 3 };

#define PRINTF_LIKE __attribute__((noreturn, cold, format(printf, 1, 2)))

PRINTF_LIKE void fail_usage(const char *format, ...);
/* The server can't be reached, refuses, or went away. */
PRINTF_LIKE void fail_connection(const char *format, ...);
/* The server sent what the protocol or the job does not allow. */
PRINTF_LIKE void fail_reply(const char *format, ...);

#endif
