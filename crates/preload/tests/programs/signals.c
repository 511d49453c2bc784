/* Signal handlers that write while the thread reads, jumps that leave a call for good, and threads
 * that are cancelled inside one. */
#include "check.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

static int fd, ends[2];
static volatile sig_atomic_t handled;
static sigjmp_buf out;

static void writes(int number) {
    int kept = errno;
    CHECK(write(fd, bytes, 10) == 10);
    handled++;
    errno = kept;
}

static void jumps(int number) { siglongjmp(out, 1); }

static void every(int milliseconds) {
    struct itimerval timer = {.it_value = {0, milliseconds * 1000}};
    timer.it_interval = timer.it_value;
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void *waits(void *argument) {
    FILE *stream = argument;
    char byte;
    if (stream == NULL)
        read(ends[0], &byte, 1);
    else
        fgetc(stream);
    return NULL;
}

static void cancelled(void *argument) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, waits, argument) == 0);
    usleep(20000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
}

int main(void) {
    char byte;
    fd = file("file");
    CHECK(pipe(ends) == 0);

    /* A handler that interrupts a read that waits. */
    signal(SIGALRM, writes);
    siginterrupt(SIGALRM, 1);
    every(5);
    while (handled < 5)
        CHECK(read(ends[0], &byte, 1) == -1 && errno == EINTR);
    every(0);
    int handlers = handled;

    /* A handler that never returns. */
    signal(SIGALRM, jumps);
    if (sigsetjmp(out, 1) == 0) {
        every(5);
        read(ends[0], &byte, 1);
        CHECK(0);
    }
    every(0);
    CHECK(write(fd, bytes, 100) == 100);

    cancelled(NULL);
    FILE *stream = fdopen(ends[0], "r");
    CHECK(stream != NULL);
    cancelled(stream);
    /* The stream is free again, or this would hang. */
    CHECK(write(ends[1], "x", 1) == 1 && fgetc(stream) == 'x');
    CHECK(write(fd, bytes, 1000) == 1000);
    printf("%d\n", handlers);
    return 0;
}
