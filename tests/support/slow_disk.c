/* Preloaded into a broker: fdatasync takes as many ms, and ends with the errno, that the file $SLOW_DISK says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int fdatasync(int fd) {
    static int (*real)(int);
    int ms = 0, code = 0;
    FILE *told = fopen(getenv("SLOW_DISK"), "r");
    if (told) {
        if (fscanf(told, "%d %d", &ms, &code) < 1) ms = 0;
        fclose(told);
    }
    if (ms) usleep((useconds_t)ms * 1000);
    if (code) {
        errno = code;
        return -1;
    }
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return real(fd);
}
