/* Four processes that write 128 KiB each, in different ways. Says how many milliseconds it took. */
#include "check.h"

#include <time.h>

static void work(int how) {
    char name[16];
    snprintf(name, sizeof name, "file%d", how);
    int fd = file(name);
    if (how == 0)
        for (int call = 0; call < 32; call++)
            CHECK(write(fd, bytes, 4096) == 4096);
    if (how == 1)
        CHECK(pwrite(fd, bytes, 131072, 0) == 131072);
    if (how == 2) {
        FILE *stream = fdopen(fd, "w");
        for (int call = 0; call < 8192; call++)
            CHECK(fputs("0123456789abcde\n", stream) >= 0);
        CHECK(fclose(stream) == 0);
    }
    if (how == 3)
        for (int call = 0; call < 4; call++)
            CHECK(dprintf(fd, "%32768d", call) == 32768);
    _exit(0);
}

int main(void) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int how = 0; how < 4; how++)
        if (fork() == 0)
            work(how);
    int status;
    while (wait(&status) > 0)
        CHECK(status == 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%ld\n", (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000);
    return 0;
}
