/* Preloaded into a broker: its clocks are ahead by as many ns as the file $SHIFTED_CLOCK says, two int64: the clock of the
 * day and the clock of elapsed time. Waits until a time on the latter are translated back for the kernel. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static volatile int64_t *shift;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_shift(void) {
    const char *path = getenv("SHIFTED_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *mapped = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) shift = mapped;
    close(fd);
}

static int64_t shift_of(clockid_t clock) {
    if (!shift) return 0;
    switch (clock) {
        case CLOCK_REALTIME:
        case CLOCK_REALTIME_COARSE:
            return shift[0];
        case CLOCK_MONOTONIC:
        case CLOCK_MONOTONIC_COARSE:
        case CLOCK_MONOTONIC_RAW:
        case CLOCK_BOOTTIME:
            return shift[1];
        default:
            return 0;
    }
}

static void move(struct timespec *t, int64_t ns) {
    int64_t all = t->tv_sec * SECOND + t->tv_nsec + ns;
    if (all < 0) all = 0;
    t->tv_sec = all / SECOND;
    t->tv_nsec = all % SECOND;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    if (!real_gettime) real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real_gettime(clock, t);
    if (result == 0) move(t, shift_of(clock));
    return result;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}

int sem_clockwait(sem_t *restrict sem, clockid_t clock, const struct timespec *restrict until) {
    static int (*real)(sem_t *, clockid_t, const struct timespec *);
    struct timespec moved = *until;
    if (!real) real = (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");
    move(&moved, -shift_of(clock));
    return real(sem, clock, &moved);
}
