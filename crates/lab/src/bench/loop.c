/* System calls as a contestant of `tidegate-lab bench`: see child.rs for what it is asked. What counts
 * is the thread's processor time.
 *
 * Arguments: `pread` or `write`, and the file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static char page[4096];

static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static long switches(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nivcsw;
}

/* Makes 64 calls; whether all of them moved a page. */
static int block(int reads, int file) {
    int call, whole = 1;
    for (call = 0; call < 64; call++) {
        ssize_t moved = reads ? pread(file, page, sizeof page, 0) : write(file, page, sizeof page);
        whole &= moved == (ssize_t)sizeof page;
    }
    return whole;
}

int main(int count, char **arguments) {
    char line[256];
    int reads = count == 3 && strcmp(arguments[1], "pread") == 0;
    int file = count == 3 ? open(arguments[2], reads ? O_RDONLY : O_WRONLY) : -1;
    while (file >= 0 && fgets(line, sizeof line, stdin) != NULL) {
        double length, begin, used;
        long before, calls = 0;
        int core, whole = block(reads, file);
        cpu_set_t set;
        if (sscanf(line, "%lf %d", &length, &core) == 2) {
            CPU_ZERO(&set);
            CPU_SET((size_t)core, &set);
            sched_setaffinity(0, sizeof set, &set);
        }
        before = switches();
        begin = now(CLOCK_MONOTONIC);
        used = now(CLOCK_THREAD_CPUTIME_ID);
        do {
            whole &= block(reads, file);
            calls += 64;
        } while (now(CLOCK_MONOTONIC) - begin < length);
        used = now(CLOCK_THREAD_CPUTIME_ID) - used;
        if (whole && switches() == before) {
            printf("%.3f\n", used / (double)calls);
        } else {
            puts("-");
        }
        fflush(stdout);
    }
    return 0;
}
