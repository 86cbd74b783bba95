/* Preloaded into a broker: fdatasync takes as many ms, and ends with the errno, that the file $SLOW_DISK says; less than
   0 ms is as long as the file says so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void ask(int *ms, int *code) {
    FILE *told = fopen(getenv("SLOW_DISK"), "r");
    *ms = *code = 0;
    if (told) {
        if (fscanf(told, "%d %d", ms, code) < 1) *ms = 0;
        fclose(told);
    }
}

int fdatasync(int fd) {
    static int (*real)(int);
    int ms, code;
    for (ask(&ms, &code); ms < 0; ask(&ms, &code)) usleep(5000);
    if (ms) usleep((useconds_t)ms * 1000);
    if (code) {
        errno = code;
        return -1;
    }
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return real(fd);
}
