/* Processes: every program of the chain writes ten bytes, whoever started it and in whatever way.
 *
 *     processes            forks, threads and exits
 *     processes N          the rest of a chain of programs
 *     processes write      only writes
 */
#include "check.h"

#include <pthread.h>
#include <spawn.h>
#include <sys/syscall.h>

extern char **environ;

static void ten(void) {
    int fd = open("file", O_WRONLY | O_CREAT | O_APPEND, 0600);
    CHECK(fd >= 0 && write(fd, bytes, 10) == 10 && close(fd) == 0);
}

static void done(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void *thread(void *fd) {
    for (int call = 0; call < 100; call++)
        CHECK(write((int)(long)fd, bytes, 10) == 10);
    return NULL;
}

/* A chain of programs, each started in another way by the one before. */
static void chain(char *self, int left) {
    char number[8], *arguments[] = {self, number, NULL}, *last[] = {self, "write", NULL};
    snprintf(number, sizeof number, "%d", left - 1);
    ten();
    pid_t child;
    switch (left) {
    case 9: execv(self, arguments); break;
    case 8: execveat(AT_FDCWD, self, arguments, environ, 0); break;
    case 7: execvp(self, arguments); break;
    case 6: execvpe("processes", arguments, environ); break;
    case 5: execl(self, self, number, NULL); break;
    case 4: execlp("processes", self, number, NULL); break;
    case 3: fexecve(open(self, O_RDONLY | O_CLOEXEC), arguments, environ); break;
    case 2:
        child = vfork();
        if (child == 0) {
            /* What is closed and replaced here must not confuse the parent. */
            close(0);
            dup2(1, 0);
            execv(self, last);
            _exit(1);
        }
        done(child);
        execv(self, arguments);
        break;
    case 1:
        CHECK(posix_spawn(&child, self, NULL, NULL, last, environ) == 0);
        done(child);
        CHECK(posix_spawnp(&child, "processes", NULL, NULL, last, environ) == 0);
        done(child);
        CHECK(system("processes write") == 0);
        CHECK(pclose(popen("processes write", "r")) == 0);
        exit(0);
    }
    CHECK(0);
}

int main(int count, char **arguments) {
    char self[4096] = {0};
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    if (count > 1 && strcmp(arguments[1], "write") == 0) {
        ten();
        _exit(0);
    }
    if (count > 1)
        chain(self, atoi(arguments[1]));

    int fd = file("shared");
    CHECK(write(fd, bytes, 10) == 10); /* 1 */
    pid_t child = fork();
    if (child == 0) {
        CHECK(write(fd, bytes, 10) == 10); /* 2 */
        pid_t grandchild = fork();
        if (grandchild == 0) {
            CHECK(write(fd, bytes, 10) == 10); /* 3 */
            /* The number means something else here, and not in the parent. */
            CHECK(dup2(open("/dev/null", O_WRONLY), fd) == fd);
            CHECK(write(fd, bytes, 1000) == 1000);
            _exit(0);
        }
        done(grandchild);
        CHECK(write(fd, bytes, 10) == 10); /* 4 */
        CHECK(syscall(SYS_gettid) == getpid());
        syscall(SYS_exit_group, 0);
    }
    done(child);
    CHECK(write(fd, bytes, 10) == 10); /* 5 */
    /* Without the C library's knowledge. */
    child = syscall(SYS_fork);
    if (child == 0) {
        CHECK(write(fd, bytes, 10) == 10); /* 6 */
        _exit(0);
    }
    done(child);

    pthread_t threads[8];
    for (int index = 0; index < 8; index++)
        CHECK(pthread_create(&threads[index], NULL, thread, (void *)(long)fd) == 0);
    for (int index = 0; index < 8; index++)
        CHECK(pthread_join(threads[index], NULL) == 0); /* 806 */

    /* The chain ends in three children of ours. */
    CHECK(chdir(".") == 0);
    child = fork();
    if (child == 0)
        chain(self, 9); /* 9 programs and 5 children: 820 */
    done(child);
    return 0;
}
