/* Explain a SIGBUS before the process ends: a page of a mapped file cannot be read. */
#ifndef PENSTOCK_BUS_ERROR_H
#define PENSTOCK_BUS_ERROR_H

#include <signal.h>
#include <string.h>
#include <unistd.h>

static char bus_error_text[512];
static size_t bus_error_size;
static int bus_error_code;

static void on_bus_error(int number) {
    (void) number;
    ssize_t written = write(2, bus_error_text, bus_error_size);
    (void) written;
    _exit(bus_error_code);
}

/* Return 0, or -1 if the handler cannot be installed. A longer text is cut off. */
static int explain_bus_error(const char *text, size_t size, int code) {
    struct sigaction action;
    bus_error_size = size < sizeof(bus_error_text) ? size : sizeof(bus_error_text);
    memcpy(bus_error_text, text, bus_error_size);
    bus_error_code = code;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_bus_error;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGBUS, &action, NULL);
}

#endif
