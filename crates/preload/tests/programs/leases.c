/* Threads that leave a gated call in every way there is, and a neighbour that must not notice:
 * `leases HOW COUNT`. The neighbour is another process at the same gate, which makes request after
 * request and says how long the longest took, in microseconds, without what it waited for a
 * processor; then how many it made. */
#include "check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

extern char **environ;

/* In memory that both processes have. */
static struct {
    atomic_int stop;
    atomic_long longest, requests;
    atomic_int started;
} *shared;

static int fd;
static int total;
static const char *library;

static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000L + time.tv_nsec / 1000;
}

/* How long this thread has waited for a processor. */
static long queued(int schedstat) {
    char text[128] = {0};
    if (schedstat < 0 || syscall(SYS_pread64, schedstat, text, sizeof text - 1, 0) <= 0)
        return 0;
    long ran = 0, waited = 0;
    sscanf(text, "%ld %ld", &ran, &waited);
    return waited / 1000;
}

static unsigned draw(unsigned below) {
    static _Thread_local unsigned long state;
    if (state == 0)
        state = 88172645463325252UL ^ (unsigned long)syscall(SYS_gettid) * 2654435761UL;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 16) % below;
}

static void neighbour(void) {
    int file = open("neighbour", O_RDWR | O_CREAT, 0600);
    CHECK(file >= 0);
    int schedstat = syscall(SYS_openat, AT_FDCWD, "/proc/thread-self/schedstat", O_RDONLY);
    CHECK(pwrite(file, bytes, 512, 0) == 512);
    shared->started = 1;
    while (!shared->stop) {
        long before = queued(schedstat), begin = now();
        CHECK(pwrite(file, bytes, 512, 0) == 512);
        long took = now() - begin, lost = queued(schedstat) - before;
        if (took - lost > shared->longest)
            shared->longest = took - lost;
        shared->requests++;
    }
    _exit(0);
}

/* A request that takes a while in the kernel. */
static void request(void) { CHECK(pread(fd, bytes, 1 << 16, 0) >= 0); }

/* The same, where it may also be interrupted or not be there any more. */
static void attempt(void) { pread(fd, bytes, 1 << 16, 0); }

static sigjmp_buf out;

static void jumps(int number) { siglongjmp(out, 1); }

/* Hundreds of microseconds at most until the signal: in the gate, or in the call. */
static void soon(void) {
    struct itimerval timer = {{0, 0}, {0, 1 + draw(400)}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void jump(void) {
    signal(SIGALRM, jumps);
    for (volatile int count = 0; count < total; count++) {
        if (sigsetjmp(out, 1) == 0) {
            soon();
            for (;;)
                attempt();
        }
    }
    request();
}

/* Leaves by a way that the shim does not see: GCC's own jump, which is no call. */
static void *frame[5];
static void hides(int number) { __builtin_longjmp(frame, 1); }

static void unseen(void) {
    signal(SIGALRM, hides);
    sigset_t none;
    sigemptyset(&none);
    for (volatile int count = 0; count < total; count++) {
        if (__builtin_setjmp(frame) == 0) {
            soon();
            for (;;)
                attempt();
        }
        sigprocmask(SIG_SETMASK, &none, NULL);
    }
    request();
}

/* Jumps, and never makes a call again. */
static void never(void) {
    signal(SIGALRM, jumps);
    for (int count = 0; count < total; count++) {
        pid_t child = fork();
        if (child == 0) {
            if (sigsetjmp(out, 1) == 0) {
                soon();
                for (;;)
                    attempt();
            }
            for (;;)
                syscall(SYS_pause);
        }
        usleep(2000 + draw(3000));
        /* It is there, it does nothing, and others go on. */
        request();
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    }
}

static void *loops(void *unused) {
    for (;;)
        attempt();
}

static void cancel(void) {
    for (int count = 0; count < total; count++) {
        pthread_t thread;
        void *result;
        CHECK(pthread_create(&thread, NULL, loops, NULL) == 0);
        usleep(draw(400));
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED);
    }
}

/* Stops a process that does nothing but requests, for longer than a lease. */
static void stop(void) {
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        for (int count = 0; count < 3; count++)
            CHECK(pthread_create(&thread, NULL, loops, NULL) == 0);
        loops(NULL);
    }
    for (int count = 0; count < total; count++) {
        usleep(1000 + draw(5000));
        CHECK(kill(child, SIGSTOP) == 0);
        usleep(draw(4) == 0 ? 150000 : draw(3000));
        CHECK(kill(child, SIGCONT) == 0);
    }
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static void killed(void) {
    for (int count = 0; count < total; count++) {
        pid_t child = fork();
        if (child == 0)
            loops(NULL);
        usleep(1000 + draw(2000));
        CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    }
}

static void executes(void) {
    for (int count = 0; count < total; count++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, loops, NULL) == 0);
            usleep(500 + draw(1000));
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

static void vforks(void) {
    for (int count = 0; count < total; count++) {
        pid_t child = vfork();
        if (child == 0) {
            attempt();
            if (count % 16 == 0)
                execl("/bin/true", "true", NULL);
            if (count % 16 == 1)
                kill(getpid(), SIGKILL);
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        request();
    }
}

static int cloned(void *unused) {
    attempt();
    syscall(SYS_exit, 0);
    return 0;
}

/* What has the memory of its parent, thread-local variables included, and runs beside it. */
static void clones(void) {
    static char stack[4][1 << 18];
    for (int count = 0; count < total; count++) {
        char *top = stack[count % 4] + sizeof stack[0];
        pid_t child = clone(cloned, top, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, NULL);
        CHECK(child > 0);
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (count % 2 == 0)
            request();
    }
}

static void *once(void *unused) {
    attempt();
    return NULL;
}

static void exits(void) {
    for (int count = 0; count < total; count += 4) {
        pthread_t threads[4];
        for (int index = 0; index < 4; index++)
            CHECK(pthread_create(&threads[index], NULL, once, NULL) == 0);
        for (int index = 0; index < 4; index++)
            CHECK(pthread_join(threads[index], NULL) == 0);
    }
}

/* A library makes the calls, and is gone before its thread is. */
static void *through_library(void *barrier) {
    void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    CHECK(loaded != NULL);
    void (*reads)(int, void *, size_t) = (void (*)(int, void *, size_t))dlsym(loaded, "reads");
    CHECK(reads != NULL);
    reads(fd, bytes, 4096);
    CHECK(dlclose(loaded) == 0);
    attempt();
    return NULL;
}

static void unloads(void) {
    for (int count = 0; count < total; count++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, through_library, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*does)(void);
    } ways[] = {
        {"jump", jump},     {"never", never},   {"cancel", cancel}, {"stop", stop},
        {"kill", killed},   {"exec", executes}, {"vfork", vforks},  {"clone", clones},
        {"exit", exits},    {"dlclose", unloads}, {"unseen", unseen},
    };
    CHECK(count >= 3);
    total = atoi(arguments[2]);
    library = arguments[3];
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, bytes, 1 << 18) == 1 << 18);
    pid_t other = fork();
    if (other == 0)
        neighbour();
    while (!shared->started)
        usleep(100);
    for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++)
        if (strcmp(ways[way].name, arguments[1]) == 0)
            ways[way].does();
    shared->stop = 1;
    int status;
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    printf("%ld %ld\n", (long)shared->longest, (long)shared->requests);
    return 0;
}
