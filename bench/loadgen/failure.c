#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((noreturn)) static void end(int code, const char *kind, const char *format,
                                          va_list arguments)
{
    fflush(stdout);
    fprintf(stderr, "loadgen: %s: ", kind);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(code);
}

void fail_usage(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    end(EXIT_USAGE, "usage", format, arguments);
}

void fail_connection(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    end(EXIT_CONNECTION, "connection", format, arguments);
}

void fail_reply(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    end(EXIT_WRONG_REPLY, "wrong reply", format, arguments);
}
