/* Threads that are cancelled while the shim thinks: `cancelled HOW`. */
#include "check.h"

#include <pthread.h>
#include <spawn.h>
#include <sys/syscall.h>

extern char **environ;

static int fd;
static volatile int waiter;

/* Whether a thread sleeps, as the kernel says. */
static int sleeps(int thread) {
    char name[64], text[256] = {0};
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
    int file = open(name, O_RDONLY);
    CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0 && close(file) == 0);
    return strrchr(text, ')')[2] == 'S';
}

/* May be cancelled anywhere, and waits at a gate. */
static void *waits(void *unused) {
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    waiter = syscall(SYS_gettid);
    for (;;)
        write(fd, bytes, 10000);
}

/* Is cancelled as soon as it makes a call in which that may happen; to start a program is none. */
static void *spawns(void *unused) {
    char *arguments[] = {"/bin/true", NULL};
    pid_t child;
    int status, old;
    CHECK(pthread_cancel(pthread_self()) == 0);
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0);
    CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old) == 0);
    CHECK(old == PTHREAD_CANCEL_ENABLE);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return NULL;
}

/* To truncate a file is none either; that the shim asks for the thread's group must not be one. */
static void *truncates(void *unused) {
    CHECK(pthread_cancel(pthread_self()) == 0);
    CHECK(ftruncate(fd, 5) == 0);
    pthread_testcancel();
    CHECK(0);
}

int main(int count, char **arguments) {
    const char *how = arguments[1];
    pthread_t thread;
    void *result;
    /* Past the shim, so that a thread makes the first request of the process. */
    fd = syscall(SYS_openat, AT_FDCWD, "file", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    if (strcmp(how, "anywhere") == 0) {
        CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
        while (waiter == 0 || !sleeps(waiter))
            sched_yield();
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    } else if (strcmp(how, "spawn") == 0) {
        CHECK(pthread_create(&thread, NULL, spawns, NULL) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == NULL);
    } else {
        CHECK(pthread_create(&thread, NULL, truncates, NULL) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    return 0;
}
