/* Pointers into nowhere, in every call that the kernel answers with EFAULT. Each call is made in a
 * child, and what became of it is a line: its result and error, or the signal. */
#include "check.h"

#include <dirent.h>
#include <linux/aio_abi.h>
#include <linux/filter.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

extern char **environ;

static char *nowhere[5];

/* Memory of one page that can be read, and none behind it. */
static char *edge(void) {
    char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && munmap(pages + 4096, 4096) == 0);
    return pages + 4096;
}

static void prepare(void) {
    char *gone = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(gone != MAP_FAILED && munmap(gone, 4096) == 0);
    char *end = edge();
    memset(end - 100, 'a', 100);
    nowhere[0] = (char *)16;
    nowhere[1] = gone + 8;
    nowhere[2] = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    nowhere[3] = (char *)0x8000000000000000;
    nowhere[4] = end - 100;
}

/* A vector whose second element lies behind the edge. */
static struct iovec *cut(void) {
    struct iovec *vector = (struct iovec *)edge() - 1;
    vector->iov_base = bytes;
    vector->iov_len = 1;
    return vector;
}

#define TRY(call)                                                              \
    do {                                                                       \
        fflush(stdout);                                                        \
        pid_t child = fork();                                                  \
        if (child == 0) {                                                      \
            errno = 0;                                                         \
            long result = (long)(call);                                        \
            printf("%s %d: %ld %s\n", #call, which, result, strerror(errno));  \
            fflush(stdout);                                                    \
            _exit(0);                                                          \
        }                                                                      \
        int status;                                                            \
        CHECK(waitpid(child, &status, 0) == child);                            \
        if (WIFSIGNALED(status))                                               \
            printf("%s %d: signal %d\n", #call, which, WTERMSIG(status));      \
    } while (0)

static char *const none[] = {NULL};

static void names(char *bad, int which) {
    struct stat status;
    struct statx statx_;
    struct statfs statfs_;
    char *list[] = {"true", bad, NULL}, *variables[] = {"A=1", bad, NULL};

    TRY(open(bad, O_RDONLY));
    TRY(open(bad, O_RDWR | O_CREAT, 0600));
    TRY(openat(AT_FDCWD, bad, O_RDONLY));
    TRY(creat(bad, 0600));
    TRY(stat(bad, &status));
    TRY(lstat(bad, &status));
    TRY(fstatat(AT_FDCWD, bad, &status, 0));
    TRY(statx(AT_FDCWD, bad, 0, STATX_BASIC_STATS, &statx_));
    TRY(statfs(bad, &statfs_));
    TRY(access(bad, R_OK));
    TRY(faccessat(AT_FDCWD, bad, R_OK, 0));
    TRY(readlink(bad, bytes, sizeof bytes));
    TRY(unlink(bad));
    TRY(rmdir(bad));
    TRY(mkdir(bad, 0700));
    TRY(rename(bad, "b"));
    TRY(rename("b", bad));
    TRY(link(bad, "b"));
    TRY(link("file", bad));
    TRY(symlink(bad, "b"));
    TRY(symlink("b", bad));
    TRY(mknod(bad, S_IFIFO | 0600, 0));
    TRY(chmod(bad, 0600));
    TRY(chown(bad, -1, -1));
    TRY(truncate(bad, 0));
    TRY(utimensat(AT_FDCWD, bad, NULL, 0));
    TRY(getxattr(bad, "user.a", bytes, 1));
    TRY(setxattr(bad, "user.a", bytes, 1, 0));
    TRY(listxattr(bad, bytes, 1));
    TRY(removexattr(bad, "user.a"));
    TRY(fopen(bad, "r"));
    TRY(execv(bad, none));
    TRY(execve(bad, none, none));
    TRY(execve("/bin/true", (char **)bad, none));
    TRY(execve("/bin/true", none, (char **)bad));
    TRY(execve("/bin/true", list, none));
    TRY(execve("/bin/true", none, variables));
    TRY(execveat(AT_FDCWD, bad, none, none, 0));
    TRY(syscall(SYS_execve, bad, none, none));
    TRY(posix_spawn(NULL, bad, NULL, NULL, none, none));
    TRY(opendir(bad));
}

static void vectors(struct iovec *bad, int which) {
    int fd = open("file", O_RDWR);

    TRY(readv(fd, bad, 2));
    TRY(writev(fd, bad, 2));
    TRY(preadv(fd, bad, 2, 0));
    TRY(pwritev(fd, bad, 2, 0));
    TRY(preadv2(fd, bad, 2, 0, 0));
    TRY(pwritev2(fd, bad, 2, 0, 0));
    TRY(syscall(SYS_readv, fd, bad, 2));
    TRY(syscall(SYS_writev, fd, bad, 2));
    close(fd);
}

static void blocks(char *bad, int which) {
    int fd = open("file", O_RDWR);
    aio_context_t context = 0;
    struct iocb *pointer = (struct iocb *)bad;
    struct iocb block = {.aio_lio_opcode = IOCB_CMD_PREADV, .aio_fildes = fd, .aio_nbytes = 2};
    struct iocb *good = &block;
    struct sock_fprog program = {.len = 4, .filter = (struct sock_filter *)bad};

    block.aio_buf = (unsigned long)bad;
    CHECK(syscall(SYS_io_setup, 4, &context) == 0);
    TRY(syscall(SYS_io_submit, context, 1L, bad));
    TRY(syscall(SYS_io_submit, context, 1L, &pointer));
    TRY(syscall(SYS_io_submit, context, 1L, &good));
    syscall(SYS_io_destroy, context);
    close(fd);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    TRY(prctl(PR_SET_SECCOMP, 2, bad, 0, 0));
    TRY(prctl(PR_SET_SECCOMP, 2, &program, 0, 0));
    TRY(syscall(SYS_seccomp, 1, 0, bad));
    TRY(syscall(SYS_seccomp, 1, 0, &program));
}

int main(void) {
    int which;

    close(file("file"));
    prepare();
    for (which = 0; which < 5; which++) {
        names(nowhere[which], which);
        vectors((struct iovec *)nowhere[which], which);
        blocks(nowhere[which], which);
    }
    vectors(cut(), which);
    return 0;
}
