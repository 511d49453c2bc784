/* Descriptors that come and go in every way, while what is written to them is counted: 64 KiB each.
 *
 *     descriptors 7<> inherited */

#define COUNT 65536
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const char block[COUNT];

static void check(int good, const char *what) {
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static void put(int file, const char *what) { check(write(file, block, COUNT) == COUNT, what); }

static int fresh(const char *name) {
    int file = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    check(file >= 0, name);
    return file;
}

/* A file that came through a socket. */
static void sent(void) {
    int ends[2];
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    char byte = 'x', space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
                             .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    int file = fresh("sent"), got = -1;
    memcpy(CMSG_DATA(head), &file, sizeof file);
    check(sendmsg(ends[0], &message, 0) == 1, "sendmsg");
    close(file);
    check(recvmsg(ends[1], &message, 0) == 1, "recvmsg");
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    put(got, "sent");
    close(got), close(ends[0]), close(ends[1]);
}

int main(void) {
    put(7, "inherited");
    int file = fresh("duplicated");
    int other = dup(file), third = fcntl(file, F_DUPFD_CLOEXEC, 100);
    check(dup2(file, 50) == 50 && dup3(file, 51, O_CLOEXEC) == 51, "dup2");
    close(file);
    put(other, "dup"), put(third, "F_DUPFD"), put(50, "dup2"), put(51, "dup3");

    /* The number of a closed file is another file's. */
    int reused = fresh("reused");
    check(reused == file, "the number is not used again");
    put(reused, "reused");
    /* A pipe in a file's place, and a file in a pipe's. */
    int pipe_ends[2];
    check(pipe(pipe_ends) == 0, "pipe");
    check(dup2(pipe_ends[1], reused) == reused, "a pipe over a file");
    check(write(reused, "x", 1) == 1, "the pipe");
    check(dup2(other, pipe_ends[1]) == pipe_ends[1], "a file over a pipe");
    put(pipe_ends[1], "the file");

    /* What nobody opened cannot be closed, and says so. */
    errno = 0;
    check(close(987) == -1 && errno == EBADF, "close of nothing");
    check(write(987, "x", 1) == -1 && errno == EBADF, "write to nothing");
    check(close(-1) == -1 && errno == EBADF, "close of -1");

    sent();
    pid_t child = fork();
    if (child == 0) {
        put(other, "in the child");
        _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    check(status == 0, "the child");

    /* All at once, as daemons do. */
    check(close_range(3, ~0U, 0) == 0, "close_range");
    int after = fresh("after");
    check(after == 3, "the lowest number");
    put(after, "after");
    struct rlimit limit = {4096, 4096};
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && dup2(after, 4000) == 4000) {
        put(4000, "a large number");
    } else {
        put(after, "instead of a large number");
    }
    printf("done\n");
    fflush(stdout);
    getchar();
    return 0;
}
