/* Programs that forbid themselves system calls: `sandbox HOW`. Each has a file open that it has not
 * used yet, locks itself in, and writes ten times ten bytes. What it does not need kills it. */
#include "check.h"

#include <dlfcn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int fd;

/* A system call without the C library. */
static long unseen(long number, long first, long second, void *third) {
#ifdef __x86_64__
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(first), "S"(second), "d"(third)
                     : "rcx", "r11", "memory");
    return result;
#else
    return syscall(number, first, second, third);
#endif
}

#define UNSEEN 2

/* Lets only these calls pass, up to -1, or all but these. */
static int filtered(const int *calls, int kill, int by_syscall) {
    struct sock_filter steps[64] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    int count = 1;
    for (; *calls >= 0; calls++) {
        steps[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, *calls, 0, 1);
        steps[count++] = (struct sock_filter)BPF_STMT(
            BPF_RET | BPF_K, kill ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ALLOW);
    }
    steps[count++] = (struct sock_filter)BPF_STMT(
        BPF_RET | BPF_K, kill ? SECCOMP_RET_ALLOW : SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {count, steps};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (by_syscall == UNSEEN)
        return unseen(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    if (by_syscall)
        return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

#define ONLY(...) CHECK(filtered((int[]){__VA_ARGS__, -1}, 0, 0) == 0)
#define ALL_BUT(...) CHECK(filtered((int[]){__VA_ARGS__, -1}, 1, 0) == 0)

static void ten(int fd) {
    for (int round = 0; round < 10; round++) {
        errno = 77;
        CHECK(write(fd, bytes, 10) == 10 && errno == 77);
    }
}

static void *in_thread(void *unused) {
    ten(fd);
    return NULL;
}

/* By libseccomp, whose headers need not be there. */
static void by_library(void) {
    void *library = dlopen("libseccomp.so.2", RTLD_NOW);
    if (library == NULL)
        _exit(77);
    void *(*init)(unsigned) = dlsym(library, "seccomp_init");
    int (*add)(void *, unsigned, int, unsigned, ...) = dlsym(library, "seccomp_rule_add");
    int (*load)(void *) = dlsym(library, "seccomp_load");
    void *context = init(0x80000000u);
    int calls[] = {SYS_write, SYS_futex, SYS_exit_group};
    for (int index = 0; index < 3; index++)
        CHECK(add(context, 0x7fff0000u, calls[index], 0) == 0);
    CHECK(load(context) == 0);
}

int main(int count, char **arguments) {
    const char *how = arguments[1];
    int is(const char *name) { return strcmp(how, name) == 0; }
    int ends[2];
    fd = file("file");
    CHECK(pipe(ends) == 0);
    if (is("filter")) {
        ONLY(SYS_write, SYS_futex, SYS_exit_group);
        write(ends[1], bytes, 10);
    } else if (is("syscall")) {
        int calls[] = {SYS_write, SYS_futex, SYS_exit_group, -1};
        CHECK(filtered(calls, 0, 1) == 0);
    } else if (is("unseen")) {
        int calls[] = {SYS_write, SYS_futex, SYS_exit_group, -1};
        CHECK(filtered(calls, 0, UNSEEN) == 0);
    } else if (is("library")) {
        by_library();
    } else if (is("later")) {
        ONLY(SYS_write, SYS_openat, SYS_close, SYS_futex, SYS_exit_group);
        CHECK(close(fd) == 0);
        CHECK((fd = open("later", O_WRONLY | O_CREAT, 0600)) >= 0);
    } else if (is("no-futex")) {
        ONLY(SYS_write, SYS_exit_group);
        write(ends[1], bytes, 10);
    } else if (is("refused")) {
        struct sock_filter step = BPF_STMT(0xffff, 0);
        struct sock_fprog program = {1, &step};
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == -1 && errno == EINVAL);
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == -1 && errno == EFAULT);
        fd = file("later");
    } else if (is("unneeded")) {
        ALL_BUT(SYS_ptrace, SYS_socket);
        fd = file("later");
    } else if (is("stacked")) {
        ALL_BUT(SYS_fstatfs);
        ALL_BUT(SYS_fstat);
        ALL_BUT(SYS_readlinkat);
        ALL_BUT(SYS_getpid);
    } else if (is("mapping")) {
        CHECK(ftruncate(fd, 4096) == 0);
        ALL_BUT(SYS_fstat, SYS_newfstatat);
        CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED);
    } else if (is("fork")) {
        ALL_BUT(SYS_getpid, SYS_fstat, SYS_readlinkat);
        pid_t child = fork();
        int status = 0;
        CHECK(child == 0 || (waitpid(child, &status, 0) == child && status == 0));
        if (child > 0)
            _exit(0);
    } else if (is("thread")) {
        pthread_t thread;
        ALL_BUT(SYS_getpid, SYS_fstat, SYS_readlinkat);
        CHECK(pthread_create(&thread, NULL, in_thread, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        _exit(0);
    } else if (is("exec")) {
        char *rest[] = {arguments[2], NULL};
        ALL_BUT(SYS_fstatfs);
        execv(arguments[2], rest);
        CHECK(0);
    } else if (is("counter")) {
        CHECK(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0);
        ten(fd);
        CHECK(prctl(PR_SET_TSC, PR_TSC_ENABLE) == 0);
    } else if (is("strict") || is("strict-jump")) {
        jmp_buf place;
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
        if (is("strict-jump") && setjmp(place) == 0)
            longjmp(place, 1);
        ten(fd);
        syscall(SYS_exit, 0);
    }
    ten(fd);
    _exit(0);
}
