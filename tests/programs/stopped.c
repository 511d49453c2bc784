/* Stops a child again and again, for longer than others wait for its permit, while it reads as fast
 * as it may; and reads itself meanwhile. */

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char block[1 << 18];

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

int main(void) {
    int file = open("block", O_RDWR | O_CREAT, 0600);
    if (file < 0 || write(file, block, sizeof block) != sizeof block)
        return 2;
    pid_t child = fork();
    if (child == 0)
        for (;;)
            if (pread(file, block, sizeof block, 0) < 0)
                _exit(3);
    for (int round = 0; round < 20; round++) {
        usleep(1000 + round * 300);
        kill(child, SIGSTOP);
        for (long end = now() + 150; now() < end;)
            if (pread(file, block, 512, 0) != 512)
                return 4;
        kill(child, SIGCONT);
    }
    printf("done\n");
    fflush(stdout);
    getchar();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}
